"""The worker that has most of the prompt in its KV cache, as far as one can tell from what was sent where.

The ZMQ engines send no KV events, so the policy keeps an approximate tree of prompts per model (see `prefix_tree`).
A match shorter than the threshold, or a worker far busier than the rest, is passed over for the least loaded one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from smg_trio.routing.policies.base import C, CacheStatistics, Policy, PolicyStatistics, RoutingContext
from smg_trio.routing.policies.least_load import LeastLoad
from smg_trio.routing.policies.prefix_tree import Path, PrefixTree
from smg_trio.routing.policies.token_bytes import TOKEN_BYTES, token_bytes

_LEAST_MARGIN = 4.0
_RATIO_BOUNDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class CacheAwareOptions:
    """When a matching prefix decides, and how much is remembered.

    Attributes:
        cache_threshold: share of the prompt (0..1) that must match before a worker is preferred for it.
        balance_abs_threshold: a matching worker is passed over if its load is above the mean by more than this …
        balance_rel_threshold: … and above this multiple of the mean.
        max_tree_size: tokens in each model's tree.
        block_size: tokens per block; prompts are told apart at multiples of it.
    """

    cache_threshold: float = 0.3
    balance_abs_threshold: float = 64.0
    balance_rel_threshold: float = 1.5
    max_tree_size: int = 67108864
    block_size: int = 16

    def spills(self, load: float, mean: float) -> bool:
        """Whether a worker of that load is too busy to be preferred.

        The absolute margin is capped at what chance alone makes of the mean (two standard deviations, at least
        four requests), since a small pool would otherwise never reach it.
        """
        margin = min(self.balance_abs_threshold, max(_LEAST_MARGIN, 2.0 * sqrt(mean)))
        return load > mean + margin and load > mean * self.balance_rel_threshold


class CacheAware(Policy):
    """Costs one pass over the prompt in C, plus a few steps per branching; nothing with a single candidate."""

    name = "cache_aware"

    def __init__(self, options: CacheAwareOptions | None = None) -> None:
        self._options = options or CacheAwareOptions()
        self._trees: dict[str, PrefixTree] = {}
        self._bits: dict[str, int] = {}
        self._least_load = LeastLoad()
        self._branches = {"tree_match": 0, "spill": 0, "no_match": 0, "short_prompt": 0}
        self._ratios = [0] * (len(_RATIO_BOUNDS) + 1)
        self._ratio_sum = 0.0

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if len(candidates) == 1:
            return candidates[0]
        prompt = token_bytes(context.prompt_token_ids)
        if prompt is None or len(prompt) < self._options.block_size * TOKEN_BYTES:
            self._branches["short_prompt"] += 1
            return self._least_load.choose(candidates, context, now)
        tree = self._tree(context.model or candidates[0].spec.model_id)
        path = tree.find(prompt)
        ratio = path[-1][1] / len(prompt) if path else 0.0
        self._ratios[bisect_left(_RATIO_BOUNDS, ratio)] += 1
        self._ratio_sum += ratio
        chosen = self._holder(candidates, path, len(prompt))
        if chosen is None:
            chosen = self._least_load.choose(candidates, context, now)
        tree.claim(prompt, path, self._bit(chosen.spec.worker_id))
        return chosen

    def _holder(self, candidates: Sequence[C], path: Path, length: int) -> C | None:
        needed = self._options.cache_threshold * length
        for node, end in reversed(path):
            if end <= needed:
                break
            holders = [one for one in candidates if node.owners & self._bits.get(one.spec.worker_id, 0)]
            if holders:
                chosen = min(holders, key=lambda one: one.load)
                mean = sum(one.load for one in candidates) / len(candidates)
                spills = self._options.spills(chosen.load, mean)
                self._branches["spill" if spills else "tree_match"] += 1
                return None if spills else chosen
        self._branches["no_match"] += 1
        return None

    def _tree(self, model_id: str) -> PrefixTree:
        tree = self._trees.get(model_id)
        if tree is None:
            tree = self._trees[model_id] = PrefixTree(self._options.max_tree_size, self._options.block_size)
        return tree

    def _bit(self, worker_id: str) -> int:
        bit = self._bits.get(worker_id)
        if bit is None:
            taken = sum(self._bits.values())
            bit = self._bits[worker_id] = ~taken & (taken + 1)
        return bit

    def cache_lost(self, worker_id: str) -> None:
        """See `Policy.cache_lost`."""
        bit = self._bits.pop(worker_id, 0)
        if bit:
            for model_id, tree in list(self._trees.items()):
                tree.forget(bit)
                if not len(tree):
                    del self._trees[model_id]

    def forget(self, worker_id: str) -> None:
        """See `Policy.forget`."""
        self.cache_lost(worker_id)

    def statistics(self) -> PolicyStatistics:
        """See `Policy.statistics`."""
        cache = CacheStatistics(
            branches=dict(self._branches),
            ratio_bounds=_RATIO_BOUNDS,
            ratio_counts=list(self._ratios),
            ratio_sum=self._ratio_sum,
            trees={model: (tree.tokens, tree.owners().bit_count()) for model, tree in self._trees.items()},
        )
        return PolicyStatistics(cache=cache)
