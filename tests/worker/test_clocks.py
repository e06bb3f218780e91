"""The wave clock and the silence clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.worker.liveness import SilenceClock
from smg_trio.worker.waves import WaveClock


@given(st.lists(st.tuples(st.sampled_from(["wake", "completed", "asked"]), st.integers(0, 30), st.integers(0, 40))))
def test_waves_never_decrease_and_every_wake_is_above_what_engines_stand_at(
    happenings: list[tuple[str, int, int]],
) -> None:
    clock = WaveClock()
    standing = 0
    for what, wave, now_us in happenings:
        last = clock.current
        if what == "completed":
            clock.completed(wave)
            standing = max(standing, wave + 1)
            assert clock.current >= last
            continue
        number = clock.wake(now_us) if what == "wake" else clock.asked_to_start(wave, now_us)
        assert number >= standing
        assert number > last
        assert number >= (now_us if what == "wake" else max(wave, now_us))


def test_the_silence_clock_starts_with_the_submit_that_ends_idleness() -> None:
    clock = SilenceClock(300)
    assert clock.deadline() is None
    assert clock.submitted(1000) is True
    assert clock.deadline() == 1300
    assert clock.submitted(1100) is False
    assert clock.deadline() == 1300


def test_each_output_restarts_it_and_the_last_end_stops_it() -> None:
    clock = SilenceClock(300)
    clock.submitted(0)
    clock.heard(250)
    assert clock.deadline() == 550
    clock.nothing_owed()
    assert clock.deadline() is None
    clock.heard(400)
    assert not clock.running
