"""Whether a worker has more than enough to do, by its engines' own word. Pure.

An overloaded worker is left out while another one is not. If all are, the least loaded one takes the request, or it
is refused if the operator wants that. The figures are what engines piggyback on outputs. An idle engine sends none, so
its last word counts only while it has something in flight; else a worker could stay shut forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.errors import Overloaded

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineLoad


class WorkersOverloaded(Overloaded):
    """Every worker that could take the request is overloaded, and the operator prefers refusing to queueing."""

    code = "worker_overload_protection_shed"
    status = 503


@dataclass(frozen=True, slots=True)
class OverloadLimits:
    """Thresholds, both inclusive; None switches one off.

    Attributes:
        waiting_requests: requests waiting at all engines of the worker together.
        token_usage: mean share of the KV cache in use, 0..1.
    """

    waiting_requests: int | None = 8
    token_usage: float | None = 0.8

    @property
    def active(self) -> bool:
        """Whether anything is looked at."""
        return self.waiting_requests is not None or self.token_usage is not None

    def overloaded(self, busy: Sequence[EngineLoad], engine_count: int) -> bool:
        """Whether a worker of so many engines is over a threshold; `busy` are those with something in flight."""
        if not busy:
            return False
        if self.waiting_requests is not None and sum(load.waiting for load in busy) >= self.waiting_requests:
            return True
        return self.token_usage is not None and sum(load.kv_usage for load in busy) / engine_count >= self.token_usage
