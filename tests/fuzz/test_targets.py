"""Every fuzz target, on what hypothesis makes: a few examples in the suite, many in the session ``fuzz``."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .choices import Choices
from .targets import BEGINNINGS, TARGETS


def _spoilt(beginnings: list[bytes]) -> st.SearchStrategy[bytes]:
    """One of these, with a few bytes changed, dropped or put in."""

    def spoil(raw: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for at, length, inserted in edits:
            place = at % (len(raw) + 1)
            raw = raw[:place] + inserted + raw[place + length :]
        return raw

    marks = [b"", b"\r\n", b"\n", b":", b" ", b"\t", b"0", b",", b"\xff", b"chunked", b'"']
    pieces = st.sampled_from(marks) | st.binary(max_size=3)
    edits = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 4), pieces), max_size=4)
    return st.builds(spoil, st.sampled_from(beginnings), edits)


@pytest.mark.parametrize("name", TARGETS)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_bytes_break_it(name: str, data: st.DataObject) -> None:
    strategy = _spoilt(BEGINNINGS[name]) if name in BEGINNINGS else st.binary(max_size=64)
    TARGETS[name](data.draw(strategy))


def test_choices_are_made_of_bytes_and_then_all_alike() -> None:
    choices = Choices(b"\x03\x01\x01")
    assert (choices.below(2), choices.one_of("abc"), choices.left, choices.below(300), choices.below(7)) == (
        1, "b", True, 1, 0,
    )  # fmt: skip
    assert choices.rest() == b""
