"""What a server says of itself: version, models, workers and how loaded these are. No secrets.

``/get_model_info`` and ``/get_server_info`` have SGLang's names; ``/v1/loads`` is the Rust gateways' ``/get_loads``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from smg_trio.core.workers import RankPhase, RankSnapshot, WorkerSnapshot


def version_body(version: str) -> bytes:
    """The answer of ``/version``."""
    return _body({"version": version})


def server_load_body(answers: int) -> bytes:
    """The answer of vLLM's ``/load``: answers in progress."""
    return _body({"server_load": answers})


def model_info_body(
    *,
    root: str,
    tokenizer: str | None,
    generates: bool | None,
    context_length: int | None,
    architectures: Sequence[str],
    modalities: Sequence[str],
) -> bytes:
    """The answer of ``/get_model_info``; `generates` and the context length are None while no engine has said."""
    value = {
        "model_path": root,
        "tokenizer_path": tokenizer or root,
        "is_generation": generates,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "context_length": context_length,
        "architectures": list(architectures),
        "has_image_understanding": "image" in modalities,
        "has_audio_understanding": "audio" in modalities,
        "modalities": list(modalities),
    }
    return _body(value)


def server_info_body(
    *,
    version: str,
    policy: str,
    history: str,
    models: Sequence[Mapping[str, Any]],
    workers: Sequence[Mapping[str, Any]],
) -> bytes:
    """The answer of ``/get_server_info`` and ``/server_info``; `history` is the kind of store, not where it is."""
    value = {
        "version": version,
        "server": "smg-trio",
        "policy": policy,
        "history_backend": history,
        "models": list(models),
        "workers": list(workers),
    }
    return _body(value)


def loads_body(workers: Sequence[WorkerSnapshot], *, version: str, timestamp: str) -> bytes:
    """The answer of ``/v1/loads``: one entry per ready engine, by its own word, and their sums and means."""
    loads = [_load(worker, rank) for worker in workers for rank in worker.ranks if rank.phase is RankPhase.READY]
    value: dict[str, Any] = {
        "timestamp": timestamp,
        "version": f"smg-trio-{version}",
        "dp_rank_count": len(loads),
        "loads": loads,
    }
    if loads:
        value["aggregate"] = {
            "total_running_reqs": sum(load["num_running_reqs"] for load in loads),
            "total_waiting_reqs": sum(load["num_waiting_reqs"] for load in loads),
            "total_reqs": sum(load["num_total_reqs"] for load in loads),
            "avg_token_usage": sum(load["token_usage"] for load in loads) / len(loads),
            "avg_throughput": 0.0,
            "avg_utilization": sum(load["utilization"] for load in loads) / len(loads),
        }
    return _body(value)


def _load(worker: WorkerSnapshot, rank: RankSnapshot) -> dict[str, Any]:
    info, load = rank.info, rank.load
    capacity = most = 0
    if info is not None:
        capacity = info.kv_cache_size_tokens or info.num_gpu_blocks * info.block_size
        most = info.max_num_seqs
    return {
        "worker": worker.spec.url,
        "worker_type": "regular",
        "dp_rank": rank.rank,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": 0,
        "num_total_reqs": load.running + load.waiting,
        "num_used_tokens": round(load.kv_usage * capacity),
        "max_total_num_tokens": capacity,
        "token_usage": load.kv_usage,
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": load.running / most if most else 0.0,
        "max_running_requests": most,
    }


def _body(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
