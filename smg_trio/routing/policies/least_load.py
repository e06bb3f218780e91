"""The worker with the fewest requests, by our own count or its engines' word, whichever is higher; ties rotate."""

from __future__ import annotations

from collections.abc import Sequence

from smg_trio.worker.nursery import Worker


class LeastLoad:
    """Load is counted per engine, so that a group of four may hold four times what a single engine does."""

    name = "least_load"

    def __init__(self) -> None:
        self._next_start = 0

    def choose(self, candidates: Sequence[Worker], prompt_token_ids: Sequence[int]) -> Worker:
        """See `Policy.choose`."""
        count = len(candidates)
        if count == 1:
            return candidates[0]
        start = self._next_start % count
        self._next_start += 1
        return min((candidates[(start + step) % count] for step in range(count)), key=lambda worker: worker.load)
