"""What heads mean, and that h11 agrees about every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.http import ServerLimits
from smg_trio.http.faults import RequestFault
from smg_trio.http.h1.head import RequestHead, read_head
from smg_trio.http.h1.parsers import HeadParser
from smg_trio.http.head_checks import METHODS
from tests.http.h1.h11_heads import H11HeadParser

Parser = HeadParser | H11HeadParser
LIMITS = ServerLimits(max_headers=20, max_body_bytes=1000)
both_parsers = pytest.mark.parametrize("new_parser", [H11HeadParser, HeadParser])


def head_of(*lines: bytes, first: bytes = b"GET / HTTP/1.1", host: bytes = b"Host: test") -> bytes:
    """A head of these lines."""
    return b"\r\n".join([first, *([host] if host else []), *lines, b"", b""])


WEBSOCKET = (
    b"Upgrade: WebSocket",
    b"Connection: keep-alive, Upgrade",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Version: 13",
)


@both_parsers
def test_a_head_is_read(new_parser: Callable[[], Parser]) -> None:
    raw = head_of(b"X-Empty:", b"Accept:  a, b \t", b"X-Latin: \xe9", first=b"POST /a%20b?c=%64 HTTP/1.1")
    head = read_head(raw, new_parser(), LIMITS)
    assert (head.method, head.path, head.query, head.http11) == ("POST", b"/a%20b", b"c=%64", True)
    assert head.headers == [(b"host", b"test"), (b"x-empty", b""), (b"accept", b"a, b"), (b"x-latin", b"\xe9")]
    assert head.keep_alive
    assert head.content_length is None


@both_parsers
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (head_of(b"Content-Length: 5"), {"content_length": 5}),
        (head_of(b"Transfer-Encoding: Chunked"), {"chunked": True}),
        (head_of(b"Connection: Close"), {"keep_alive": False}),
        (head_of(b"Connection: x", b"Connection: y, close"), {"keep_alive": False}),
        (head_of(first=b"GET / HTTP/1.0", host=b""), {"keep_alive": False, "http11": False}),
        (head_of(b"Connection: keep-alive", first=b"GET / HTTP/1.0", host=b""), {"keep_alive": True}),
        (head_of(b"Expect: 100-Continue", b"Content-Length: 1"), {"expects_continue": True}),
        (head_of(*WEBSOCKET), {"websocket": True}),
        (head_of(*WEBSOCKET, b"Content-Length: 0"), {"websocket": True}),
        (head_of(*WEBSOCKET, first=b"POST / HTTP/1.1"), {"websocket": False}),
        (head_of(*WEBSOCKET, first=b"GET / HTTP/1.0"), {"websocket": False}),
        (head_of(b"Upgrade: websocket"), {"websocket": False}),
        (head_of(b"Upgrade: h2c", b"Connection: Upgrade"), {"websocket": False, "keep_alive": True}),
        (head_of(first=b"OPTIONS * HTTP/1.1"), {"path": b"*"}),
        (head_of(first=b"GET http://test/a?b HTTP/1.1"), {"path": b"/a", "query": b"b"}),
        (head_of(first=b"GET HTTPS://test?b HTTP/1.1"), {"path": b"/", "query": b"b"}),
    ],
)
def test_what_a_head_means(new_parser: Callable[[], Parser], raw: bytes, expected: dict[str, Any]) -> None:
    head = read_head(raw, new_parser(), LIMITS)
    assert {name: getattr(head, name) for name in expected} == expected


REFUSED = [
    (head_of(*WEBSOCKET[:3], b"Sec-WebSocket-Version: 8"), 426),
    (head_of(*WEBSOCKET[:3]), 426),
    (head_of(*WEBSOCKET, b"Sec-WebSocket-Version: 13"), 426),
    (head_of(*WEBSOCKET[:2], b"Sec-WebSocket-Version: 13"), 400),
    (head_of(*WEBSOCKET[:2], b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: short"), 400),
    (head_of(*WEBSOCKET, WEBSOCKET[2]), 400),
    (head_of(*WEBSOCKET, b"Upgrade: websocket"), 400),
    (head_of(b"Upgrade: h2c", *WEBSOCKET), 400),
    (head_of(*WEBSOCKET, b"Content-Length: 5"), 400),
    (head_of(*WEBSOCKET, b"Transfer-Encoding: chunked"), 400),
    (head_of(host=b""), 400),
    (head_of(b"Host: twice"), 400),
    (head_of(b"Host: twice", first=b"GET / HTTP/1.0"), 400),
    (head_of(b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
    (head_of(b"Content-Length: 5", b"Content-Length: 5"), 400),
    (head_of(b"Content-Length: 5, 5"), 400),
    (head_of(b"Content-Length: +5"), 400),
    (head_of(b"Content-Length: 0x5"), 400),
    (head_of(b"Content-Length:"), 400),
    (head_of(b"Content-Length: " + b"9" * 30), 400),
    (head_of(b"Content-Length: 1001"), 413),
    (head_of(b"Transfer-Encoding: gzip, chunked"), 501),
    (head_of(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 501),
    (head_of(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"), 400),
    (head_of(b"Expect: something"), 417),
    (head_of(b"X : y"), 400),
    (head_of(b"X\x00: y"), 400),
    (head_of(b"X: y\x00"), 400),
    (head_of(b"X: y\x7f"), 400),
    (head_of(b"X: y\x01"), 400),
    (head_of(b": y"), 400),
    (head_of(b"no colon"), 400),
    (head_of(b"X: y", b" folded"), 400),
    (head_of(b"X: y", b"\tfolded"), 400),
    (head_of(b"X: y\rZ: w"), 400),
    (head_of(b"X: y\nZ: w"), 400),
    (head_of(*[b"X: y"] * 20), 431),
    (head_of(first=b"GET / HTTP/2.0"), 505),
    (head_of(first=b"GET / HTTP/1.2"), 505),
    (head_of(first=b"GET / HTTP/11"), 400),
    (head_of(first=b"GET /"), 400),
    (head_of(first=b"GET  / HTTP/1.1"), 400),
    (head_of(first=b"GET / HTTP/1.1 "), 400),
    (head_of(first=b"GET /\xff HTTP/1.1"), 400),
    (head_of(first=b"GET a HTTP/1.1"), 400),
    (head_of(first=b"GET * HTTP/1.1"), 400),
    (head_of(first=b"CONNECT a:1 HTTP/1.1"), 405),
    (head_of(first=b"TRACE / HTTP/1.1"), 405),
    (head_of(first=b"BREW / HTTP/1.1"), 501),
]


@both_parsers
@pytest.mark.parametrize(("raw", "status"), REFUSED)
def test_what_no_head_may_be(new_parser: Callable[[], Parser], raw: bytes, status: int) -> None:
    with pytest.raises(RequestFault) as caught:
        read_head(raw, new_parser(), LIMITS)
    # A parser may see the fault before we do, and knows only "bad".
    assert caught.value.status in {status, 400}


@both_parsers
def test_a_parser_reads_head_after_head(new_parser: Callable[[], Parser]) -> None:
    parser = new_parser()
    for raw in (head_of(), head_of(b"Content-Length: 5"), head_of(b"Upgrade: x", b"Connection: upgrade"), head_of()):
        assert read_head(raw, parser, LIMITS).headers[0] == (b"host", b"test")


TOKENS = st.text("abcXYZ-_09", min_size=1, max_size=8).map(str.encode)
NOISE = st.binary(max_size=8).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))
NAMES = TOKENS | NOISE | st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Connection", b"Host"])
VALUES = TOKENS | NOISE | st.sampled_from([b"5", b"chunked", b"close", b"", b"keep-alive, upgrade", b"\xc3\xa9 x"])
LINES = st.lists(st.tuples(NAMES, VALUES).map(b": ".join), max_size=5)
FIRST = st.tuples(
    st.sampled_from([method.encode() for method in sorted(METHODS)]) | NOISE,
    st.sampled_from([b"/", b"/a?b=c", b"*", b"/%41", b"/a[]{}|^\"'<>`\\#f"]) | TOKENS.map(lambda t: b"/" + t),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"]),
).map(b" ".join)


def outcome(raw: bytes, parser: Parser) -> RequestHead | None:
    """The head, or ``None`` if refused."""
    try:
        return read_head(raw, parser, LIMITS)
    except RequestFault:
        return None


@given(FIRST, LINES)
def test_both_parsers_read_the_same_in_any_head(first: bytes, lines: list[bytes]) -> None:
    raw = head_of(*lines, first=first)
    assert outcome(raw, H11HeadParser()) == outcome(raw, HeadParser())


@both_parsers
@pytest.mark.parametrize("authority", [b"`", b"a b", b"a\\b", b"{a}", b'"', b"a|b", b"<a>"])
def test_an_absolute_target_names_a_host_in_characters_that_hosts_have(
    new_parser: Callable[[], Parser], authority: bytes
) -> None:
    with pytest.raises(RequestFault):
        read_head(head_of(first=b"GET http://%b/x HTTP/1.1" % authority), new_parser(), LIMITS)
