"""Each ready worker in turn."""

from __future__ import annotations

from collections.abc import Sequence

from smg_trio.routing.policies.base import C, Policy, RoutingContext


class RoundRobin(Policy):
    """Counts requests, not time; a worker that comes or goes only shifts the turn."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return chosen
