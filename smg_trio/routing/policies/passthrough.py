"""No choice: the first ready worker. For one worker, where anything else would be wasted work."""

from __future__ import annotations

from collections.abc import Sequence

from smg_trio.routing.policies.base import C, Policy, RoutingContext


class Passthrough(Policy):
    """With several workers the later ones are stand-ins, used while the earlier ones are not ready."""

    name = "passthrough"

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        return candidates[0]
