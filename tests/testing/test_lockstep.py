from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.testing.lockstep import LockstepGroup, LockstepRank


def group_of(size: int, *, sync_interval: int = 1) -> tuple[LockstepGroup, list[LockstepRank]]:
    group = LockstepGroup(size, sync_interval=sync_interval)
    return group, [group.join(rank) for rank in range(size)]


def test_a_rank_alone_with_its_work_is_stuck_until_the_others_are_woken() -> None:
    _, (first, second) = group_of(2)
    first.set_unfinished(True)
    assert first.stuck
    assert second.start_wave(0)
    assert not first.stuck


def test_work_at_every_rank_needs_no_wake_up() -> None:
    _, (first, second) = group_of(2)
    first.set_unfinished(True)
    second.set_unfinished(True)
    assert not first.stuck


def test_a_missing_rank_keeps_the_group_stuck() -> None:
    group, (first, second) = group_of(2)
    first.start_wave(0)
    second.start_wave(0)
    assert not first.stuck
    group.leave(1)
    assert first.stuck


def test_all_ranks_report_their_own_wave_when_nobody_has_work() -> None:
    _, (first, second) = group_of(2)
    first.start_wave(3)
    second.start_wave(5)
    first.finish_step()
    assert (first.completed, second.completed) == ([3], [5])
    assert (first.wave, second.wave) == (4, 6)
    assert not first.participates


def test_ranks_ask_each_other_at_step_one_and_then_at_each_interval_only() -> None:
    _, (first, second) = group_of(2, sync_interval=4)
    first.set_unfinished(True)
    second.start_wave(0)
    first.finish_step()
    first.set_unfinished(False)
    for _ in range(2):
        first.finish_step()
        assert first.running
    first.finish_step()
    assert first.completed == [0]


def test_becoming_complete_is_told_to_every_rank() -> None:
    _, ranks = group_of(2)
    told: list[int] = []
    for number, rank in enumerate(ranks):
        rank.notify = lambda number=number: told.append(number)
    ranks[0].set_unfinished(True)
    assert told == []
    ranks[1].start_wave(0)
    assert told == [0, 1]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=20))
def test_waves_never_decrease_and_stale_ones_change_nothing(wakes: list[tuple[int, int]]) -> None:
    _, ranks = group_of(3)
    for number, wave in wakes:
        before = ranks[number].wave
        assert ranks[number].start_wave(wave) == (wave >= before)
        assert ranks[number].wave == max(before, wave)
