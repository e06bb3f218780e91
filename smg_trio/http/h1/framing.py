"""Where heads and bodies begin and end in a stream of bytes. Pure.

All readers take from the front of one shared ``bytearray``: what they do not take belongs to the next
request. Framing is done here and not by httptools, so that every limit holds before bytes are buffered, and so that the
bytes of a head are at hand when a connection is handed to another protocol.

Bounds: a head has at most ``max_header_bytes``, a chunk-size line 256 bytes, trailers ``max_header_bytes``.
"""

from __future__ import annotations

import re

from smg_trio.http.faults import HeadersTooLarge, RequestFault, RequestTooLarge

_BLANK_LINES = re.compile(rb"(?:\r\n)+")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_MAX_SIZE_LINE = 256
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class HeadFinder:
    """Takes request heads off the front of ``buffer``."""

    __slots__ = ("_buffer", "_max_bytes", "_searched")

    def __init__(self, buffer: bytearray, max_bytes: int) -> None:
        self._buffer = buffer
        self._max_bytes = max_bytes
        self._searched = 0

    def take(self) -> bytes | None:
        """The next head with its blank line, or ``None`` while it is incomplete.

        Raises:
            HeadersTooLarge: it is longer than allowed, complete or not.
            RequestFault: it cannot become a head whatever follows.
        """
        buffer = self._buffer
        if not self._searched and not self._skip_blank_lines():
            return None
        end = buffer.find(b"\r\n\r\n", self._searched) + 4
        if end == 3:
            self._check_partial()
            return None
        if end > self._max_bytes:
            raise HeadersTooLarge(f"The request head is larger than {self._max_bytes} bytes.")
        head = bytes(buffer[:end])
        del buffer[:end]
        self._searched = 0
        return head

    def _skip_blank_lines(self) -> bool:
        buffer = self._buffer
        if buffer.startswith(b"\r"):
            blank = _BLANK_LINES.match(buffer)
            if blank is not None:
                count = blank.end()
                del blank  # it holds the buffer, which then cannot shrink
                del buffer[:count]
            if buffer == b"\r":
                return False
        if not buffer:
            return False
        if not 65 <= buffer[0] <= 90:  # every method begins with A-Z; TLS and stray bodies do not
            raise RequestFault("The request does not begin with an HTTP method.")
        return True

    def _check_partial(self) -> None:
        buffer = self._buffer
        if len(buffer) > self._max_bytes:
            raise HeadersTooLarge(f"The request head is larger than {self._max_bytes} bytes.")
        if buffer.find(b"\n\n", self._searched) >= 0:
            raise RequestFault("Lines of the request head must end with CRLF.")
        self._searched = max(0, len(buffer) - 3)


class SizedBody:
    """A body whose length was declared."""

    __slots__ = ("remaining",)

    def __init__(self, length: int) -> None:
        self.remaining = length

    @property
    def ended(self) -> bool:
        """Whether all of it was taken."""
        return not self.remaining

    def take(self, buffer: bytearray) -> bytes:
        """Takes what ``buffer`` has of the body; empty if nothing yet."""
        if len(buffer) <= self.remaining:
            data = bytes(buffer)
            buffer.clear()
        else:
            data = bytes(buffer[: self.remaining])
            del buffer[: self.remaining]
        self.remaining -= len(data)
        return data


class ChunkedBody:
    """A body in chunked transfer coding. States: size line, data, data's CRLF, trailers, ended."""

    __slots__ = ("_in_chunk", "_max_body", "_max_trailers", "_state", "_taken", "_trailers", "ended")

    def __init__(self, max_body_bytes: int, max_trailer_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._max_trailers = max_trailer_bytes
        self._in_chunk = 0
        self._taken = 0
        self._trailers = 0
        self._state = self._take_size
        self.ended = False

    def take(self, buffer: bytearray) -> bytes:
        """Takes and decodes what ``buffer`` has of the body; empty if nothing yet.

        Raises:
            RequestTooLarge: the decoded body passes the limit.
            RequestFault: the coding is broken.
        """
        parts: list[bytes] = []
        while not self.ended and self._state(buffer, parts):
            pass
        return b"".join(parts)

    def _take_size(self, buffer: bytearray, parts: list[bytes]) -> bool:
        line = _take_line(buffer, _MAX_SIZE_LINE)
        if line is None:
            return False
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise RequestFault("A chunk of the request body has no valid size.")
        self._in_chunk = int(match[1], 16)
        self._taken += self._in_chunk
        if self._taken > self._max_body:
            raise RequestTooLarge(self._max_body)
        self._state = self._take_data if self._in_chunk else self._take_trailer
        return True

    def _take_data(self, buffer: bytearray, parts: list[bytes]) -> bool:
        if not buffer:
            return False
        data = bytes(buffer[: self._in_chunk])
        del buffer[: self._in_chunk]
        parts.append(data)
        self._in_chunk -= len(data)
        if not self._in_chunk:
            self._state = self._take_end_of_data
        return True

    def _take_end_of_data(self, buffer: bytearray, parts: list[bytes]) -> bool:
        if not b"\r\n".startswith(buffer[:2]):
            raise RequestFault("A chunk of the request body is longer than its size says.")
        if len(buffer) < 2:
            return False
        del buffer[:2]
        self._state = self._take_size
        return True

    def _take_trailer(self, buffer: bytearray, parts: list[bytes]) -> bool:
        line = _take_line(buffer, self._max_trailers - self._trailers)
        if line is None:
            return False
        self._trailers += len(line) + 2
        if not line:
            self.ended = True
        elif _TRAILER.fullmatch(line) is None:
            raise RequestFault("A trailer of the request body is not valid.")
        return True


def _take_line(buffer: bytearray, max_bytes: int) -> bytes | None:
    end = buffer.find(b"\n", 0, max_bytes + 2)
    if end < 0:
        if len(buffer) > max_bytes + 1:
            raise RequestFault("A line within the request body is too long.")
        return None
    if end == 0 or buffer[end - 1] != 13:
        raise RequestFault("Lines within the request body must end with CRLF.")
    line = bytes(buffer[: end - 1])
    del buffer[: end + 1]
    return line
