"""Responses out of bytes, however they are cut; what is no response."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.upstream.response_reader import MAX_HEAD_BYTES, BadResponse, ResponseReader

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\nTrailer: t\r\n\r\n"
)
SIZED = b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\nRetry-After: 3\r\nConnection: close\r\n\r\nabcde"
TO_EOF = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\nabcde"


def pieces_of(data: bytes, cuts: set[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


def read(pieces: list[bytes], *, eof: bool = False) -> tuple[ResponseReader, bytes]:
    reader, body = ResponseReader(), b""
    for piece in pieces:
        reader.feed(piece)
        body += reader.take()
    if eof:
        reader.feed_eof()
    return reader, body


@given(st.sampled_from([CHUNKED, SIZED, TO_EOF]), st.data())
def test_a_response_is_the_same_however_its_bytes_are_cut(data: bytes, draw: st.DataObject) -> None:
    cuts = draw.draw(st.sets(st.integers(1, len(data) - 1)))
    cut, cut_body = read(pieces_of(data, cuts), eof=data is TO_EOF)
    whole, body = read([data], eof=data is TO_EOF)
    assert (cut.head, cut_body, cut.complete, cut.reusable) == (whole.head, body, True, whole.reusable)


def test_headers_keep_their_order_and_repetitions() -> None:
    reader, body = read([CHUNKED])
    assert body == b"hello world"
    assert reader.reusable
    assert reader.head is not None
    assert reader.head.status == 200
    assert [value for name, value in reader.head.headers if name == "set-cookie"] == ["a=1", "b=2"]
    assert reader.head.get("content-type") == "text/event-stream"
    assert reader.head.get("absent") == ""


@pytest.mark.parametrize(("data", "reusable"), [(SIZED, False), (CHUNKED, True), (CHUNKED + SIZED, False)])
def test_a_connection_is_used_again_only_if_nothing_else_came(data: bytes, reusable: bool) -> None:
    reader, _ = read([data])
    assert reader.complete
    assert reader.reusable is reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\na\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES,
    ],
    ids=["no http", "both lengths", "two lengths", "no number", "bad chunk", "upgrade", "1xx flood", "large head"],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse):
        read([data], eof=True)


@given(st.sampled_from([CHUNKED, SIZED]), st.data())
def test_an_early_end_is_no_end(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(BadResponse):
        read([data[:cut]] if cut else [], eof=True)
