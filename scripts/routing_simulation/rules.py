"""The rules that are compared: each chooses an engine by what a gateway can know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from routing_simulation.engine import Path, matched
from smg_trio.routing.policies import kv_score


@dataclass(slots=True)
class View:
    """What the gateway knows of one engine.

    Attributes:
        capacity: blocks of its KV cache, from its registration.
        known: segment → blocks, from its events.
        coming: segment → (blocks, requests), of prompts that it has not answered yet.
        sent: segment → blocks, of all that was sent to it: the approximate tree, which never learns of an eviction.
        backlog: blocks that it must compute before the first tokens that are still owed.
        active: requests that it has.
        stored: blocks that it was lately sent to compute.
    """

    capacity: int
    known: dict[str, int] = field(default_factory=dict)
    coming: dict[str, tuple[int, int]] = field(default_factory=dict)
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

    def expect(self, path: Path) -> None:
        """Count a prompt that was sent as if the engine had it already, until `settle`."""
        for segment, blocks in path:
            most, requests = self.coming.get(segment, (0, 0))
            self.coming[segment] = (max(most, blocks), requests + 1)

    def settle(self, path: Path) -> None:
        """The first token has come: from now on the events say what there is."""
        for segment, _ in path:
            most, requests = self.coming[segment]
            if requests == 1:
                del self.coming[segment]
            else:
                self.coming[segment] = (most, requests - 1)

    def matched(self, path: Path) -> int:
        """Blocks of `path` that the engine has, or will have first."""
        return matched(self._has, path) if self.coming else matched(self.known.get, path)

    def _has(self, segment: str, none: int) -> int:
        return max(self.known.get(segment, none), self.coming.get(segment, (none, 0))[0])


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a rule is asked.

    Attributes:
        views: of the engines to choose from.
        path, blocks: the prompt, and its length.
        now: the second.
        random: the source of chance.
    """

    views: Sequence[View]
    path: Path
    blocks: int
    now: float
    random: Random

    def matches(self) -> list[int]:
        """Blocks of the prompt that each engine has, as far as its events tell."""
        return [view.matched(self.path) for view in self.views]

    def lowest(self, costs: Sequence[float]) -> int:
        """The index of the lowest; of equals, any."""
        lowest = min(costs)
        return self.random.choice([index for index, value in enumerate(costs) if value == lowest])


Rule = Callable[[Arrival], int]
"""Chooses an engine: the index of its view."""


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._next = -1

    def __call__(self, asked: Arrival) -> int:
        """Choose."""
        self._next = (self._next + 1) % len(asked.views)
        return self._next


def least_load(asked: Arrival) -> int:
    """Fewest running requests."""
    return asked.lowest([view.active for view in asked.views])


def _plain(asked: Arrival, matches: Sequence[int]) -> int:
    costs = [view.backlog - hit + 2.0 * view.active for view, hit in zip(asked.views, matches, strict=True)]
    return asked.lowest(costs)


def tree_cost(asked: Arrival) -> int:
    """The plain cost, with matches from a tree of what was sent where."""
    return _plain(asked, [matched(view.sent.get, asked.path) for view in asked.views])


def plain_cost(asked: Arrival) -> int:
    """Blocks to compute until the first token and two per running request, with matches from events."""
    return _plain(asked, asked.matches())


def smg(threshold: float) -> Rule:
    """SMG 1.13: the most matching blocks, then the lower load; the least loaded where that one has far too much.

    Args:
        threshold: running requests above the mean, SMG's ``--balance-abs-threshold``.
    """

    def choose(asked: Arrival) -> int:
        loads = [view.active for view in asked.views]
        mean = sum(loads) / len(loads)
        chosen = asked.lowest([load - 1e6 * hit for load, hit in zip(loads, asked.matches(), strict=True)])
        if loads[chosen] > 1.5 * mean and loads[chosen] > mean + threshold:
            return asked.lowest(loads)
        return chosen

    return choose


def production_stack(asked: Arrival) -> int:
    """vLLM production-stack's loadaware: the matching share of the prompt, less the load's distance from the mean."""
    loads = [view.active for view in asked.views]
    mean = sum(loads) / len(loads)
    shares = [hit / max(1, asked.blocks) for hit in asked.matches()]
    return asked.lowest([(load - mean) / max(1.0, mean) - share for load, share in zip(loads, shares, strict=True)])


def ours(asked: Arrival) -> int:
    """`kv_score.best`, as the gateway asks it."""
    candidates = [
        kv_score.Candidate(
            matched=view.matched(asked.path),
            backlog=view.backlog,
            active=view.active,
            stored=view.stored.value(asked.now),
            capacity=view.capacity,
        )
        for view in asked.views
    ]
    return kv_score.best(candidates, asked.blocks, asked.random)


RULES: Mapping[str, Callable[[], Rule]] = {
    "round robin": RoundRobin,
    "least load": lambda: least_load,
    "approximate tree, plain cost": lambda: tree_cost,
    "events, SMG's rule": lambda: smg(64),
    "events, SMG's rule, threshold 4": lambda: smg(4),
    "events, production-stack's rule": lambda: production_stack,
    "events, plain cost": lambda: plain_cost,
    "events, smg-trio": lambda: ours,
}
"""Makers by name."""
