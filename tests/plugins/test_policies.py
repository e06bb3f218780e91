"""Policies of plug-ins: every request is routed, whatever they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.plugins import Policy, PolicyContext, RoutingContext
from smg_trio.routing.policies import GuardedPolicy, PolicyOptions, PolicyPlugin, make_policy
from tests.routing.policies.fleet import fleet

CONTEXT = RoutingContext(range(10))


class First(Policy):
    """The first candidate."""

    name = "first"

    def __init__(self, context: PolicyContext) -> None:
        self.context = context
        self.forgotten: list[str] = []

    def choose(self, candidates: Sequence[Any], context: RoutingContext, now: float) -> Any:
        return candidates[0]

    def forget(self, worker_id: str) -> None:
        self.forgotten.append(worker_id)


def broken(choose: Callable[..., Any]) -> Callable[[PolicyContext], Policy]:
    class Broken(First):
        def choose(self, candidates: Sequence[Any], context: RoutingContext, now: float) -> Any:
            return choose(candidates)

        def forget(self, worker_id: str) -> None:
            raise RuntimeError

        cache_lost = forget

        def statistics(self) -> Any:
            return 5

    return Broken


def guarded(factory: Callable[[PolicyContext], Policy]) -> tuple[GuardedPolicy, PluginCalls]:
    calls = PluginCalls("policy", "first", "d 1.0")
    return GuardedPolicy(PolicyPlugin("first", factory, calls, {"prefer": "w0"}), Random(1)), calls


def test_a_plug_in_chooses() -> None:
    made: list[First] = []

    def factory(context: PolicyContext) -> First:
        made.append(First(context))
        return made[-1]

    policy, calls = guarded(factory)
    workers = fleet(3)
    assert policy.choose(workers, CONTEXT, 0.0) is workers[0]
    policy.forget("w0")
    assert made[0].forgotten == ["w0"]
    assert made[0].context.options == {"prefer": "w0"}
    assert calls.faults == 0


WRONG: dict[str, Callable[..., Any]] = {
    "raises": lambda candidates: 1 / 0,
    "a stranger": lambda candidates: fleet(9)[8],
    "an index": lambda candidates: 0,
    "nothing": lambda candidates: None,
}


@pytest.mark.parametrize("case", WRONG)
def test_least_load_decides_where_it_fails(case: str, caplog: pytest.LogCaptureFixture) -> None:
    policy, calls = guarded(broken(WRONG[case]))
    workers = fleet(3)
    for worker, load in zip(workers, (3, 1, 2), strict=True):
        worker.load = load
    with caplog.at_level(logging.ERROR):
        assert policy.choose(workers, CONTEXT, 0.0) is workers[1]
        policy.forget("w0")
        policy.cache_lost("w0")
        assert policy.statistics().cache is None
    assert calls.faults == 4
    assert "policy first (d 1.0) failed" in caplog.text
    assert "least_load decides" in caplog.text


def test_ten_faults_in_a_minute_turn_it_off_for_good() -> None:
    asked: list[int] = []

    def choose(candidates: Sequence[Any]) -> Any:
        asked.append(len(candidates))
        raise RuntimeError

    policy, calls = guarded(broken(choose))
    workers = fleet(2)
    for number in range(9):
        policy.choose(workers, CONTEXT, number)
    assert not calls.off
    policy.choose(workers, CONTEXT, 60.0)
    assert "10 faults within 60 s" in calls.off
    policy.choose(workers, CONTEXT, 9999.0)
    assert len(asked) == 10


def test_ten_faults_in_a_longer_time_do_not() -> None:
    policy, calls = guarded(broken(WRONG["raises"]))
    for number in range(40):
        policy.choose(fleet(2), CONTEXT, number * 7.0)
    assert not calls.off


def test_routing_keys_stick_on_a_plug_in_too() -> None:
    class Turns(First):
        turn = 0

        def choose(self, candidates: Sequence[Any], context: RoutingContext, now: float) -> Any:
            self.turn += 1
            return candidates[self.turn % len(candidates)]

    plugin = PolicyPlugin("turns", Turns, PluginCalls("policy", "turns"))
    policy = make_policy("turns", PolicyOptions(sticky=True), Random(1), plugin)
    workers = fleet(3)
    chosen = [policy.choose(workers, RoutingContext(range(3), "alice"), 0.0) for _ in range(4)]
    assert len({id(worker) for worker in chosen}) == 1
