"""Where requests' heads begin and end among the frames of an HTTP/2 connection. Pure.

The protocol below tells of a head when it is complete. A client that sends one slowly, or half of one, shows here.
"""

from __future__ import annotations

from typing import Final

_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS: Final = 4


class HeadProgress:
    """Follows what the client sends.

    Attributes:
        within_head: it stands within the preface, within a frame's own header, or in a request's head: between the
            beginning of HEADERS and the end of the frame with END_HEADERS (RFC 9113, 4.1 and 6.2).
    """

    __slots__ = ("_block", "_ends_block", "_header", "_left", "within_head")

    def __init__(self) -> None:
        self._left = _PREFACE_BYTES
        self._header = b""
        self._block = True
        self._ends_block = True
        self.within_head = True

    def feed(self, data: bytes) -> None:
        """Take what came."""
        position, size = 0, len(data)
        while position < size:
            if self._left:
                taken = min(self._left, size - position)
                self._left -= taken
            else:
                taken = min(_HEADER_BYTES - len(self._header), size - position)
                self._header += data[position : position + taken]
                if len(self._header) == _HEADER_BYTES:
                    self._begin_frame()
            position += taken
            if not self._left and not self._header and self._ends_block:
                self._block = False
        self.within_head = self._block or bool(self._header)

    def _begin_frame(self) -> None:
        header, self._header = self._header, b""
        self._left = int.from_bytes(header[:3], "big")
        if header[3] in (_HEADERS, _CONTINUATION):
            self._block = True
            self._ends_block = bool(header[4] & _END_HEADERS)
