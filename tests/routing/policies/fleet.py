"""Workers as policies see them, with loads set by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg_trio.core.workers import WorkerSpec
from smg_trio.routing.policies.base import Policy, RoutingContext


@dataclass(eq=False)
class Stand:
    """A stand-in for a worker."""

    spec: WorkerSpec
    load: float = 0.0

    @property
    def name(self) -> str:
        """Its id."""
        return self.spec.worker_id


def fleet(count: int, model: str = "m") -> list[Stand]:
    """So many idle workers of a model: w0, w1, …"""
    return [
        Stand(WorkerSpec(worker_id=f"w{number}", url=f"ipc:///run/{model}/e{number}", model_id=model))
        for number in range(count)
    ]


def choose(
    policy: Policy, workers: Sequence[Stand], prompt: Sequence[int] = (1, 2, 3), key: str | None = None, now: float = 0
) -> str:
    """The id of the worker the policy takes."""
    return policy.choose(workers, RoutingContext(prompt, key), now).name
