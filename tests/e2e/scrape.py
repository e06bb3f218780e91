"""What the metrics listener shows, read as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from .harness import Bench

COUNT_SUFFIXES = ("_bucket", "_count", "_sum", "_total")


class Scrape:
    """One scrape.

    Attributes:
        families: by name, as the parser has them (counters without ``_total``).
    """

    def __init__(self, text: str) -> None:
        self.families: Mapping[str, Any] = {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of that full name that have these labels; 0 if there are none."""
        return sum(sample.value for sample in self.samples() if sample.name == name and _has(sample, labels))

    def samples(self) -> Iterator[Any]:
        """Every sample."""
        for family in self.families.values():
            yield from family.samples

    def series(self) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        """Every series: name and labels."""
        return {(sample.name, tuple(sorted(sample.labels.items()))) for sample in self.samples()}


def _has(sample: Any, labels: Mapping[str, str]) -> bool:
    return {name.rstrip("_"): value for name, value in labels.items()}.items() <= sample.labels.items()


async def scrape(bench: Bench) -> Scrape:
    """Scrape the gateway."""
    answer = await bench.http.get(bench.metrics_url)
    assert answer.status_code == 200
    return Scrape(answer.text)
