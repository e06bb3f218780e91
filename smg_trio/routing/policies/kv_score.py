"""Which engine should compute a prompt, given what each has of it in its KV cache and how much waits there: pure."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from smg_trio.core.records import record


@record
class Candidate:
    """One engine, as the gateway knows it when a prompt arrives. Amounts are in blocks of the KV cache.

    Attributes:
        matched: leading blocks of the prompt that the engine has; those in slower tiers count by their credit (0..1).
        backlog: blocks of other prompts, not cached, that were sent to it and not yet answered by a first token.
        active: requests that it has and has not finished.
    """

    matched: float
    backlog: float
    active: int


def cost(candidate: Candidate, prompt_blocks: int) -> float:
    """Blocks to compute until the first token of the prompt, and what each running request adds to that."""
    return candidate.backlog + prompt_blocks - candidate.matched + 2.0 * candidate.active


def best(candidates: Sequence[Candidate], prompt_blocks: int, rng: Random) -> int:
    """The index of the candidate with the lowest cost; of equals, any."""
    costs = [cost(one, prompt_blocks) for one in candidates]
    lowest = min(costs)
    return rng.choice([index for index, value in enumerate(costs) if value == lowest])
