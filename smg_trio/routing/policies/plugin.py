"""Policies that are plug-ins: a request is routed whatever they do.

`GuardedPolicy` asks the plug-in and checks that its choice is one of the candidates. Where it is not, or the plug-in
raises, `least_load` decides for that request; after ten such faults within a minute the plug-in is not asked any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from smg_trio.core.plugin_calls import PluginCalls, PluginMistake
from smg_trio.routing.policies.base import C, Policy, PolicyStatistics, RoutingContext
from smg_trio.routing.policies.least_load import LeastLoad

if TYPE_CHECKING:
    from random import Random

MOST_FAULTS: Final = 10
"""Faults within `WHILE_S` after which a policy is left off until the gateway is restarted."""
WHILE_S: Final = 60.0
_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What a plug-in's policy is made with.

    Attributes:
        random: the only chance it may use, so that one seed gives one sequence of choices.
        options: of ``--plugin-option NAME.key=value``, by key.
    """

    random: Random
    options: Mapping[str, str] = field(default_factory=lambda: _OPTIONS)


@dataclass(frozen=True, slots=True)
class PolicyPlugin:
    """A loaded plug-in: its factory, where its faults are counted, and the operator's options for it."""

    name: str
    factory: Callable[[PolicyContext], Policy]
    calls: PluginCalls
    options: Mapping[str, str] = field(default_factory=lambda: _OPTIONS)


class GuardedPolicy(Policy):
    """The policy of a plug-in, and `least_load` where that fails."""

    def __init__(self, plugin: PolicyPlugin, random: Random) -> None:
        """Raises whatever the plug-in's factory raises."""
        self.name = plugin.name
        self._policy = plugin.factory(PolicyContext(random=random, options=plugin.options))
        self._calls = plugin.calls
        self._fallback = LeastLoad()
        self._faults: deque[float] = deque(maxlen=MOST_FAULTS)

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if not self._calls.off:
            clock = self._calls.clock
            began = clock()
            try:
                chosen = self._policy.choose(candidates, context, now)
                if not any(chosen is candidate for candidate in candidates):
                    raise PluginMistake(f"it chose {type(chosen).__name__}, which is not one of the candidates")
            except Exception as error:  # noqa: BLE001 - another author's code
                self._fault(error, now)
            else:
                return chosen
            finally:
                self._calls.took(clock() - began)
        return self._fallback.choose(candidates, context, now)

    def forget(self, worker_id: str) -> None:
        """See `Policy.forget`."""
        try:
            self._policy.forget(worker_id)
        except Exception as error:  # noqa: BLE001 - another author's code
            self._calls.fault(error, "it may remember a worker that is gone")

    def cache_lost(self, worker_id: str) -> None:
        """See `Policy.cache_lost`."""
        try:
            self._policy.cache_lost(worker_id)
        except Exception as error:  # noqa: BLE001 - another author's code
            self._calls.fault(error, "it may remember a cache that is gone")

    def statistics(self) -> PolicyStatistics:
        """See `Policy.statistics`."""
        try:
            found = self._policy.statistics()
            if not isinstance(found, PolicyStatistics):
                raise PluginMistake(f"statistics returned {type(found).__name__}")
        except Exception as error:  # noqa: BLE001 - another author's code
            self._calls.fault(error, "it has no statistics in the metrics")
            return PolicyStatistics()
        return found

    def _fault(self, error: Exception, now: float) -> None:
        self._calls.fault(error, "least_load decides for this request")
        self._faults.append(now)
        if len(self._faults) == MOST_FAULTS and now - self._faults[0] <= WHILE_S:
            self._calls.turn_off(f"{MOST_FAULTS} faults within {WHILE_S:g} s: least_load decides until a restart")
