"""A same-host LLM gateway for headless engines, on trio. Import the rooms, not this root."""

__version__ = "0.1.0"
