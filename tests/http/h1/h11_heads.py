"""A second reader of heads, made of h11, to compare `HeadParser` with."""

from __future__ import annotations

import re

import h11

from smg_trio.http.asgi import Headers
from smg_trio.http.faults import RequestFault

_LENGTHS = re.compile(rb"\ncontent-length:([^\r]*)", re.IGNORECASE)


class H11HeadParser:
    """Takes the place of `HeadParser`."""

    __slots__ = ()

    def parse(self, head: bytes) -> Headers:
        """As `HeadParser.parse`."""
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
