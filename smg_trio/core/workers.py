"""Records about workers: what one is told at creation, the states it goes through, what it looks like from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from smg_trio.core.engines import EngineCounts, EngineInfo, EngineLoad, EngineProtocol
from smg_trio.core.http_addresses import is_http_url


class WorkerState(StrEnum):
    """Lifecycle of a worker; only READY takes requests."""

    PENDING = "pending"
    READY = "ready"
    NOT_READY = "not_ready"
    FAILED = "failed"
    DRAINING = "draining"


class RankPhase(StrEnum):
    """Where one engine of a worker stands."""

    WAITING = "waiting"  # no HELLO yet, or lost
    LOADING = "loading"  # INIT sent; READY or registration outstanding
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOverrides:
    """A worker's own health settings; None where the gateway's hold. Times in seconds.

    ``drain_settle_secs``: how long its answers may go on once it is to be removed; 0 ends them immediately.
    """

    failure_threshold: int | None = None
    success_threshold: int | None = None
    check_interval_secs: float | None = None
    timeout_secs: float | None = None
    disable_health_check: bool | None = None
    drain_settle_secs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadOverrides:
    """A worker's own overload thresholds; None where the gateway's hold."""

    waiting_requests: int | None = None
    token_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOverrides:
    """A worker's own circuit breaker settings; None where the gateway's hold. Times in seconds."""

    failure_threshold: int | None = None
    success_threshold: int | None = None
    timeout_duration_secs: float | None = None
    window_duration_secs: float | None = None
    disabled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOverrides:
    """A worker's own settings for what is done after it has failed a request; None where the gateway's hold.

    ``max_retries`` counts attempts and includes the first, as the flag does. Back-offs in milliseconds.
    """

    max_retries: int | None = None
    initial_backoff_ms: float | None = None
    max_backoff_ms: float | None = None
    backoff_multiplier: float | None = None
    jitter_factor: float | None = None
    disabled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker is told when it is created.

    Attributes:
        worker_id: unique in this gateway.
        url: ``ipc://<path>``, or ``http://`` or ``https://`` of a server that has engines of its own.
        model_id: the name that clients ask for. Empty for a worker behind HTTP that is to say itself what it serves.
        protocol: which wire its engines speak; nothing to a worker behind HTTP.
        engine_count: number of engines (ranks) that dial in, >= 1.
        handshake_address: ``tcp://host:port`` to bind instead of the derived one.
        advertise_host: how engines reach a ``tcp://`` worker, where it is not by the host of its URL.
        vocab_size: ids >= this are refused before the wire; None where the model does not say.
        labels: what the operator notes of it, model and parser names among it.
        priority, cost: shown, not used for routing.
        api_key: what a worker behind HTTP is sent with every request; never shown.
        source: who has added it: ``static`` for the settings and the worker API, else what found it.
    """

    worker_id: str
    url: str
    model_id: str
    protocol: EngineProtocol = EngineProtocol.VLLM
    engine_count: int = 1
    handshake_address: str | None = None
    advertise_host: str | None = None
    vocab_size: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 50
    cost: float = 1.0
    api_key: str | None = field(default=None, repr=False)
    source: str = "static"
    health: HealthOverrides = field(default_factory=HealthOverrides)
    overload: OverloadOverrides = field(default_factory=OverloadOverrides)
    breaker: BreakerOverrides = field(default_factory=BreakerOverrides)
    retry: RetryOverrides = field(default_factory=RetryOverrides)

    @property
    def over_http(self) -> bool:
        """Whether it is a server behind HTTP rather than engines that dial in."""
        return is_http_url(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPatch:
    """What a worker is told while it lives. None leaves a field as it is; labels are merged."""

    priority: int | None = None
    cost: float | None = None
    labels: Mapping[str, str] | None = None
    api_key: str | None = field(default=None, repr=False)
    health: HealthOverrides | None = None
    overload: OverloadOverrides | None = None
    breaker: BreakerOverrides | None = None
    retry: RetryOverrides | None = None

    def applied(self, spec: WorkerSpec) -> WorkerSpec:
        """The spec after the patch."""
        return replace(
            spec,
            priority=spec.priority if self.priority is None else self.priority,
            cost=spec.cost if self.cost is None else self.cost,
            labels=spec.labels if self.labels is None else {**spec.labels, **self.labels},
            api_key=spec.api_key if self.api_key is None else self.api_key,
            health=spec.health if self.health is None else self.health,
            overload=spec.overload if self.overload is None else self.overload,
            breaker=spec.breaker if self.breaker is None else self.breaker,
            retry=spec.retry if self.retry is None else self.retry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWorker:
    """A worker that was asked for and is not there yet, or was refused and why.

    Attributes:
        state: PENDING, or FAILED with a ``reason``.
        runtime_type: the engine protocol as the operator spelled it.
    """

    worker_id: str
    url: str
    model_id: str = ""
    runtime_type: str = ""
    state: WorkerState = WorkerState.PENDING
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """One rank from outside.

    Attributes:
        reason: why it is not ready, as text.
        losses: how many engines were there and have been lost so far.
        counts: what they have counted, all of them.
    """

    rank: int
    phase: RankPhase
    reason: str
    in_flight: int
    load: EngineLoad
    info: EngineInfo | None
    losses: int = 0
    counts: EngineCounts = field(default_factory=EngineCounts)


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker from outside; see `WorkerState` for the states.

    Attributes:
        refused: messages that were ignored so far, by socket: ``handshake``, ``input``, ``output``.
        models: what a worker behind HTTP serves; empty for one with engines, which serves the spec's.
        runtime: what a worker behind HTTP is; empty for one with engines, where the spec says it.
    """

    spec: WorkerSpec
    state: WorkerState
    reason: str
    in_flight: int
    lockstep: bool
    wave: int
    ranks: tuple[RankSnapshot, ...]
    handshake_address: str
    refused: Mapping[str, int] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    runtime: str = ""

    @property
    def model_id(self) -> str:
        """The model it serves, or the first of several; empty while a worker behind HTTP has not said."""
        return self.spec.model_id or (self.models[0] if self.models else "")
