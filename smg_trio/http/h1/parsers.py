"""Header lines to pairs: httptools where it is installed, else h11. Pure.

Both get one complete head and give the same pairs: lower-case names, values without surrounding blanks, in
the order they came. What one of the two lets through that the other refuses is refused in `head`, for both.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Literal, Protocol

import h11

from smg_trio.core.errors import ConfigError
from smg_trio.http.asgi import Headers
from smg_trio.http.faults import RequestFault

ParserName = Literal["auto", "httptools", "h11"]

_LENGTHS = re.compile(rb"\ncontent-length:([^\r]*)", re.IGNORECASE)


class HeadParser(Protocol):
    """Parses the heads of one connection, one after the other."""

    def parse(self, head: bytes) -> Headers:
        """The headers of ``head``, a complete request head with its blank line.

        Raises:
            RequestFault: it is not a valid HTTP/1.1 head.
        """


class H11HeadParser:
    """Reads heads with h11."""

    __slots__ = ()

    def parse(self, head: bytes) -> Headers:
        """See `HeadParser`."""
        # h11 folds repeated lengths into one; two lengths are an attack or a bug.
        lengths = _LENGTHS.findall(head)
        if len(lengths) > 1 or (lengths and b"," in lengths[0]):
            raise RequestFault("The request has more than one Content-Length.")
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(head) + 1)
        connection.receive_data(head)
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestFault("The request head is not valid HTTP/1.1.") from error
        if not isinstance(event, h11.Request):
            raise RequestFault("The request head is not valid HTTP/1.1.")
        return [(name, value.strip(b" \t")) for name, value in event.headers]


class HttptoolsHeadParser:
    """Reads heads with httptools (llhttp). One parser object serves many heads, as long as none has a body."""

    __slots__ = ("_complete", "_error", "_headers", "_new_parser", "_parser", "_upgrade")

    def __init__(self) -> None:
        import httptools

        self._new_parser: Callable[[object], httptools.HttpRequestParser] = httptools.HttpRequestParser
        self._error = httptools.HttpParserError
        self._upgrade = httptools.HttpParserUpgrade
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
        """See `HeadParser`."""
        parser = self._parser or self._new_parser(self)
        self._parser = None
        headers: Headers = []
        self._headers = headers
        self._complete = False
        try:
            parser.feed_data(head)
        except self._upgrade:
            return headers
        except self._error as error:
            raise RequestFault("The request head is not valid HTTP/1.1.") from error
        if self._complete and parser.should_keep_alive():
            self._parser = parser
        return headers


def head_parser_factory(name: ParserName) -> Callable[[], HeadParser]:
    """What makes the head parser of a new connection.

    Raises:
        ConfigError: httptools was asked for and is not installed.
    """
    installed = importlib.util.find_spec("httptools") is not None
    if name == "httptools" and not installed:
        raise ConfigError("--http-parser", "httptools is not installed.", "Install it, or choose h11.")
    if name == "h11" or not installed:
        return H11HeadParser
    return HttptoolsHeadParser
