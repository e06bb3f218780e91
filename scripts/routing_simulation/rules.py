"""The rules that are compared: each chooses an engine by what a gateway can know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from routing_simulation.engine import Path, matched
from smg_trio.routing.policies import kv_score


@dataclass(slots=True)
class View:
    """What the gateway knows of one engine.

    Attributes:
        capacity: blocks of its KV cache, from its registration.
        known: segment → blocks, from its events.
        sent: segment → blocks, of all that was sent to it: the approximate tree, which never learns of an eviction.
        backlog: blocks that it must compute before the first tokens that are still owed.
        active: requests that it has.
        stored: blocks that it was lately sent to compute.
    """

    capacity: int
    known: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    backlog: float = 0.0
    active: int = 0
    stored: kv_score.StoredBlocks = field(default_factory=kv_score.StoredBlocks)

    def changed(self, segment: str, blocks: int) -> None:
        """An event: the engine has so many blocks of a segment now."""
        if blocks:
            self.known[segment] = blocks
        else:
            self.known.pop(segment, None)

    def matched(self, path: Path) -> int:
        """Blocks of `path` that the engine has, as far as its events tell."""
        return matched(self.known.get, path)


class Rule(Protocol):
    """Chooses one of the engines for a prompt of so many blocks that arrives at `now`."""

    def __call__(self, views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
        """The index of the engine."""
        ...


def _lowest(costs: Sequence[float], random: Random) -> int:
    lowest = min(costs)
    return random.choice([index for index, value in enumerate(costs) if value == lowest])


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._next = -1

    def __call__(self, views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
        """See `Rule`."""
        self._next = (self._next + 1) % len(views)
        return self._next


def least_load(views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
    """Fewest running requests."""
    return _lowest([view.active for view in views], random)


def _cost(view: View, blocks: int, hit: float) -> float:
    return view.backlog + blocks - hit + 2.0 * view.active


def tree_cost(views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
    """The plain cost, with matches from a tree of what was sent where."""
    return _lowest([_cost(view, blocks, matched(view.sent.get, path)) for view in views], random)


def plain_cost(views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
    """Blocks until the first token and two per running request, with matches from events."""
    return _lowest([_cost(view, blocks, view.matched(path)) for view in views], random)


def smg(views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
    """SMG 1.13: the most matching blocks, then the lower load; the least loaded where the load is out of balance."""
    loads = [view.active for view in views]
    mean = sum(loads) / len(loads)
    chosen = _lowest([(len(views) * 1e6 * -view.matched(path)) + view.active for view in views], random)
    if loads[chosen] > 1.5 * mean and loads[chosen] > mean + 64:
        return _lowest(loads, random)
    return chosen


def production_stack(views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
    """vLLM production-stack's loadaware: the matching share of the prompt, less the load's distance from the mean."""
    mean = sum(view.active for view in views) / len(views)
    shares = [view.matched(path) / max(1, blocks) - (view.active - mean) / max(1.0, mean) for view in views]
    return _lowest([-share for share in shares], random)


def ours(views: Sequence[View], path: Path, blocks: int, now: float, random: Random) -> int:
    """`kv_score.best`, as the gateway asks it."""
    candidates = [
        kv_score.Candidate(
            matched=view.matched(path),
            backlog=view.backlog,
            active=view.active,
            stored=view.stored.value(now),
            capacity=view.capacity,
        )
        for view in views
    ]
    return kv_score.best(candidates, blocks, random)


RULES: Mapping[str, Callable[[], Rule]] = {
    "round robin": RoundRobin,
    "least load": lambda: least_load,
    "approximate tree, plain cost": lambda: tree_cost,
    "events, SMG's rule": lambda: smg,
    "events, production-stack's rule": lambda: production_stack,
    "events, plain cost": lambda: plain_cost,
    "events, smg-trio": lambda: ours,
}
"""Makers by name."""
