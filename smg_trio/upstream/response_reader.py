"""An HTTP/1.1 response out of the bytes of a connection. Pure; the parser is httptools (llhttp)."""

from __future__ import annotations

from typing import Final, NamedTuple

import httptools

MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_INTERIM: Final = 8
"""1xx responses before the real one."""


class BadResponse(Exception):
    """What came is not an HTTP/1.1 response, or it ended too early. The words are for the log and the client."""


class ResponseHead(NamedTuple):
    """Status and headers; names in lower case, repeated ones repeated, in the order they came."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """The first value of a header; empty if there is none."""
        return next((value for other, value in self.headers if other == name), "")


class ResponseReader:
    """Feed it what comes, take the body out. One response only.

    Attributes:
        head: None until all of it has come.
        complete: the body has ended; the rest of it may still be there to take.
        reusable: whether the connection may carry another response, once complete.
    """

    __slots__ = (
        "_fault", "_fed", "_headers", "_interim", "_interims", "_parser", "_parts", "_until_eof",
        "complete", "head", "reusable",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._fed = 0
        self._interims = 0
        self._interim = False
        self._until_eof = False
        self._fault = ""
        self.head: ResponseHead | None = None
        self.complete = False
        self.reusable = False

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes of the connection. Raises BadResponse."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = self._fault or "it switches to another protocol"
        except httptools.HttpParserError:
            self._fault = self._fault or "it is not a valid HTTP response"
        if self.head is None:
            self._fed += len(data)
            if self._fed > MAX_HEAD_BYTES:
                self._fault = self._fault or f"its head is larger than {MAX_HEAD_BYTES} bytes"
        if self._fault:
            if not self.complete:
                raise BadResponse(self._fault)
            self.reusable = False

    def feed_eof(self) -> None:
        """The connection has ended. Raises BadResponse unless that is how the response ends."""
        if self.head is not None and self._until_eof:
            self.complete = True
        if not self.complete:
            raise BadResponse("the connection ended before the response did")
        self.reusable = False

    def take(self) -> bytes:
        """The body that has come since the last call."""
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ---- called by the parser; what they raise would be wrapped, so they only take notes ------------------

    def on_message_begin(self) -> None:
        """Of the parser."""
        if self.complete:
            self._fault = "more came after the response"

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the parser."""
        if not self.complete:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Of the parser."""
        if self.complete or self.head is not None:
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200:
            self._interim = True
            self._interims += 1
            if self._interims > _MAX_INTERIM:
                self._fault = self._fault or f"it sent more than {_MAX_INTERIM} interim responses"
            return
        names = {name for name, _ in headers}
        if "content-length" in names and "transfer-encoding" in names:
            self._fault = self._fault or "it has both a Content-Length and a Transfer-Encoding"
        self._until_eof = "content-length" not in names and "transfer-encoding" not in names
        self.head = ResponseHead(status, tuple(headers))

    def on_body(self, body: bytes) -> None:
        """Of the parser."""
        if not self.complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Of the parser."""
        if self._interim:
            self._interim = False
        elif not self.complete:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()
