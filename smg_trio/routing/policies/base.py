"""What a policy is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from smg_trio.worker.nursery import Worker


class Policy(Protocol):
    """Chooses a worker for a request. Called with at least one candidate, all ready and serving the model."""

    name: str

    def choose(self, candidates: Sequence[Worker], prompt_token_ids: Sequence[int]) -> Worker:
        """One of `candidates`, for a prompt of int[T]. Never waits."""
        ...
