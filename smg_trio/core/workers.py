"""Records about workers: what one is told at creation, the states it goes through, what it looks like from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from smg_trio.core.engines import EngineInfo, EngineLoad, EngineProtocol


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
class WorkerSpec:
    """What a worker is told when it is created.

    Attributes:
        worker_id: unique in this gateway.
        url: ``ipc://<path>``.
        model_id: the name that clients ask for.
        protocol: which wire its engines speak.
        engine_count: number of engines (ranks) that dial in, >= 1.
        handshake_address: ``tcp://host:port`` to bind instead of the derived one.
        vocab_size: ids >= this are refused before the wire; None where the model does not say.
    """

    worker_id: str
    url: str
    model_id: str
    protocol: EngineProtocol = EngineProtocol.VLLM
    engine_count: int = 1
    handshake_address: str | None = None
    vocab_size: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 50
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """One rank from outside. ``reason`` says why it is not ready, in words for people."""

    rank: int
    phase: RankPhase
    reason: str
    in_flight: int
    load: EngineLoad
    info: EngineInfo | None


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker from outside; see `WorkerState` for the states."""

    spec: WorkerSpec
    state: WorkerState
    reason: str
    in_flight: int
    lockstep: bool
    wave: int
    ranks: tuple[RankSnapshot, ...]
    handshake_address: str
