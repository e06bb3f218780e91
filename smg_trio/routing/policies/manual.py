"""Sticky sessions: a routing key stays with the worker that got its first request, until it has been idle too long.

Unlike hashing, a new worker takes no keys from the others. A key whose worker is not ready is given to another one
and stays there. As the policy `manual` the first worker is chosen by an assignment mode; around any other policy
(`--routing-key-override`) that policy chooses (`delegate`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from smg_trio.routing.policies.base import C, Policy, PolicyStatistics, RoutingContext
from smg_trio.routing.policies.consistent_hashing import stable_hash
from smg_trio.routing.policies.least_load import LeastLoad
from smg_trio.routing.policies.random import RandomChoice


@dataclass(frozen=True, slots=True)
class ManualOptions:
    """How long a routing key is remembered.

    Attributes:
        max_idle_s: a key that is not used for so long is forgotten.
        max_keys: above this the longest unused key is forgotten, however young.
    """

    max_idle_s: float = 14400.0
    max_keys: int = 200_000


class ManualSessions(Policy):
    """A routing key stays at the worker that was chosen for it first.

    Args:
        choice: chooses for new keys, and for requests without one.
        options: see there.
        name: how `--policy` calls this.
    """

    def __init__(
        self, choice: Policy | None = None, options: ManualOptions | None = None, name: str = "manual"
    ) -> None:
        self.name = name
        self._choice = choice or RandomChoice()
        self._options = options or ManualOptions()
        self._keys: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self.keys_of: Counter[str] = Counter()

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if context.routing_key is None:
            return self._choice.choose(candidates, context, now)
        # Clients choose how long their keys are; a hash keeps the memory per key bounded.
        key = stable_hash(context.routing_key.encode("utf-8", "surrogateescape"))
        self._expire(now)
        pinned = self._keys.get(key)
        if pinned is not None:
            for candidate in candidates:
                if candidate.spec.worker_id == pinned[0]:
                    self._pin(key, pinned[0], now)
                    return candidate
            self._unpin(key)
        chosen = self._choice.choose(candidates, context, now)
        self._pin(key, chosen.spec.worker_id, now)
        return chosen

    def _pin(self, key: int, worker_id: str, now: float) -> None:
        if key not in self._keys:
            self.keys_of[worker_id] += 1
            if len(self._keys) >= self._options.max_keys:
                self._unpin(next(iter(self._keys)))
        self._keys[key] = (worker_id, now)
        self._keys.move_to_end(key)

    def _unpin(self, key: int) -> None:
        worker_id, _ = self._keys.pop(key)
        self.keys_of[worker_id] -= 1
        if not self.keys_of[worker_id]:
            del self.keys_of[worker_id]

    def _expire(self, now: float) -> None:
        while self._keys:
            key = next(iter(self._keys))
            if now - self._keys[key][1] < self._options.max_idle_s:
                return
            self._unpin(key)

    def forget(self, worker_id: str) -> None:
        """See `Policy.forget`."""
        for key in [key for key, (pinned, _) in self._keys.items() if pinned == worker_id]:
            self._unpin(key)
        self._choice.forget(worker_id)

    def cache_lost(self, worker_id: str) -> None:
        """See `Policy.cache_lost`; keys stay where they are."""
        self._choice.cache_lost(worker_id)

    def statistics(self) -> PolicyStatistics:
        """See `Policy.statistics`; those of the policy that chooses, too."""
        return replace(self._choice.statistics(), routing_keys=dict(self.keys_of))


class FewestKeys(Policy):
    """The worker with the fewest routing keys; of equals the less loaded one."""

    name = "min_group"

    def __init__(self) -> None:
        self.keys_of: Counter[str] = Counter()
        self._least_load = LeastLoad()

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        fewest = min(self.keys_of[one.spec.worker_id] for one in candidates)
        emptiest = [one for one in candidates if self.keys_of[one.spec.worker_id] == fewest]
        return self._least_load.choose(emptiest, context, now)


def manual(
    assignment_mode: str = "random", options: ManualOptions | None = None, random: Random | None = None
) -> Policy:
    """The policy `manual`. ``delegate`` has nothing to delegate to here and means the least loaded worker."""
    if assignment_mode == "min_group":
        fewest = FewestKeys()
        sticky = ManualSessions(fewest, options)
        fewest.keys_of = sticky.keys_of
        return sticky
    if assignment_mode == "random":
        return ManualSessions(RandomChoice(random), options)
    return ManualSessions(LeastLoad(), options)
