"""Metrics of workers that are found instead of named. Names, and the labels they share, are the reference gateway's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.gateway.observability.series import CounterFamily, HistogramFamily

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class DiscoveryMetrics(Collector):
    """All by ``source`` (``kubernetes``, ``dns``).

    Attributes:
        registrations: workers that were to be added, by ``result`` (``success``, ``failed``).
        deregistrations: workers that were drained because they are not found any more, by ``reason`` (``reconciled``).
        errors: lists, watches and lookups that failed.
        duration: of making workers what was found.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registrations = CounterFamily(
            registry, "smg_discovery_registrations", "Found workers that were to be added.", ("source", "result")
        )
        self.deregistrations = CounterFamily(
            registry, "smg_discovery_deregistrations", "Workers drained since they are not found any more.",
            ("source", "reason"),
        )  # fmt: skip
        self.errors = CounterFamily(
            registry, "smg_discovery_snapshot_errors", "Lists, watches and lookups that failed.", ("source",)
        )
        self.duration = HistogramFamily(
            registry, "smg_discovery_sync_duration_seconds", "Time until workers are what was found.", ("source",)
        )
        self._counts: list[tuple[str, Callable[[], int]]] = []
        registry.register(self)

    def follow(self, source: str, count: Callable[[], int]) -> None:
        """Show how many workers a source has now, beside others of the same name."""
        self._counts.append((source, count))

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = GaugeMetricFamily(
            "smg_discovery_workers_discovered", "Workers that are there because they were found.", labels=("source",)
        )
        found: Counter[str] = Counter()
        for source, count in self._counts:
            found[source] += count()
        for source, number in found.items():
            family.add_metric((source,), number)
        yield family
