"""The worker API's JSON: a `WorkerSnapshot` as the reference gateway shows it, with reasons and ranks besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from smg_trio.api.worker_specs import BREAKER_NAMES, RETRY_NAMES
from smg_trio.core.http_addresses import is_http_url
from smg_trio.core.workers import PendingWorker, RankSnapshot, WorkerSnapshot, WorkerState


def worker_value(snapshot: WorkerSnapshot, load: int) -> dict[str, Any]:
    """One worker; `load` is the number of answers it is leased for."""
    spec = snapshot.spec
    value: dict[str, Any] = {
        "id": spec.worker_id,
        "model_id": snapshot.model_id,
        "url": spec.url,
        "models": [
            {"id": name, "model_type": ["chat", "completions"]} for name in snapshot.models or (snapshot.model_id,)
        ],
        "worker_type": "regular",
        "connection_mode": "http" if spec.over_http else "zmq",
        "runtime_type": snapshot.runtime or spec.protocol.value,
        "zmq_handshake_address": snapshot.handshake_address,
        "source": spec.source,
        "labels": dict(spec.labels),
        "priority": spec.priority,
        "cost": spec.cost,
        "is_healthy": snapshot.state is WorkerState.READY,
        "status": snapshot.state.value,
        "load": load,
        "in_flight": snapshot.in_flight,
        "http2": False,
        "ranks": [_rank_value(rank) for rank in snapshot.ranks],
    }
    if spec.over_http:
        del value["zmq_handshake_address"], value["ranks"]
    for name, overrides in (("health", spec.health), ("overload", spec.overload)):
        given = {field: setting for field, setting in asdict(overrides).items() if setting is not None}
        if given:
            value[name] = given
    resilience = _given(BREAKER_NAMES, spec.breaker) | _given(RETRY_NAMES, spec.retry)
    if resilience:
        value["resilience"] = resilience
    if spec.engine_count > 1:
        value["dp_size"] = spec.engine_count
    if snapshot.reason:
        value["status_reason"] = snapshot.reason
    if snapshot.lockstep:
        value["wave"] = snapshot.wave
    return value


def _given(names: Mapping[str, str], overrides: object) -> dict[str, Any]:
    settings = {shown: getattr(overrides, name) for shown, name in names.items()}
    return {shown: setting for shown, setting in settings.items() if setting is not None}


def application_value(application: PendingWorker) -> dict[str, Any]:
    """A worker that is being prepared, or was refused: ``status_reason`` says why."""
    value: dict[str, Any] = {
        "id": application.worker_id,
        "model_id": application.model_id,
        "url": application.url,
        "worker_type": "regular",
        "connection_mode": "http" if is_http_url(application.url) else "zmq",
        "runtime_type": application.runtime_type,
        "is_healthy": False,
        "status": application.state.value,
        "load": 0,
    }
    if application.reason:
        value["status_reason"] = application.reason
    return value


def _rank_value(rank: RankSnapshot) -> dict[str, Any]:
    value: dict[str, Any] = {
        "rank": rank.rank,
        "status": rank.phase.value,
        "in_flight": rank.in_flight,
        "num_running_reqs": rank.load.running,
        "num_waiting_reqs": rank.load.waiting,
        "token_usage": rank.load.kv_usage,
    }
    if rank.reason:
        value["reason"] = rank.reason
    if rank.info is not None:
        value["engine_version"] = rank.info.engine_version
        value["max_model_len"] = rank.info.max_model_len
    return value


def workers_value(workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The list of workers with the reference's counts."""
    return {
        "workers": list(workers),
        "total": len(workers),
        "stats": {"prefill_count": 0, "decode_count": 0, "regular_count": len(workers)},
    }
