"""Metrics of plug-ins: what failed in their calls, and how long they held the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from smg_trio.core.plugin_calls import PluginCalls


class PluginGauges(Collector):
    """The plug-ins that are loaded; nothing where there are none."""

    def __init__(self, plugins: Sequence[PluginCalls]) -> None:
        """`plugins`: grows with those that are loaded later."""
        self._plugins = plugins

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        if not self._plugins:
            return
        labels = ("kind", "plugin")
        faults = CounterMetricFamily(
            "smg_plugin_faults",
            "Calls of a plug-in that raised, were late, or returned what they must not.",
            labels=labels,
        )
        stalls = CounterMetricFamily(
            "smg_plugin_stalls", "Calls that held the event loop for more than 0.1 s.", labels=labels
        )
        longest = GaugeMetricFamily("smg_plugin_longest_stall_seconds", "The longest of those calls.", labels=labels)
        off = GaugeMetricFamily("smg_plugin_off", "1 if the plug-in is not called any more.", labels=labels)
        for calls in self._plugins:
            at = (calls.kind, calls.name)
            faults.add_metric(at, calls.faults)
            stalls.add_metric(at, calls.stalls)
            longest.add_metric(at, calls.longest_s)
            off.add_metric(at, float(bool(calls.off)))
        yield from (faults, stalls, longest, off)
