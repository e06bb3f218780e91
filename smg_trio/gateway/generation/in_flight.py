"""Answers in flight, as whoever watches the gateway sees them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from smg_trio.core.events import Usage
from smg_trio.gateway.observability.generation_metrics import GenerationMetrics

Phase = Literal["queued", "waiting", "generating"]
"""Before admission; before the first output; since then."""


class InFlightGeneration(Protocol):
    """An answer from its beginning to its end. Looked at now and then, never per token."""

    @property
    def request_id(self) -> str:
        """The id that the client gets to see."""
        ...

    @property
    def started(self) -> float:
        """When the request came, on the loop's clock."""
        ...

    @property
    def metrics(self) -> GenerationMetrics:
        """What it is measured with; names model and endpoint."""
        ...

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        ...

    @property
    def worker_urls(self) -> Collection[str]:
        """URLs of the workers that make it; none before they are chosen."""
        ...

    @property
    def pending_outputs(self) -> int:
        """Outputs of its engines that it has not turned into text yet."""
        ...

    def usage(self) -> Usage:
        """Token counts so far."""
        ...


class OpenPooling:
    """A request for pooled outputs, which come all at once."""

    __slots__ = ("_usage", "metrics", "request_id", "started")
    phase: Phase = "waiting"
    worker_urls: Collection[str] = ()
    pending_outputs = 0

    def __init__(self, request_id: str, started: float, metrics: GenerationMetrics, usage: Usage) -> None:
        self.request_id = request_id
        self.started = started
        self.metrics = metrics
        self._usage = usage

    def usage(self) -> Usage:
        """See `InFlightGeneration`."""
        return self._usage
