"""Header lines to pairs, with httptools (llhttp). Pure.

Given is one complete head; the pairs have lower-case names and values without surrounding blanks, in the order they
came. What llhttp lets through and HTTP/1.1 does not is refused in `head`; the tests compare both with h11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from smg_trio.http.faults import RequestFault

if TYPE_CHECKING:
    from smg_trio.http.asgi import Headers


class HeadParser:
    """Parses the heads of one connection, one after the other.

    One parser object of httptools serves many heads, as long as none has a body.
    """

    __slots__ = ("_complete", "_headers", "_parser")

    def __init__(self) -> None:
        self._parser: httptools.HttpRequestParser | None = None
        self._headers: Headers = []
        self._complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each header line."""
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_message_complete(self) -> None:
        """Called by httptools at the end of a request without a body."""
        self._complete = True

    def parse(self, head: bytes) -> Headers:
        """The headers of ``head``, a complete request head with its blank line.

        Raises:
            RequestFault: it is not a valid HTTP/1.1 head.
        """
        parser = self._parser or httptools.HttpRequestParser(self)
        self._parser = None
        headers: Headers = []
        self._headers = headers
        self._complete = False
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            return headers
        except httptools.HttpParserError as error:
            raise RequestFault("The request head is not valid HTTP/1.1.") from error
        if self._complete and parser.should_keep_alive():
            self._parser = parser
        return headers
