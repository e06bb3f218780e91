"""What a server says of its load."""

from __future__ import annotations

import json
from typing import Any

from smg_trio.api.server_info import loads_body
from smg_trio.core.engines import EngineInfo, EngineLoad
from smg_trio.core.workers import RankPhase, RankSnapshot, WorkerSnapshot, WorkerSpec, WorkerState


def worker(*ranks: RankSnapshot) -> WorkerSnapshot:
    spec = WorkerSpec(worker_id="w", url="ipc:///e", model_id="m")
    return WorkerSnapshot(spec, WorkerState.READY, "", 0, False, 0, ranks, "tcp://127.0.0.1:1")


def rank(number: int, load: EngineLoad, *, phase: RankPhase = RankPhase.READY, **info: Any) -> RankSnapshot:
    return RankSnapshot(number, phase, "", 0, load, EngineInfo(max_model_len=10, **info))


def loads(*ranks: RankSnapshot) -> Any:
    return json.loads(loads_body([worker(*ranks)], version="1", timestamp="now"))


def test_tokens_and_utilization_follow_from_what_the_engine_registered_with() -> None:
    busy = rank(0, EngineLoad(3, 2, 0.5), num_gpu_blocks=10, block_size=16, max_num_seqs=4)
    idle = rank(1, EngineLoad(), kv_cache_size_tokens=100, max_num_seqs=4)
    body = loads(busy, idle)
    first, second = body["loads"]
    assert (first["num_used_tokens"], first["max_total_num_tokens"], first["utilization"]) == (80, 160, 0.75)
    assert (first["num_total_reqs"], second["max_total_num_tokens"]) == (5, 100)
    assert body["aggregate"]["total_reqs"] == 5
    assert body["aggregate"]["avg_token_usage"] == 0.25


def test_engines_that_are_not_ready_are_left_out() -> None:
    body = loads(rank(0, EngineLoad(), phase=RankPhase.LOADING))
    assert (body["dp_rank_count"], body["loads"]) == (0, [])
    assert "aggregate" not in body


def test_an_engine_that_registered_nothing_has_no_capacity() -> None:
    [load] = loads(rank(0, EngineLoad(1, 0, 0.1)))["loads"]
    assert (load["max_total_num_tokens"], load["num_used_tokens"], load["utilization"]) == (0, 0, 0.0)
