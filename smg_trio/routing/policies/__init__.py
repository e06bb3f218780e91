"""Policies: each chooses one of the ready workers of a model. `by_name` is the list users see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from smg_trio.routing.policies.base import Policy, RoutingContext
from smg_trio.routing.policies.cache_aware import CacheAware, CacheAwareOptions
from smg_trio.routing.policies.hashing import ConsistentHashing, PrefixHash, PrefixHashOptions
from smg_trio.routing.policies.least_load import LeastLoad
from smg_trio.routing.policies.manual import ManualOptions, ManualSessions, manual
from smg_trio.routing.policies.passthrough import Passthrough
from smg_trio.routing.policies.plugin import GuardedPolicy, PolicyContext, PolicyPlugin
from smg_trio.routing.policies.random import PowerOfTwo, RandomChoice
from smg_trio.routing.policies.round_robin import RoundRobin


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options of all policies; each reads its own.

    Attributes:
        assignment_mode: how `manual` places a new routing key.
        sticky: whether routing keys stick on whatever policy (`--routing-key-override`).
    """

    cache_aware: CacheAwareOptions = field(default_factory=CacheAwareOptions)
    prefix_hash: PrefixHashOptions = field(default_factory=PrefixHashOptions)
    sticky_keys: ManualOptions = field(default_factory=ManualOptions)
    assignment_mode: str = "random"
    sticky: bool = False


_makers: Mapping[str, Callable[[PolicyOptions, Random], Policy]] = {
    "least_load": lambda options, random: LeastLoad(),
    "round_robin": lambda options, random: RoundRobin(),
    "random": lambda options, random: RandomChoice(random),
    "power_of_two": lambda options, random: PowerOfTwo(random),
    "passthrough": lambda options, random: Passthrough(),
    "consistent_hashing": lambda options, random: ConsistentHashing(random),
    "prefix_hash": lambda options, random: PrefixHash(options.prefix_hash),
    "cache_aware": lambda options, random: CacheAware(options.cache_aware),
    "manual": lambda options, random: manual(options.assignment_mode, options.sticky_keys, random),
}


def make_policy(
    name: str, options: PolicyOptions | None = None, random: Random | None = None, plugin: PolicyPlugin | None = None
) -> Policy:
    """The policy that `--policy` calls `name`, or that a plug-in makes.

    Raises KeyError for a name that is not in `by_name`; whatever the plug-in's factory raises.
    """
    options = options or PolicyOptions()
    random = random or Random()
    policy = _makers[name](options, random) if plugin is None else GuardedPolicy(plugin, random)
    if options.sticky and policy.name != "manual":
        return ManualSessions(policy, options.sticky_keys, name=policy.name)
    return policy


def _default_maker(name: str) -> Callable[[], Policy]:
    return lambda: make_policy(name)


by_name: Mapping[str, Callable[[], Policy]] = MappingProxyType({name: _default_maker(name) for name in _makers})
"""Names of `--policy`, each with what makes the policy with its default options."""

__all__ = [
    "CacheAware",
    "CacheAwareOptions",
    "ConsistentHashing",
    "GuardedPolicy",
    "LeastLoad",
    "ManualOptions",
    "ManualSessions",
    "Passthrough",
    "Policy",
    "PolicyContext",
    "PolicyOptions",
    "PolicyPlugin",
    "PowerOfTwo",
    "PrefixHash",
    "PrefixHashOptions",
    "RandomChoice",
    "RoundRobin",
    "RoutingContext",
    "by_name",
    "make_policy",
    "manual",
]
