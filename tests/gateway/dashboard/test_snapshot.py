"""The snapshot's figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.events import Usage
from smg_trio.core.workers import PendingWorker, WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.gateway.dashboard.rates import Rates, TokenRate
from smg_trio.gateway.dashboard.snapshot import (
    AnswerSeen,
    LatencySample,
    ModelFilesSeen,
    Observation,
    WorkerSeen,
    quantiles,
    snapshot_value,
)
from smg_trio.routing.admission import AdmissionStatistics

SPEC = WorkerSpec(worker_id="id", url="ipc:///w", model_id="m", api_key="s3cret")
WORKER = WorkerSeen(
    snapshot=WorkerSnapshot(SPEC, WorkerState.READY, "", 0, False, 0, (), "tcp://127.0.0.1:1"),
    load=2,
    circuit_breaker="closed",
    overloaded=True,
)
SEEN = Observation(
    time=1.0,
    version="1",
    uptime_s=2.0,
    ready=True,
    reason="",
    draining=False,
    ready_workers=1,
    policy="p",
    models=["m"],
    model_files=[ModelFilesSeen("m", "cache", "/c/snapshots/1", "1")],
    memory_bytes=3,
    cpu_share=None,
    loop_lag_s=None,
    admission=AdmissionStatistics(None, 1, 2, 3, 4, 5),
    workers=[WORKER],
    applications=[PendingWorker(worker_id="new", url="ipc:///x", state=WorkerState.FAILED, reason="no")],
    in_flight=7,
    answers=[
        AnswerSeen(
            request_id="r", model="m", endpoint="chat", phase="queued", age_s=1.5, worker_urls=(), usage=Usage(3, 0)
        )
    ],
    ended=[],
    in_flight_ttft_s=[],
    errors=[],
)


def test_a_snapshot_is_json_without_the_workers_keys() -> None:
    value = snapshot_value(SEEN, None, sequence=4, interval_s=1.0)
    assert "s3cret" not in json.dumps(value, allow_nan=False)
    assert [worker["status"] for worker in value["workers"]] == ["ready", "failed"]
    assert value["gateway"]["workers"] == 2
    assert value["admission"]["refused"] == 9
    assert value["requests"]["total"] == 7
    assert value["requests"]["shown"][0]["workers"] == []
    assert value["latency"]["ttft_s"] is None


def test_rates_are_given_to_their_workers_and_idle_ones_have_zero() -> None:
    rates = Rates(TokenRate(1, 2), {("ipc:///other", 0): TokenRate(1, 2)}, 0.5)
    value = snapshot_value(SEEN, rates, sequence=1, interval_s=1.0)
    assert value["workers"][0]["tokens_per_s"] == {"input": 0, "output": 0}
    assert value["rates"] == {"input_tokens_per_s": 1, "output_tokens_per_s": 2, "answers_per_s": 0.5}
    assert snapshot_value(SEEN, None, sequence=1, interval_s=1.0)["workers"][0]["tokens_per_s"] is None


def test_failed_answers_are_counted_but_not_timed() -> None:
    good = LatencySample(failed=False, ttft_s=0.1, inter_token_s=None, end_to_end_s=1.0)
    bad = LatencySample(failed=True, ttft_s=None, inter_token_s=None, end_to_end_s=99.0)
    latency = snapshot_value(replace(SEEN, ended=[bad, good]), None, sequence=1, interval_s=1.0)["latency"]
    assert (latency["answers"], latency["failed"]) == (1, 1)
    assert latency["end_to_end_s"] == {"p50": 1.0, "p90": 1.0, "p99": 1.0}
    assert latency["inter_token_s"] is None
    assert latency["ttft_s"]["p50"] == 0.1


def test_the_first_token_of_an_answer_in_flight_counts_already() -> None:
    latency = snapshot_value(replace(SEEN, in_flight_ttft_s=[0.25]), None, sequence=1, interval_s=1.0)["latency"]
    assert latency["ttft_s"]["p99"] == 0.25
    assert latency["end_to_end_s"] is None


def test_quantiles_are_nearest_ranks() -> None:
    assert quantiles([float(one) for one in range(100, 0, -1)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert quantiles([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_quantile_has_its_share_of_values_at_or_below_it(values: list[float]) -> None:
    values = [round(value, 6) for value in values]
    found = quantiles(values)
    assert found is not None
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[name] in values
        assert sum(value <= found[name] for value in values) >= math.ceil(share * len(values))
        assert sum(value < found[name] for value in values) < math.ceil(share * len(values))
