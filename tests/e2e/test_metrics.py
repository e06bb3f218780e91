"""The metrics listener: which families there are, what they count, and that clients cannot make more of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.settings.checks import check_settings
from smg_trio.settings.settings import Settings
from tests.waiting import read_to_end

from .harness import (
    COUNTING,
    ENDLESS,
    HELLO,
    HI,
    MODEL,
    PATIENCE_S,
    TOKENSPEED,
    VLLM,
    Bench,
    connect,
    open_gateway,
    post,
)
from .scrape import Scrape, scrape

ROUTER = ("router_type", "backend_type", "connection_mode", "model", "endpoint")
RANK = ("worker", "model", "dp_rank")
POOL = ("worker_type", "connection_mode", "model")
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "smg_admission_inflight": ("gauge", ()),
    "smg_admission_limit": ("gauge", ()),
    "smg_admission_queue_depth": ("gauge", ()),
    "smg_admission_queue_limit": ("gauge", ()),
    "smg_admission_queue_rejected": ("counter", ("reason",)),
    "smg_build_info": ("gauge", ("version",)),
    "smg_cache_aware_match_ratio": ("histogram", ()),
    "smg_cache_aware_policy_branch": ("counter", ("branch",)),
    "smg_cache_tree_tenants": ("gauge", ("model", "tree")),
    "smg_cache_tree_tokens": ("gauge", ("model",)),
    "smg_detokenizer_pending_outputs": ("gauge", ()),
    "smg_engine_inflight_requests": ("gauge", RANK),
    "smg_engine_losses": ("counter", RANK),
    "smg_engine_ready": ("gauge", RANK),
    "smg_engine_running_requests": ("gauge", RANK),
    "smg_engine_token_usage": ("gauge", RANK),
    "smg_engine_waiting_requests": ("gauge", RANK),
    "smg_discovery_deregistrations": ("counter", ("source", "reason")),
    "smg_discovery_registrations": ("counter", ("source", "result")),
    "smg_discovery_snapshot_errors": ("counter", ("source",)),
    "smg_discovery_sync_duration_seconds": ("histogram", ("source",)),
    "smg_discovery_workers_discovered": ("gauge", ("source",)),
    "smg_event_loop_lag_seconds": ("histogram", ()),
    "smg_event_loop_runnable_tasks": ("gauge", ()),
    "smg_event_loop_tasks": ("gauge", ()),
    "smg_identity_generations": ("counter", ("identity",)),
    "smg_identity_tokens": ("counter", ("identity", "token_type")),
    "smg_http_connections": ("counter", ()),
    "smg_http_connections_active": ("gauge", ()),
    "smg_http_connections_idle": ("gauge", ()),
    "smg_http_connections_refused": ("counter", ()),
    "smg_http_faults": ("counter", ()),
    "smg_http_request_body_bytes": ("gauge", ()),
    "smg_http_request_body_limit_bytes": ("gauge", ()),
    "smg_http_inflight_request_age_count": ("gauge", ("gt", "le")),
    "smg_http_rate_limit": ("counter", ("result",)),
    "smg_http_request_duration_seconds": ("histogram", ("method", "path")),
    "smg_http_requests": ("counter", ("method", "path")),
    "smg_http_responses": ("counter", ("path", "status_code", "error_code")),
    "smg_manual_policy_cache_entries": ("gauge", ()),
    "smg_mcp_request_duration_seconds": ("histogram", ("operation", "result")),
    "smg_media_bytes": ("counter", ("modality", "origin")),
    "smg_media_cache_lookups": ("counter", ("result",)),
    "smg_media_in_flight_bytes": ("gauge", ()),
    "smg_media_items": ("counter", ("modality", "origin")),
    "smg_media_refused": ("counter", ("modality", "reason")),
    "smg_media_stage_seconds": ("histogram", ("modality", "stage")),
    "smg_media_waiting": ("gauge", ()),
    "smg_router_cached_tokens": ("counter", ROUTER),
    "smg_router_generation_duration_seconds": ("histogram", ROUTER),
    "smg_router_itl_seconds": ("histogram", ROUTER),
    "smg_router_request_duration_seconds": ("histogram", ROUTER),
    "smg_router_request_errors": ("counter", (*ROUTER, "error_type")),
    "smg_router_requests": ("counter", (*ROUTER, "streaming")),
    "smg_router_stage_duration_seconds": ("histogram", ("router_type", "stage")),
    "smg_router_tokens": ("counter", (*ROUTER, "token_type")),
    "smg_router_tpot_seconds": ("histogram", ROUTER),
    "smg_router_ttft_seconds": ("histogram", ROUTER),
    "smg_tokenizer_cache_evictions": ("counter", ()),
    "smg_tokenizer_cache_lookups": ("counter", ("result",)),
    "smg_tokenizer_cache_reused_bytes": ("counter", ()),
    "smg_worker_cb_consecutive_failures": ("gauge", ("worker",)),
    "smg_worker_cb_consecutive_successes": ("gauge", ("worker",)),
    "smg_worker_cb_outcomes": ("counter", ("worker", "outcome")),
    "smg_worker_cb_state": ("gauge", ("worker",)),
    "smg_worker_cb_transitions": ("counter", ("worker", "from", "to")),
    "smg_worker_errors": ("counter", ("worker_type", "connection_mode", "worker", "error_type")),
    "smg_worker_health": ("gauge", ("worker",)),
    "smg_worker_health_checks": ("counter", ("worker_type", "result")),
    "smg_worker_overload_fallback": ("counter", ("stage",)),
    "smg_worker_overload_shed": ("counter", ("stage",)),
    "smg_worker_pool_size": ("gauge", POOL),
    "smg_worker_requests_active": ("gauge", ("worker",)),
    "smg_worker_retries": ("counter", ("worker_type", "endpoint")),
    "smg_worker_retries_exhausted": ("counter", ("worker_type", "endpoint")),
    "smg_worker_retry_backoff_seconds": ("histogram", ("attempt",)),
    "smg_worker_selection": ("counter", (*POOL, "policy", "worker")),
    "smg_workers_overloaded": ("gauge", ("model",)),
    "smg_zmq_refused_messages": ("counter", ("worker", "socket")),
}
"""Name without ``_total`` → type and labels."""
ALL_KINDS: dict[str, Any] = {"policy": "cache_aware", "routing_key_override": True, "workers": 2}
"""Settings under which every family is shown."""


async def test_every_family_has_its_type_its_labels_and_a_meaning(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, 'E["a"] fin=error', cb_failure_threshold=2, **ALL_KINDS) as bench:
        for _ in range(6):
            await bench.chat()
        bench.kill(bench.engines[0])
        bench.kill(bench.engines[1])
        await bench.chat()
        found = await scrape(bench)
        ours = {name: family for name, family in found.families.items() if name.startswith("smg_")}
        assert set(ours) == set(FAMILIES)
        for name, (kind, labels) in FAMILIES.items():
            assert ours[name].type == kind, name
            assert ours[name].documentation, name
            for sample in ours[name].samples:
                assert set(sample.labels) - {"le"} == set(labels) - {"le"}, sample
        library = set(found.families) - set(ours)
        assert {"process_resident_memory_bytes", "process_open_fds", "python_info", "python_gc_collections"} <= library


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_what_was_sent_is_what_is_counted(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=protocol, engine={"step_time_s": 0.002}) as bench:
        for _ in range(3):
            assert (await bench.chat()).status_code == 200
        for _ in range(2):
            assert (await bench.chat(stream=True)).status_code == 200
        assert (await bench.completion(prompt=["hi", "hi"])).status_code == 200
        assert (await bench.chat(model="other")).status_code == 404
        await bench.wait_idle()
        found = await scrape(bench)
        chat = {"model": MODEL, "endpoint": "chat", "router_type": "zmq", "connection_mode": "zmq"}
        assert found.value("smg_router_requests_total", streaming="false", **chat) == 3
        assert found.value("smg_router_requests_total", streaming="true", **chat) == 2
        assert found.value("smg_router_tokens_total", token_type="output", **chat) == 25
        assert found.value("smg_router_tokens_total", token_type="output", endpoint="completions") == 10
        for name in ("ttft", "tpot", "request_duration", "generation_duration"):
            assert found.value(f"smg_router_{name}_seconds_count", **chat) == 5, name
            assert found.value(f"smg_router_{name}_seconds_bucket", le="+Inf", **chat) == 5, name
        # A wake-up may bring more than one token, if this test's machine is slow.
        gaps = found.value("smg_router_itl_seconds_count", **chat)
        assert 1 <= gaps <= 20
        sums = {name: found.value(f"smg_router_{name}_seconds_sum", **chat) for name in ("itl", "generation_duration")}
        assert 0 < sums["itl"] <= sums["generation_duration"] + 0.01
        for stage in ("preparation", "queue", "prefill", "decode"):
            assert found.value("smg_router_stage_duration_seconds_count", stage=stage) == 6, stage
        path = {"path": "/v1/chat/completions"}
        assert found.value("smg_http_requests_total", method="POST", **path) == 6
        assert found.value("smg_http_responses_total", status_code="200", **path) == 5
        assert found.value("smg_http_request_duration_seconds_count", **path) == 6
        assert found.value("smg_http_rate_limit_total", result="allowed") == 6
        assert found.value("smg_http_connections_total") >= 1
        assert found.value("smg_http_connections_active") >= 1


async def test_an_answer_s_tokens_are_counted_while_it_runs_and_once(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, COUNTING, engine={"step_time_s": 0.002}) as bench:
        output, inputs = {"token_type": "output"}, {"token_type": "input"}
        body = {"model": MODEL, "messages": HI, "stream": True, "max_tokens": 200}
        async with bench.http.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.aiter_lines()
            seen = [0.0]
            with trio.fail_after(PATIENCE_S):
                while len(seen) < 4:
                    await anext(lines)
                    found = await scrape(bench)
                    now = found.value("smg_router_tokens_total", **output)
                    assert now >= seen[-1]
                    if now > seen[-1]:
                        seen.append(now)
            assert found.value("smg_router_request_duration_seconds_count") == 0
            assert found.value("smg_router_tokens_total", **inputs) > 0
            assert found.value("smg_http_inflight_request_age_count") == 1
            async for _ in lines:
                pass
        await bench.wait_idle()
        found = await scrape(bench)
        assert found.value("smg_router_tokens_total", **output) == 200
        assert found.value("smg_router_tokens_total", **inputs) == 13
        assert found.value("smg_http_inflight_request_age_count") == 0
        assert found.value("smg_detokenizer_pending_outputs") == 0


async def test_tokens_from_an_engine_s_prefix_cache_are_counted(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"prefix_caching": True}) as bench:
        prompt = list(range(100))
        for _ in range(2):
            assert (await bench.completion(prompt=prompt)).status_code == 200
        found = await scrape(bench)
        assert found.value("smg_router_cached_tokens_total", endpoint="completions") == 96
        assert found.value("smg_router_tokens_total", token_type="input", endpoint="completions") == 200


async def test_engines_that_die_are_counted_at_their_rank_and_so_are_the_requests_they_had(tmp_path: Path) -> None:
    async with open_gateway(
        tmp_path,
        ENDLESS,
        words=HELLO,
        engine={"step_time_s": 0.005},
        disable_retries=True,
        health_check_interval_secs=0.02,
    ) as bench:
        url = bench.urls[0]
        assert (await scrape(bench)).value("smg_engine_ready", worker=url, dp_rank="0") == 1
        async with bench.http.stream("POST", "/v1/chat/completions", json={"messages": HI, "stream": True}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            bench.kill(bench.engine)
            async for _ in lines:
                pass
        found = await scrape(bench)
        assert found.value("smg_engine_ready", worker=url, dp_rank="0") == 0
        assert found.value("smg_engine_losses_total", worker=url, dp_rank="0") == 1
        assert found.value("smg_worker_errors_total", worker=url, error_type="engine_dead") == 1
        assert found.value("smg_router_request_errors_total", error_type="engine_dead") == 1
        await _probed(bench, "failure")
        bench.start_engine(HELLO)
        await bench.wait_ready()
        await _probed(bench, "success")
        found = await scrape(bench)
        assert found.value("smg_engine_ready", worker=url, dp_rank="0") == 1
        assert found.value("smg_engine_losses_total", worker=url, dp_rank="0") == 1


async def _probed(bench: Bench, result: str) -> None:
    """Wait until there has been one more such probe."""
    labels = {"result": result, "worker_type": "regular"}
    before = (await scrape(bench)).value("smg_worker_health_checks_total", **labels)
    with trio.fail_after(PATIENCE_S):
        while (await scrape(bench)).value("smg_worker_health_checks_total", **labels) == before:
            await trio.lowlevel.checkpoint()


async def test_a_client_that_leaves_before_there_is_a_response_counts_as_499(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as bench:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(bench.chat, max_tokens=5_000))
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_received()
            nursery.cancel_scope.cancel()
        await bench.wait_idle()
        path = {"path": "/v1/chat/completions"}
        found = await scrape(bench)
        left = {"status_code": "499", "error_code": "client_closed_request"}
        assert found.value("smg_http_responses_total", **left, **path) == 1
        assert found.value("smg_http_requests_total", **path) == 1
        assert found.value("smg_http_request_duration_seconds_count", **path) == 1


async def test_cache_aware_tells_how_it_chose(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, **ALL_KINDS) as bench:
        prompt = list(range(100, 196))
        for _ in range(3):
            assert (await bench.completion(prompt=prompt)).status_code == 200
        headers = {"x-smg-routing-key": "someone"}
        assert (await bench.http.post("/v1/completions", json={"prompt": [5, 6]}, headers=headers)).status_code == 200
        found = await scrape(bench)
        branches = {"no_match": 1, "tree_match": 2, "short_prompt": 1, "spill": 0}
        for branch, count in branches.items():
            assert found.value("smg_cache_aware_policy_branch_total", branch=branch) == count, branch
        assert found.value("smg_cache_aware_match_ratio_sum") == 2
        assert found.value("smg_cache_aware_match_ratio_count") == 3
        assert found.value("smg_cache_tree_tokens", model=MODEL) >= 96
        assert found.value("smg_cache_tree_tenants", model=MODEL, tree="token") == 1
        assert found.value("smg_manual_policy_cache_entries") == 1


HOSTILE = ["../../etc", "a" * 500, "x\n", 'q"}', "smg_up", "é", "{model}", "\0"]


def hostile_requests(number: int) -> list[bytes]:
    """Five requests, their names all of the client's making."""
    name = f"{HOSTILE[number % len(HOSTILE)]}{number}"
    headers = (f"x-request-id: id-{number}", f"x-smg-routing-key: {number}", f"user-agent: {quote(name)}")
    method, path = ("GET", "PATCH", "DELETE", "PUT")[number % 4], quote(name)
    return [
        post("/v1/chat/completions", {"model": name, "messages": HI}, *headers),
        f"{method} /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"DELETE /workers/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"GET /v1/models/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        post("/v1/completions", {"prompt": "hi", "user": name, "request_id": f"r{number}"}, *headers),
    ]


async def test_a_thousand_hostile_names_and_paths_make_no_series(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:

        async def send(numbers: range) -> None:
            last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            stream = await connect(bench.port)
            requests = [request for number in numbers for request in hostile_requests(number)]
            await stream.send_all(b"".join([*requests, last]))
            answer = await read_to_end(stream)
            assert answer.count(b"HTTP/1.1 ") == len(requests) + 1

        async def send_unknown_method(number: int) -> None:
            stream = await connect(bench.port)
            await stream.send_all(f"M{number} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert b" 501 " in await read_to_end(stream)

        # A few of each kind make the series there are.
        await send(range(16))
        await send_unknown_method(0)
        before = await scrape(bench)
        async with trio.open_nursery() as nursery:
            for start in range(16, 216, 25):
                nursery.start_soon(send, range(start, start + 25))
                nursery.start_soon(send_unknown_method, start)
        after = await scrape(bench)
        assert after.series() == before.series()
        labels = {value for sample in after.samples() for value in sample.labels.values()}
        assert not [value for value in labels if any(value.startswith(name) for name in HOSTILE)]
        assert max(map(len, labels)) < 200
        assert _requests(after) - _requests(before) == 1_000 + 8 + 8
        assert after.value("smg_http_faults_total") == 9


def _requests(found: Scrape) -> float:
    return found.value("smg_http_requests_total")


async def test_the_buckets_of_durations_are_the_operator_s(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, prometheus_duration_buckets=("0.5", "2", "1e2")) as bench:
        await bench.chat()
        found = await scrape(bench)
        for name in ("smg_router_ttft_seconds", "smg_http_request_duration_seconds"):
            bounds = [sample.labels["le"] for sample in found.families[name].samples if "le" in sample.labels]
            assert bounds[:4] == ["0.5", "2.0", "100.0", "+Inf"], name
        own = {sample.labels.get("le") for sample in found.families["smg_router_itl_seconds"].samples}
        assert "0.001" in own


@pytest.mark.parametrize("bounds", [("1", "x"), ("1", "1"), ("2", "1"), ("0", "1"), ("-1",), ("inf",), ("nan",), ("",)])
def test_buckets_that_make_no_sense_are_refused(bounds: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_settings(Settings(prometheus_duration_buckets=bounds))
    assert refusal.value.option == "--prometheus-duration-buckets"


async def test_a_model_s_series_end_with_its_last_worker(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        assert (await bench.chat()).status_code == 200
        bench.gateway.metrics.forget_model(MODEL)
        assert (await scrape(bench)).value("smg_router_requests_total", model=MODEL) == 0
        assert (await bench.chat()).status_code == 200
        assert (await scrape(bench)).value("smg_router_requests_total", model=MODEL) == 1
