"""A same-host LLM gateway for headless engines, on trio. Import the rooms, not this root."""

__version__ = "0.2.0"
