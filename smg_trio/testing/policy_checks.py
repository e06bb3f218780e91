"""The laws of routing policies, for those that are plug-ins."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from smg_trio.core.workers import WorkerSpec
from smg_trio.plugins import PolicyContext, PolicyStatistics, RoutingContext
from smg_trio.testing.plugin_faults import CheckFailed

_ROUNDS: Final = 500
Factory = Callable[[PolicyContext], Any]


class Stand:
    """A stand-in for a worker."""

    def __init__(self, number: int, load: float = 0.0) -> None:
        self.spec = WorkerSpec(worker_id=f"w{number}", url=f"ipc:///run/check/{number}", model_id="checked")
        self.load = load

    def __repr__(self) -> str:
        return f"{self.spec.worker_id} (load {self.load:g})"


def _context(random: Random) -> RoutingContext:
    key = random.choice([None, "alice", "bob", "🌊", "x" * 500])
    return RoutingContext(random.choices(range(1000), k=random.randint(1, 300)), key)


def _made(factory: Factory, options: Mapping[str, str], seed: int = 1) -> Any:
    return factory(PolicyContext(random=Random(seed), options=options))  # a policy's chance, not a secret


def _chosen(policy: Any, candidates: list[Stand], context: RoutingContext, now: float) -> Any:
    before = list(candidates)
    try:
        chosen = policy.choose(candidates, context, now)
    except Exception as error:
        raise CheckFailed(f"choose among {before} raised {type(error).__name__}: {error}") from error
    if not any(chosen is candidate for candidate in before):
        raise CheckFailed(f"choose among {before} returned {chosen!r}, which is not one of them")
    if candidates != before:
        raise CheckFailed(f"choose changed the list of candidates {before} to {candidates}")
    return chosen


def chooses_a_candidate(factory: Factory, options: Mapping[str, str], random: Random) -> None:
    """Whatever the fleet and the request, the choice is a candidate."""
    policy, fleet = _made(factory, options), [Stand(number) for number in range(8)]
    for number in range(_ROUNDS):
        candidates = random.sample(fleet, random.randint(1, len(fleet)))
        for candidate in candidates:
            candidate.load = random.choice([0.0, 1.0, 0.5, 100.0, 1e9])
        _chosen(policy, candidates, _context(random), number / 10)
        if number % 50 == 49:
            _told(policy, random.choice(fleet).spec.worker_id)


def _told(policy: Any, worker_id: str) -> None:
    for method in (policy.forget, policy.cache_lost):
        try:
            method(worker_id)
        except Exception as error:
            raise CheckFailed(f"{method.__name__} raised {type(error).__name__}: {error}") from error


def follows_its_seed(factory: Factory, options: Mapping[str, str], random: Random) -> None:
    """Two policies of one seed choose the same."""
    fleet = [Stand(number, random.random()) for number in range(5)]
    requests = [_context(random) for _ in range(100)]
    one, other = _made(factory, options, 7), _made(factory, options, 7)
    for number, context in enumerate(requests):
        first = _chosen(one, list(fleet), context, number)
        second = _chosen(other, list(fleet), context, number)
        if first is not second:
            raise CheckFailed(f"with one seed, request {number} goes to {first} and to {second}")


def forgets(factory: Factory, options: Mapping[str, str], random: Random) -> None:
    """A worker that is gone is held by nothing, and another one takes its place."""
    policy = _made(factory, options)
    fleet: list[Stand] = [Stand(number) for number in range(4)]
    requests = [_context(random) for _ in range(50)]
    for number, context in enumerate(requests):
        _chosen(policy, list(fleet), context, number)
    gone = [weakref.ref(worker) for worker in fleet]
    for worker in fleet:
        _told(policy, worker.spec.worker_id)
    del worker
    fleet = [Stand(number) for number in range(10, 13)]
    for number, context in enumerate(requests):
        _chosen(policy, list(fleet), context, 100 + number)
    gc.collect()
    if any(reference() is not None for reference in gone):
        raise CheckFailed("workers that forget was told of are still held")


def has_statistics(factory: Factory, options: Mapping[str, str], random: Random) -> None:
    """`statistics` returns PolicyStatistics."""
    policy = _made(factory, options)
    _chosen(policy, [Stand(1), Stand(2)], _context(random), 0.0)
    found = policy.statistics()
    if not isinstance(found, PolicyStatistics):
        raise CheckFailed(f"statistics returned {found!r}, not a PolicyStatistics")


POLICY_CHECKS: Final[Mapping[str, Callable[[Factory, Mapping[str, str], Random], None]]] = {
    "the choice is one of the candidates": chooses_a_candidate,
    "one seed gives one sequence of choices": follows_its_seed,
    "forget drops all that is known of a worker": forgets,
    "statistics has its form": has_statistics,
}
