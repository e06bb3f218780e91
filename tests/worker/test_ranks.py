from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.engines import EngineLoad
from smg_trio.worker.ranks import RankSelector, rank_score


class Floor(Counter[int]):
    """In-flight counts by rank."""


def selector(count: int) -> tuple[RankSelector, Floor]:
    floor = Floor()
    return RankSelector(count, floor.__getitem__), floor


def test_a_cold_burst_spreads_across_ranks() -> None:
    ranks, floor = selector(4)
    for _ in range(16):
        floor[ranks.select([0, 1, 2, 3])] += 1
    assert floor == {0: 4, 1: 4, 2: 4, 3: 4}


def test_ties_rotate() -> None:
    ranks, _ = selector(3)
    assert [ranks.select([0, 1, 2]) for _ in range(4)] == [0, 1, 2, 0]


def test_an_engine_that_says_it_is_busy_is_avoided() -> None:
    ranks, _ = selector(2)
    ranks.report(0, EngineLoad(running=5, waiting=3))
    assert {ranks.select([0, 1]) for _ in range(4)} == {1}


def test_the_last_report_of_an_idle_engine_is_not_believed_for_ever() -> None:
    ranks, floor = selector(2)
    ranks.report(0, EngineLoad(running=5, waiting=3, kv_usage=0.4))
    ranks.idle(0)
    assert ranks.load(0) == EngineLoad(kv_usage=0.4)
    for _ in range(8):
        floor[ranks.select([0, 1])] += 1
    assert floor == {0: 4, 1: 4}


def test_waiting_weighs_more_the_fuller_the_cache() -> None:
    assert rank_score(0, EngineLoad(running=1, waiting=2, kv_usage=0.5)) == 3
    assert rank_score(0, EngineLoad(running=1, waiting=2, kv_usage=1.0)) == 3 + 2 * 6 * 0.5
    assert rank_score(0, EngineLoad(running=3, waiting=0, kv_usage=1.0)) == 3
    assert rank_score(9, EngineLoad(running=3)) == 9


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
def test_the_choice_is_never_busier_than_another(loads: list[tuple[int, int, int]]) -> None:
    ranks, floor = selector(len(loads))
    for rank, (in_flight, running, waiting) in enumerate(loads):
        floor[rank] = in_flight
        ranks.report(rank, EngineLoad(running, waiting, 0.7))
    candidates = list(range(len(loads)))
    chosen = ranks.select(candidates)
    assert ranks.score(chosen) == min(ranks.score(rank) for rank in candidates)


def test_a_lost_rank_starts_from_nothing() -> None:
    ranks, _ = selector(1)
    ranks.report(0, EngineLoad(5, 5, 0.9))
    ranks.forget(0)
    assert ranks.load(0) == EngineLoad()
