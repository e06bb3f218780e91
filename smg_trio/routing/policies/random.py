"""Policies that draw: one worker at random, or the less loaded of two."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from smg_trio.routing.policies.base import C, Policy, RoutingContext


class RandomChoice(Policy):
    """Any ready worker, each as likely as the other."""

    name = "random"

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        return candidates[self._random.randrange(len(candidates))]


class PowerOfTwo(Policy):
    """Two different workers are drawn, the less loaded one is taken; of equals the first drawn."""

    name = "power_of_two"

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if len(candidates) == 1:
            return candidates[0]
        first, second = self._random.sample(candidates, 2)
        return second if second.load < first.load else first
