"""Responses as an independent parser reads them."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.http.h1.response import ResponseEncoder, ResponseMisuse


def date_line() -> bytes:
    """A fixed date."""
    return b"date: today\r\n"


def encoder(*, http11: bool = True, head_only: bool = False, keep_alive: bool = True) -> ResponseEncoder:
    """A new response."""
    return ResponseEncoder(http11=http11, head_only=head_only, keep_alive=keep_alive)


def test_a_response_in_one_piece_has_a_length() -> None:
    response = encoder()
    response.start(200, [(b"a", b"b")])
    assert response.body(b"hi", False, date_line) == (
        b"HTTP/1.1 200 OK\r\na: b\r\ndate: today\r\ncontent-length: 2\r\n\r\nhi"
    )
    assert response.complete
    assert response.keep_alive


def test_head_and_first_chunk_and_last_chunk_and_terminator_go_together() -> None:
    response = encoder()
    response.start(200, [])
    assert response.body(b"one", True, date_line).endswith(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n")
    assert response.body(b"", True, date_line) == b""
    assert response.body(b"two", False, date_line) == b"3\r\ntwo\r\n0\r\n\r\n"
    assert response.complete


def test_an_old_client_gets_a_body_that_ends_with_the_connection() -> None:
    response = encoder(http11=False)
    response.start(200, [])
    assert response.body(b"one", True, date_line).endswith(b"connection: close\r\n\r\none")
    assert response.body(b"two", False, date_line) == b"two"
    assert not response.keep_alive


def test_an_old_client_that_wants_to_stay_is_told_that_it_can() -> None:
    response = encoder(http11=False)
    response.start(200, [])
    assert b"connection: keep-alive\r\n" in response.body(b"x", False, date_line)


@pytest.mark.parametrize("status", [200, 204, 304])
def test_a_response_without_body_sends_none(status: int) -> None:
    response = encoder(head_only=status == 200)
    response.start(status, [(b"content-length", b"5")])
    sent = response.body(b"hello", False, date_line)
    assert sent.endswith(b"\r\n\r\n")
    assert (b"content-length: 5" in sent) == (status != 204)
    assert response.complete
    assert response.keep_alive


def test_framing_headers_of_the_app_are_replaced_and_its_date_kept() -> None:
    response = encoder()
    response.start(200, [(b"Transfer-Encoding", b"gzip"), (b"Connection", b"close"), (b"Date", b"mine")])
    sent = response.body(b"x", False, date_line)
    assert sent == b"HTTP/1.1 200 OK\r\nDate: mine\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
    assert not response.keep_alive


@pytest.mark.parametrize("value", [b"x\r\nSet-Cookie: y", b"x\ny", b"x\ry"])
def test_a_header_cannot_break_the_head(value: bytes) -> None:
    with pytest.raises(ResponseMisuse):
        encoder().start(200, [(b"a", value)])


@pytest.mark.parametrize("body", [b"12", b"1234"])
def test_a_body_that_is_not_as_long_as_declared_is_misuse(body: bytes) -> None:
    response = encoder()
    response.start(200, [(b"content-length", b"3")])
    with pytest.raises(ResponseMisuse):
        response.body(body, False, date_line)
    assert not response.complete


def test_messages_out_of_order_are_misuse() -> None:
    response = encoder()
    with pytest.raises(ResponseMisuse):
        response.body(b"x", False, date_line)
    response.start(200, [])
    with pytest.raises(ResponseMisuse):
        response.start(200, [])
    response.body(b"x", False, date_line)
    with pytest.raises(ResponseMisuse):
        response.body(b"x", False, date_line)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.booleans(), st.booleans(), st.booleans())
def test_an_independent_parser_reads_back_what_the_app_sent(
    pieces: list[bytes], http11: bool, head_only: bool, declared: bool
) -> None:
    body = b"".join(pieces)
    response = encoder(http11=http11, head_only=head_only)
    response.start(200, [(b"content-length", b"%d" % len(body))] if declared else [])
    sent = b"".join(response.body(piece, index + 1 < len(pieces), date_line) for index, piece in enumerate(pieces))
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="HEAD" if head_only else "GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    if not response.keep_alive:
        client.receive_data(b"")
    read = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        read += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert read == (b"" if head_only else body)
    assert client.trailing_data[0] == b""
