"""A stream of requests reads the same under any cutting and with h11 too, whatever bytes it is made of."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.http import ServerLimits
from smg_trio.http.faults import RequestFault
from smg_trio.http.h1.framing import ChunkedBody, HeadFinder, SizedBody
from smg_trio.http.h1.head import RequestHead, read_head
from smg_trio.http.h1.parsers import HeadParser
from tests.http.h1.h11_heads import H11HeadParser

LIMITS = ServerLimits(max_header_bytes=300, max_headers=8, max_body_bytes=100)
Request = tuple[RequestHead, bytes]

WELL_FORMED = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"\r\nHEAD /z HTTP/1.0\r\n\r\n",
    b"GET /w HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]
BROKEN = [
    b"\r\n", b"\r", b"\n", b"\r\n\r\n", b" ", b":", b"0", b"\x00", b"\xff", b"PRI * HTTP/2.0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300 + b"\r\n\r\n",
]  # fmt: skip
STREAMS = st.lists(
    st.sampled_from(WELL_FORMED) | st.sampled_from(WELL_FORMED + BROKEN) | st.binary(max_size=6), max_size=6
).map(b"".join)


class Reader:
    """Reads requests off a stream as the connection does."""

    def __init__(self, parser: HeadParser | H11HeadParser) -> None:
        self.parser = parser
        self.buffer = bytearray()
        self.finder = HeadFinder(self.buffer, LIMITS.max_header_bytes)
        self.head: RequestHead | None = None
        self.body: SizedBody | ChunkedBody = SizedBody(0)
        self.read = b""
        self.requests: list[Request] = []

    def step(self) -> bool:
        """Reads on; ``False`` when more bytes are needed."""
        if self.head is None:
            raw = self.finder.take()
            if raw is None:
                return False
            self.head = read_head(raw, self.parser, LIMITS)
            chunked = ChunkedBody(LIMITS.max_body_bytes, LIMITS.max_header_bytes)
            self.body = chunked if self.head.chunked else SizedBody(self.head.content_length or 0)
        self.read += self.body.take(self.buffer)
        if not self.body.ended:
            return False
        self.requests.append((self.head, self.read))
        self.head, self.read = None, b""
        return True


def read_stream(pieces: list[bytes], parser: HeadParser | H11HeadParser) -> tuple[list[Request], bool]:
    """The complete requests, and whether the stream ended in a fault."""
    reader = Reader(parser)
    try:
        for piece in pieces:
            reader.buffer += piece
            while reader.step():
                pass
    except RequestFault:
        return reader.requests, True
    return reader.requests, False


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=10), st.booleans())
def test_a_stream_of_requests_reads_the_same_however_it_comes(data: bytes, points: list[int], bytewise: bool) -> None:
    edges = range(len(data) + 1) if bytewise else [0, *sorted(p % (len(data) + 1) for p in points), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    whole = read_stream([data], HeadParser())
    assert read_stream(pieces, HeadParser()) == whole
    assert read_stream(pieces, H11HeadParser()) == whole
