"""What passes between engine and front end before it is decoded: the frames of a message. Pure."""

from __future__ import annotations

Message = list[bytes]
"""One message's frames, without identity."""

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
"""The one frame of a vLLM engine's last message."""


class FrontMessage(list[bytes]):
    """A message for another socket pair than the first: that of the front whose request or call it answers."""

    __slots__ = ("client_index",)

    def __init__(self, frames: Message, client_index: int) -> None:
        super().__init__(frames)
        self.client_index = client_index


def addressed(message: Message, client_index: int) -> Message:
    """The message, to be sent on the output socket ``client_index``."""
    return FrontMessage(message, client_index) if client_index else message
