"""Rendezvous hashing, pure: every worker has a score for a key, and the highest score wins.

A key moves only if its own worker goes, or if a new worker scores higher for it (1 key in N): what a hash ring with
virtual nodes approximates, without a ring to keep. It costs one multiplication chain per worker, and gateways of one
host have few. Workers count by URL, so that a restarted gateway sends a key where it went before.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.routing.policies.base import C

_MASK = (1 << 64) - 1


def stable_hash(data: bytes) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _mix(value: int) -> int:
    # The finaliser of splitmix64: every bit of the input moves every bit of the output.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Rendezvous:
    """Orders candidates for a key. Remembers the hash of each worker it has seen."""

    def __init__(self) -> None:
        self._seeds: dict[str, int] = {}

    def order(self, key: int, candidates: Sequence[C]) -> list[C]:
        """All candidates, the key's own worker first, then where it goes should that one not do."""
        return sorted(candidates, key=lambda candidate: self.score(key, candidate), reverse=True)

    def first(self, key: int, candidates: Sequence[C]) -> C:
        """The key's own worker."""
        return max(candidates, key=lambda candidate: self.score(key, candidate))

    def score(self, key: int, candidate: C) -> int:
        """The candidate's 64-bit score for the key."""
        spec = candidate.spec
        seed = self._seeds.get(spec.worker_id)
        if seed is None:
            seed = self._seeds[spec.worker_id] = stable_hash(spec.url.encode("utf-8", "surrogateescape"))
        return _mix(key ^ seed)

    def forget(self, worker_id: str) -> None:
        """The worker has been removed."""
        self._seeds.pop(worker_id, None)
