"""Models that the gateway serves: which files they are made of, those still to be downloaded, LoRA adapters."""
