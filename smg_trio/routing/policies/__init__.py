"""Policies: each chooses one of the ready workers of a model. `by_name` is the list users see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from smg_trio.routing.policies.base import Policy, RoutingContext
from smg_trio.routing.policies.cache_aware import CacheAware, CacheAwareKnobs
from smg_trio.routing.policies.hashing import ConsistentHashing, PrefixHash, PrefixHashKnobs
from smg_trio.routing.policies.least_load import LeastLoad
from smg_trio.routing.policies.manual import StickyKnobs, StickySessions, manual
from smg_trio.routing.policies.passthrough import Passthrough
from smg_trio.routing.policies.random import PowerOfTwo, RandomChoice
from smg_trio.routing.policies.round_robin import RoundRobin


@dataclass(frozen=True, slots=True)
class PolicyKnobs:
    """The knobs of all policies; each reads its own.

    Attributes:
        assignment_mode: how `manual` places a new routing key.
        sticky: whether routing keys stick on whatever policy (`--routing-key-override`).
    """

    cache_aware: CacheAwareKnobs = field(default_factory=CacheAwareKnobs)
    prefix_hash: PrefixHashKnobs = field(default_factory=PrefixHashKnobs)
    sticky_keys: StickyKnobs = field(default_factory=StickyKnobs)
    assignment_mode: str = "random"
    sticky: bool = False


_makers: Mapping[str, Callable[[PolicyKnobs, Random], Policy]] = {
    "least_load": lambda knobs, random: LeastLoad(),
    "round_robin": lambda knobs, random: RoundRobin(),
    "random": lambda knobs, random: RandomChoice(random),
    "power_of_two": lambda knobs, random: PowerOfTwo(random),
    "passthrough": lambda knobs, random: Passthrough(),
    "consistent_hashing": lambda knobs, random: ConsistentHashing(random),
    "prefix_hash": lambda knobs, random: PrefixHash(knobs.prefix_hash),
    "cache_aware": lambda knobs, random: CacheAware(knobs.cache_aware),
    "manual": lambda knobs, random: manual(knobs.assignment_mode, knobs.sticky_keys, random),
}


def make_policy(name: str, knobs: PolicyKnobs | None = None, random: Random | None = None) -> Policy:
    """The policy that `--policy` calls `name`. Raises KeyError for a name that is not in `by_name`."""
    knobs = knobs or PolicyKnobs()
    policy = _makers[name](knobs, random or Random())
    if knobs.sticky and name != "manual":
        return StickySessions(policy, knobs.sticky_keys, name=policy.name)
    return policy


def _default_maker(name: str) -> Callable[[], Policy]:
    return lambda: make_policy(name)


by_name: Mapping[str, Callable[[], Policy]] = MappingProxyType({name: _default_maker(name) for name in _makers})
"""Names of `--policy`, each with what makes the policy with its default knobs."""

__all__ = [
    "CacheAware",
    "CacheAwareKnobs",
    "ConsistentHashing",
    "LeastLoad",
    "Passthrough",
    "Policy",
    "PolicyKnobs",
    "PowerOfTwo",
    "PrefixHash",
    "PrefixHashKnobs",
    "RandomChoice",
    "RoundRobin",
    "RoutingContext",
    "StickyKnobs",
    "StickySessions",
    "by_name",
    "make_policy",
    "manual",
]
