"""Heads and bodies are found at the same places however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.http.faults import HeadersTooLarge, RequestFault, RequestTooLarge
from smg_trio.http.h1.framing import ChunkedBody, HeadFinder, SizedBody

HEADS = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /x HTTP/1.0\r\n\r\n", b"DELETE * HTTP/1.1\r\nA: b\r\n\r\n"]


def cuts(data: bytes, points: list[int]) -> list[bytes]:
    """``data`` in pieces."""
    edges = [0, *sorted(p % (len(data) + 1) for p in points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def find_heads(pieces: list[bytes], max_bytes: int = 1000) -> list[bytes]:
    """All heads found while the pieces come in."""
    buffer = bytearray()
    finder = HeadFinder(buffer, max_bytes)
    heads = []
    for piece in pieces:
        buffer += piece
        while (head := finder.take()) is not None:
            heads.append(head)
    return heads


@given(
    st.lists(st.tuples(st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]), st.sampled_from(HEADS)), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_heads_are_found_under_any_cutting(parts: list[tuple[bytes, bytes]], points: list[int]) -> None:
    data = b"".join(blank + head for blank, head in parts)
    assert find_heads(cuts(data, points)) == [head for _, head in parts]


def test_a_head_that_never_ends_is_too_large() -> None:
    with pytest.raises(HeadersTooLarge):
        find_heads([b"GET / HTTP/1.1\r\n"] + [b"A: b\r\n"] * 200)


def test_a_complete_head_beyond_the_limit_is_too_large() -> None:
    with pytest.raises(HeadersTooLarge):
        find_heads([b"GET / HTTP/1.1\r\nA: " + b"b" * 1000 + b"\r\n\r\n"])


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00", b"{}", b"\n", b"get / HTTP/1.1", b"GET / HTTP/1.1\n\n"])
def test_what_cannot_become_a_head_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(RequestFault):
        find_heads([data])


def read(body: SizedBody | ChunkedBody, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """The decoded body, and what was left for the next request."""
    buffer = bytearray()
    decoded = b""
    for piece in pieces:
        buffer += piece
        if not body.ended:
            decoded += body.take(buffer)
    return decoded, bytes(buffer)


@given(st.binary(min_size=1, max_size=60), st.binary(max_size=20), st.lists(st.integers(0, 100), max_size=8))
def test_a_sized_body_takes_its_length_and_no_more(data: bytes, rest: bytes, points: list[int]) -> None:
    assert read(SizedBody(len(data)), cuts(data + rest, points)) == (data, rest)


@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=5),
    st.sampled_from([b"", b";a=b", b" ; x"]),
    st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: b\r\nC:\r\n"]),
    st.binary(max_size=10),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_a_chunked_body_is_decoded_under_any_cutting(
    chunks: list[bytes], extension: bytes, trailers: bytes, rest: bytes, points: list[int]
) -> None:
    coded = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    coded += b"0\r\n" + trailers + b"\r\n" + rest
    assert read(ChunkedBody(1000, 1000), cuts(coded, points)) == (b"".join(chunks), rest)


@pytest.mark.parametrize(
    "coded",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5\r\nhelloX",
        b"5\r\nhello\n0\r\n\r\n",
        b"5;" + b"x" * 300,
        b"5;\x00\r\n",
        b"11111111111111111\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 200,
    ],
)
def test_a_broken_chunked_body_is_refused(coded: bytes) -> None:
    with pytest.raises(RequestFault):
        read(ChunkedBody(2**80, 1000), [coded])
    with pytest.raises(RequestFault):
        read(ChunkedBody(2**80, 1000), [bytes([byte]) for byte in coded])


def test_a_chunk_is_refused_by_its_size_before_it_is_read() -> None:
    with pytest.raises(RequestTooLarge):
        read(ChunkedBody(10, 1000), [b"b\r\n"])
