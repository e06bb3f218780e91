"""Which engine should compute a prompt, given what each has of it in its KV cache and how much waits there: pure.

The cost of an engine is the time until the first token, counted in blocks to compute: what waits there and what it
would have to compute of the prompt. A block that is computed also takes the place of another one, which may be asked
for again, so each costs more where the cache turns over fast; see docs/adr/0011-score-of-kv-caches.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

from smg_trio.core.records import record

WINDOW = 60.0
"""Seconds after which a stored block counts 1/e in `StoredBlocks`."""
MOST_EVICTION = 8.0
"""The most that a block to compute costs besides its own time, in blocks, however fast the cache turns over …"""
HALF_EVICTION = 3.0
"""… and the square of the turnover, in caches per window, where it costs half of that."""
STORED_WEIGHT = 0.2
"""What each block counted by `StoredBlocks` costs where a cache turns over in a window or less, in blocks."""
ACTIVE_WEIGHT = 4.0
"""What each running request adds to the wait for a first token, in blocks."""


@record
class Candidate:
    """One engine, as the gateway knows it when a prompt arrives. Amounts are in blocks of the KV cache.

    Attributes:
        matched: leading blocks of the prompt that the engine has; those in slower tiers count by their credit (0..1).
        backlog: blocks of other prompts, not cached, that were sent to it and not yet answered by a first token.
        active: requests that it has and has not finished.
        stored: blocks that it has lately begun to store, see `StoredBlocks`; 0 if not known.
        capacity: blocks of its KV cache, by its registration; 0 if not known.
    """

    matched: float
    backlog: float
    active: int
    stored: float = 0.0
    capacity: int = 0


class StoredBlocks:
    """Counts the blocks that an engine begins to store; older ones count less, by a time constant of `WINDOW`.

    Add what is sent to an engine and not matched there, at the choice: an event comes after the prompt is computed.
    """

    __slots__ = ("_at", "_blocks")

    def __init__(self) -> None:
        self._blocks = 0.0
        self._at = 0.0

    def add(self, blocks: float, now: float) -> None:
        """So many more, at `now` (seconds of a monotonic clock)."""
        self._blocks = self.value(now) + blocks
        self._at = now

    def value(self, now: float) -> float:
        """Blocks, each weighted by its age."""
        return self._blocks * exp((self._at - now) / WINDOW) if self._blocks else 0.0


def cost(candidate: Candidate, prompt_blocks: int) -> float:
    """What it would cost to compute the prompt there, in blocks: no less than is computed before its first token.

    Where the capacity is not known, or hardly any of it was stored lately, evictions cost nothing.
    """
    turnover = (candidate.stored / candidate.capacity) ** 2 if candidate.capacity else 0.0
    missing = max(0.0, prompt_blocks - candidate.matched)
    eviction = MOST_EVICTION * turnover / (HALF_EVICTION + turnover)
    evenness = STORED_WEIGHT * candidate.stored * min(1.0, turnover)
    return candidate.backlog + missing * (1.0 + eviction) + evenness + ACTIVE_WEIGHT * candidate.active


def best(
    candidates: Sequence[Candidate],
    prompt_blocks: int,
    rng: Random,
    *,
    overlap_decay: float = 0.0,
    temperature: float = 0.0,
) -> int:
    """The index of the candidate with the lowest cost; of equals, any.

    Args:
        candidates: at least one.
        prompt_blocks: blocks of the prompt, the last of which may be begun.
        rng: decides between equals, and at a temperature above 0.
        overlap_decay: SMG's ``--overlap-decay``. A match counts 1 / (1 + overlap_decay x), where x is the candidate's
            backlog above the lowest one, in prompts of this size; at 0 it counts in full.
        temperature: SMG's ``--selection-temperature``, of a softmax over the costs scaled to 0..1; 0 takes the lowest.
    """
    if overlap_decay:
        candidates = _decayed(candidates, prompt_blocks, overlap_decay)
    costs = [cost(one, prompt_blocks) for one in candidates]
    lowest, highest = min(costs), max(costs)
    if temperature and highest > lowest:
        scale = temperature * (highest - lowest)
        weights = [exp((lowest - value) / scale) for value in costs]
        return rng.choices(range(len(costs)), weights)[0]
    return rng.choice([index for index, value in enumerate(costs) if value == lowest])


def _decayed(candidates: Sequence[Candidate], prompt_blocks: int, decay: float) -> Sequence[Candidate]:
    lowest = min(one.backlog for one in candidates)
    size = max(1, prompt_blocks)
    return [
        Candidate(
            matched=one.matched / (1.0 + decay * (one.backlog - lowest) / size),
            backlog=one.backlog,
            active=one.active,
            stored=one.stored,
            capacity=one.capacity,
        )
        for one in candidates
    ]
