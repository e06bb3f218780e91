"""Heads among the frames of HTTP/2."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.http.hypercorn.http2_frames import HeadProgress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
END_HEADERS = 4


def frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + b"\0\0\0\1" + payload


def within(*pieces: bytes) -> bool:
    progress = HeadProgress()
    for piece in (PREFACE, *pieces):
        progress.feed(piece)
    return progress.within_head


def test_the_preface_is_a_head_too() -> None:
    progress = HeadProgress()
    assert progress.within_head
    for byte in PREFACE[:-1]:
        progress.feed(bytes([byte]))
        assert progress.within_head
    progress.feed(PREFACE[-1:])
    assert not progress.within_head


def test_a_head_lasts_until_the_frame_that_ends_it_has_come_to_its_end() -> None:
    whole = frame(HEADERS, b"abc", END_HEADERS)
    for size in range(1, len(whole)):
        assert within(whole[:size])
    assert not within(whole)
    assert not within(frame(HEADERS, b"", END_HEADERS))
    assert within(frame(HEADERS, b"abc"))
    assert within(frame(HEADERS, b""), frame(CONTINUATION, b"abc"))
    assert not within(frame(HEADERS, b"abc"), frame(CONTINUATION, b""), frame(CONTINUATION, b"x", END_HEADERS))


def test_other_frames_are_none_but_for_their_own_headers() -> None:
    data = frame(DATA, b"x" * 100)
    assert within(data[:8])
    assert not within(data[:9])
    assert not within(data[:50])
    assert not within(data, frame(SETTINGS, b""), frame(PING, b"12345678", END_HEADERS))


FRAMES = st.lists(
    st.builds(
        frame, st.sampled_from([DATA, HEADERS, SETTINGS, CONTINUATION]), st.binary(max_size=20), st.integers(0, 7)
    )
)


@given(FRAMES, st.integers(1, 40))
def test_pieces_make_no_difference(frames: list[bytes], size: int) -> None:
    whole = b"".join(frames)
    assert within(whole) == within(*(whole[start : start + size] for start in range(0, len(whole), size)))
