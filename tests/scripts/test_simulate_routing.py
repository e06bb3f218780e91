"""The simulation of routing: its caches, its traces, and the order of the rules that the docs show."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from routing_simulation.engine import Cache  # noqa: E402
from routing_simulation.rules import RULES  # noqa: E402
from routing_simulation.run import Fleet, Outcome, Run  # noqa: E402
from routing_simulation.traces import KINDS, Session, Turn, read, totals, write  # noqa: E402

SEEDS = (21, 22)


def outcome(rule: str, kind: str, rate: float, seed: int, fleet: Fleet | None = None) -> Outcome:
    trace = KINDS[kind](Random(seed), rate, 240)
    return Run(fleet or Fleet(), RULES[rule], seed).run(trace, 60)


def test_our_score_has_the_best_hit_rate_and_the_best_p95_where_caches_overflow() -> None:
    names = ("round robin", "events, SMG's rule", "events, production-stack's rule", "events, plain cost")
    ours = [outcome("events, smg-trio", "chat", 5, seed) for seed in SEEDS]
    for name in names:
        others = [outcome(name, "chat", 5, seed) for seed in SEEDS]
        assert sum(one.hit for one in ours) > sum(one.hit for one in others), name
        assert sum(one.quantile(0.95) for one in ours) < sum(one.quantile(0.95) for one in others), name


def test_where_caches_suffice_it_is_near_a_cache_without_end() -> None:
    trace = KINDS["chat"](Random(SEEDS[0]), 3, 240)
    sums = totals(trace)
    ours = Run(Fleet(), RULES["events, smg-trio"], 1).run(trace)
    turns = Run(Fleet(), RULES["round robin"], 1).run(trace)
    assert 0.93 * sums.cached / sums.prompt <= ours.hit <= sums.cached / sums.prompt
    assert ours.hit > 2 * turns.hit
    assert ours.quantile(0.95) < 0.4 * turns.quantile(0.95)
    assert ours.imbalance < 1.2


@pytest.mark.parametrize("rule", RULES)
def test_one_seed_gives_one_outcome_and_every_request_is_answered(rule: str) -> None:
    fleet = Fleet(engines=3, blocks=3_000, lost=0.1, gateways=2)
    trace = KINDS["agents"](Random(5), 1, 60)
    first, second = (Run(fleet, RULES[rule], 5).run(trace) for _ in range(2))
    assert first == second
    assert len(first.first_tokens) == sum(len(one.turns) for one in trace)


def test_with_one_engine_and_room_for_all_the_hits_are_those_that_can_be() -> None:
    trace = KINDS["documents"](Random(3), 0.5, 120)
    sums = totals(trace)
    result = Run(Fleet(engines=1, blocks=10**6, rate=1e9, token_s=0.0), RULES["events, smg-trio"], 1).run(trace)
    assert result.prompt == sums.prompt
    assert result.prompt - result.computed == sums.cached


def test_a_session_waits_for_its_answer_before_it_goes_on() -> None:
    session = Session(1.0, [("system", 10)], [Turn(0.0, 160, 16), Turn(2.0, 16, 16)])
    result = Run(Fleet(engines=1, token_s=0.1), RULES["round robin"], 1).run([session])
    assert result.first_tokens == pytest.approx([320 / 10_000, 16 / 10_000])  # then only what was added


def test_the_cache_evicts_the_tail_of_what_was_used_longest_ago_and_nothing_held() -> None:
    changes: list[tuple[str, int]] = []
    cache = Cache(10, lambda segment, blocks: changes.append((segment, blocks)))
    for segment in ("a", "b"):
        path = [("shared", 2), (segment, 3)]
        cache.hold(path)
        assert cache.take(5 - cache.matched(path))
        cache.store(path)
        cache.release(path)
    assert cache.take(4)
    assert changes[-1] == ("a", 1)
    assert cache.matched([("shared", 2), ("b", 3)]) == 5
    cache.hold([("shared", 2), ("b", 3)])
    assert not cache.take(2)
    assert cache.take(1)
    assert cache.matched([("shared", 2), ("a", 3)]) == 2


def test_a_trace_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    for kind, make in KINDS.items():
        trace = make(Random(1), 1, 30)
        write(trace, tmp_path / kind)
        assert read(tmp_path / kind) == trace
    (tmp_path / "bad").write_text('{"at": "x", "prefix": [], "turns": []}\n')
    with pytest.raises(TypeError, match="not a session"):
        read(tmp_path / "bad")
