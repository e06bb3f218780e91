"""Policies: each chooses one of the ready workers of a model. `by_name` is the list users see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from smg_trio.routing.policies.base import Policy
from smg_trio.routing.policies.least_load import LeastLoad
from smg_trio.routing.policies.round_robin import RoundRobin

by_name: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {"least_load": LeastLoad, "round_robin": RoundRobin, "passthrough": RoundRobin}
)
"""Names of `--policy`. `passthrough` means there is nothing to choose (one worker)."""

__all__ = ["LeastLoad", "Policy", "RoundRobin", "by_name"]
