"""The worker with the fewest requests, by our own count or its engines' word, whichever is higher; ties rotate."""

from __future__ import annotations

from collections.abc import Sequence

from smg_trio.routing.policies.base import C, Policy, RoutingContext, least_loaded


class LeastLoad(Policy):
    """Load is counted per engine, so that a group of four may hold four times what a single engine does."""

    name = "least_load"

    def __init__(self) -> None:
        self._next_start = 0

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if len(candidates) == 1:
            return candidates[0]
        self._next_start += 1
        return least_loaded(candidates, self._next_start - 1)
