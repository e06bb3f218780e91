"""What passes between engine and front end before it is decoded: the frames of a message. Pure."""

from __future__ import annotations

Message = list[bytes]
"""One message's frames, without identity."""

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
"""The one frame of a vLLM engine's last message."""
