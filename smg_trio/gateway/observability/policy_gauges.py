"""Metrics of the routing policies that remember something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.gateway.observability.series import cumulative

if TYPE_CHECKING:
    from smg_trio.routing.policies.base import CacheStatistics
    from smg_trio.routing.registry import Registry


class PolicyGauges(Collector):
    """What the policy in use knows."""

    def __init__(self, workers: Registry) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """See `Collector`; nothing for policies that remember nothing."""
        seen = self._workers.policy_statistics()
        if seen.cache is not None:
            yield from _cache_families(seen.cache)
        if seen.routing_keys is not None:
            yield GaugeMetricFamily(
                "smg_manual_policy_cache_entries", "Routing keys in the table.", value=sum(seen.routing_keys.values())
            )


def _cache_families(seen: CacheStatistics) -> Iterator[Metric]:
    branches = CounterMetricFamily(
        "smg_cache_aware_policy_branch",
        "How cache_aware chose among several workers: tree_match, spill (the one that matched was too busy), "
        "no_match, short_prompt.",
        labels=("branch",),
    )
    for branch, count in seen.branches.items():
        branches.add_metric((branch,), count)
    ratio = HistogramMetricFamily(
        "smg_cache_aware_match_ratio", "Share of a prompt (0..1) that matched when cache_aware chose."
    )
    ratio.add_metric((), cumulative(seen.ratio_bounds, seen.ratio_counts), seen.ratio_sum)
    tokens = GaugeMetricFamily("smg_cache_tree_tokens", "Size of the prefix tree in tokens.", labels=("model",))
    tenants = GaugeMetricFamily(
        "smg_cache_tree_tenants", "Workers with prompts in the prefix tree.", labels=("model", "tree")
    )
    for model, (size, owners) in seen.trees.items():
        tokens.add_metric((model,), size)
        tenants.add_metric((model, "token"), owners)
    yield from (branches, ratio, tokens, tenants)
