"""Metrics of the cache of tokenized prompt pieces, read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from smg_trio.pipeline.encoding_cache import EncodingCache


class EncodingCounters(Collector):
    """What `EncodingCache` has counted."""

    def __init__(self, cache: EncodingCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        cache = self._cache
        lookups = CounterMetricFamily(
            "smg_tokenizer_cache_lookups", "Pieces of long prompts looked up.", labels=("result",)
        )
        lookups.add_metric(("hit",), cache.hits)
        lookups.add_metric(("miss",), cache.misses)
        yield lookups
        yield CounterMetricFamily(
            "smg_tokenizer_cache_reused_bytes", "Text that was not tokenized again, in characters.", cache.reused_bytes
        )
        yield CounterMetricFamily("smg_tokenizer_cache_evictions", "Pieces evicted.", cache.evictions)
