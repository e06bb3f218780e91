"""Event framing."""

from __future__ import annotations

from smg_trio.api import sse


def test_an_event_is_one_data_line_and_an_empty_line() -> None:
    assert sse.data_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert sse.named_event("message_stop", b"{}") == b"event: message_stop\ndata: {}\n\n"


def test_a_keep_alive_is_a_comment_and_done_is_data() -> None:
    assert sse.KEEP_ALIVE.startswith(b":")
    assert sse.KEEP_ALIVE.endswith(b"\n\n")
    assert sse.DONE == b"data: [DONE]\n\n"
