"""ASGI response messages to HTTP/1.1 bytes. Pure.

The head waits for the first body message and goes out with it. A response that is complete in its first
body message gets a Content-Length; a longer one without is chunked in HTTP/1.1 and ends with the connection
in HTTP/1.0. The last chunk and the terminator are one piece of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.http.faults import FaultAnswer

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_LAST_CHUNK = b"0\r\n\r\n"


def encode_answer(answer: FaultAnswer, date_line: bytes, *, head_only: bool = False) -> bytes:
    """A whole response that ends its connection; ``head_only``: without the body, as HEAD wants it."""
    lines = [_STATUS_LINES[answer.status], date_line, *(b"%b: %b\r\n" % header for header in answer.headers)]
    lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(answer.body))
    return b"".join(lines) + (b"" if head_only else answer.body)


class ResponseMisuse(RuntimeError):
    """The app broke the order or the rules of ASGI response messages."""


class ResponseEncoder:
    """One response. States: nothing said, head waiting, body, complete.

    Attributes:
        keep_alive: whether the connection can be used again; may be set to ``False`` until the head is
            out, and is set to ``False`` by what the response turns out to be.
        head_sent: the head was given out, so no other answer is possible.
        complete: the whole response was given out.
    """

    __slots__ = (
        "_bodyless", "_chunked", "_date", "_head", "_http11", "_left",
        "complete", "head_sent", "keep_alive",
    )  # fmt: skip

    def __init__(self, *, http11: bool, head_only: bool, keep_alive: bool) -> None:
        self._http11 = http11
        self._head: bytes | None = None
        self._date = False
        self._bodyless = head_only
        self._chunked = False
        self._left: int | None = None
        self.keep_alive = keep_alive
        self.head_sent = False
        self.complete = False

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Takes ``http.response.start``. Framing headers of the app are obeyed or replaced.

        Raises:
            ResponseMisuse: said twice, or a header that would break the head.
        """
        if self._head is not None or self.head_sent:
            raise ResponseMisuse("http.response.start was already sent")
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in headers:
            if not self._take_framing(name.lower(), value):
                lines.append(b"%b: %b\r\n" % (name, value))
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ResponseMisuse("a response header contains a line break")
        if status < 200 or status in {204, 304}:
            self._bodyless = True
            if status != 304:
                self._left = None
        self._head = head

    def _take_framing(self, name: bytes, value: bytes) -> bool:
        if name == b"content-length":
            self._left = int(value)
        elif name == b"connection":
            if b"close" in value.lower():
                self.keep_alive = False
        elif name == b"date":
            self._date = True
            return False
        elif name != b"transfer-encoding":
            return False
        return True

    def body(self, data: bytes, more: bool, date_line: Callable[[], bytes]) -> bytes:
        """Takes ``http.response.body`` and gives the bytes to write, which may be none.

        Args:
            data: the body bytes of this message.
            more: whether another body message follows.
            date_line: gives the ``Date`` header line, asked for when the head goes out.

        Raises:
            ResponseMisuse: out of order, or not as long as the app's Content-Length.
        """
        if not self.head_sent:
            return self._first(data, more, date_line)
        if self.complete:
            raise ResponseMisuse("the response is already complete")
        if self._chunked:
            if more:
                return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self.complete = True
            return b"%x\r\n%b\r\n%b" % (len(data), data, _LAST_CHUNK) if data else _LAST_CHUNK
        return self._plain(data, more)

    def chunk(self, data: bytes) -> bytes | None:
        """One chunk of a chunked body that has begun; None if the next bytes need `body`. Not for empty data."""
        if self._chunked and self.head_sent and not self.complete and data:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return None

    def abandon(self) -> None:
        """What was given out could not be written: the response is cut, and so is the connection."""
        self.keep_alive = self.complete = False

    def _first(self, data: bytes, more: bool, date_line: Callable[[], bytes]) -> bytes:
        if self._head is None:
            raise ResponseMisuse("http.response.body was sent before http.response.start")
        framing = self._framing_line(None if more else len(data))
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif not self._http11:
            framing += b"connection: keep-alive\r\n"
        head = b"%b%b%b\r\n" % (self._head, b"" if self._date else date_line(), framing)
        self._head = None
        self.head_sent = True
        return head + self.body(data, more, date_line)

    def _framing_line(self, length: int | None) -> bytes:
        if self._left is None and length is not None and not self._bodyless:
            self._left = length
        if self._left is not None:
            return b"content-length: %d\r\n" % self._left
        if self._bodyless:
            return b""
        if self._http11:
            self._chunked = True
            return b"transfer-encoding: chunked\r\n"
        self.keep_alive = False
        return b""

    def _plain(self, data: bytes, more: bool) -> bytes:
        self.complete = not more
        if self._bodyless:
            return b""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                self.keep_alive = self.complete = False
                raise ResponseMisuse("the body is not as long as its Content-Length")
        return data
