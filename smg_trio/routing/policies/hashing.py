"""Policies that hash: a client's routing key, or the first tokens of a prompt, names the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from smg_trio.routing.policies.base import C, Policy, RoutingContext
from smg_trio.routing.policies.consistent_hashing import Rendezvous, stable_hash
from smg_trio.routing.policies.token_bytes import TOKEN_BYTES, token_bytes


class ConsistentHashing(Policy):
    """One routing key, one worker, whatever its load; requests without a key go anywhere."""

    name = "consistent_hashing"

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._rendezvous = Rendezvous()

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if context.routing_key is None:
            return candidates[self._random.randrange(len(candidates))]
        key = stable_hash(context.routing_key.encode("utf-8", "surrogateescape"))
        return self._rendezvous.first(key, candidates)

    def forget(self, worker_id: str) -> None:
        """See `Policy.forget`."""
        self._rendezvous.forget(worker_id)


@dataclass(frozen=True, slots=True)
class PrefixHashOptions:
    """What is hashed, and when the chosen worker is too busy.

    Attributes:
        prefix_token_count: how many tokens of the prompt are hashed.
        load_factor: a worker above this multiple of the mean load …
        balance_abs_threshold: … and above the mean by more than this many requests is passed over.
    """

    prefix_token_count: int = 256
    load_factor: float = 1.25
    balance_abs_threshold: float = 10.0


class PrefixHash(Policy):
    """Prompts with the same beginning go to the same worker, unless it is far busier than the others."""

    name = "prefix_hash"

    def __init__(self, options: PrefixHashOptions | None = None) -> None:
        self._options = options or PrefixHashOptions()
        self._rendezvous = Rendezvous()

    def choose(self, candidates: Sequence[C], context: RoutingContext, now: float) -> C:
        """See `Policy.choose`."""
        if len(candidates) == 1:
            return candidates[0]
        prompt, count = context.prompt_token_ids, self._options.prefix_token_count
        data = token_bytes(prompt[: count * TOKEN_BYTES] if isinstance(prompt, bytes) else prompt[:count])
        ordered = self._rendezvous.order(stable_hash(data or b""), candidates)
        mean = sum(candidate.load for candidate in candidates) / len(candidates)
        limit = max(mean * self._options.load_factor, mean + self._options.balance_abs_threshold)
        # The mean itself is never above the limit, so somebody is always found.
        return next(candidate for candidate in ordered if candidate.load <= limit)

    def forget(self, worker_id: str) -> None:
        """See `Policy.forget`."""
        self._rendezvous.forget(worker_id)
