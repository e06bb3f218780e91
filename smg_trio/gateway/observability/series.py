"""Counters and histograms that one thread writes and reads, at a third of what the library's cost: they take no locks.

A family makes its series when they are first asked for; callers that count often keep the series, not its labels.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LATENCY_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
PER_TOKEN_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip


class CounterSeries:
    """One series. ``value`` never falls."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count."""
        self.value += amount


class HistogramSeries:
    """One series.

    Attributes:
        bounds: upper bounds of the buckets, ascending, without infinity.
        counts: int[B+1], each bucket by itself; for `Pace`, which adds to them directly.
        sum: of everything observed.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


Series = TypeVar("Series", CounterSeries, HistogramSeries)


class _Family(Collector, Generic[Series]):
    """All series of one name, by the values of their labels."""

    def __init__(self, registry: CollectorRegistry, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._meaning = meaning
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def at(self, *labels: str) -> Series:
        """The series with these values, which is made if there is none."""
        series = self._series.get(labels)
        if series is None:
            assert len(labels) == len(self._labels), f"{self.name} has the labels {self._labels}"
            series = self._series[labels] = self._make()
        return series

    def drop(self, label: str, value: str) -> None:
        """Forget every series that has `value` there: what it tells of is gone for good."""
        place = self._labels.index(label)
        for labels in [labels for labels in self._series if labels[place] == value]:
            del self._series[labels]

    @abstractmethod
    def _make(self) -> Series: ...


class CounterFamily(_Family[CounterSeries]):
    """A name (without ``_total``), what it means, its labels."""

    def values(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Labels and value of every series."""
        return ((labels, series.value) for labels, series in self._series.items())

    def _make(self) -> CounterSeries:
        return CounterSeries()

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = CounterMetricFamily(self.name, self._meaning, labels=self._labels)
        for labels, series in self._series.items():
            family.add_metric(labels, series.value)
        yield family


class HistogramFamily(_Family[HistogramSeries]):
    """As `CounterFamily`, with the upper bounds of the buckets."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> None:
        self._bounds = tuple(bounds)
        super().__init__(registry, name, meaning, labels)

    def _make(self) -> HistogramSeries:
        return HistogramSeries(self._bounds)

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = HistogramMetricFamily(self.name, self._meaning, labels=self._labels)
        for labels, series in self._series.items():
            family.add_metric(labels, cumulative(series.bounds, series.counts), series.sum)
        yield family


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: each upper bound with the number of values up to it, infinity last."""
    buckets, total = [], 0
    for bound, count in zip((*bounds, inf), counts, strict=True):
        total += count
        buckets.append((bound_text(bound), float(total)))
    return buckets


def bound_text(bound: float) -> str:
    """A bound as a label has it."""
    return "+Inf" if bound == inf else repr(float(bound))
