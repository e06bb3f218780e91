"""Generations in flight, as the live page and metrics show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from smg_trio.gateway.observability.observer import Generation

if TYPE_CHECKING:
    from smg_trio.gateway.observability.generation_metrics import GenerationMetrics


class InFlightGeneration(Generation, Protocol):
    """A generation that has begun and not ended. Looked at now and then, never per token."""

    @property
    def started(self) -> float:
        """When the request came, on the loop's clock."""
        ...

    @property
    def metrics(self) -> GenerationMetrics:
        """What it is measured with."""
        ...
