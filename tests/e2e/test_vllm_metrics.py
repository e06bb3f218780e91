"""`--metrics-compat vllm`: the names, types, labels and buckets that vLLM itself exports, and what they count."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import trio

from smg_trio.core.engines import EngineCounts, EngineProtocol
from smg_trio.core.outputs import EngineBatch
from smg_trio.testing.notation import parse_script
from smg_trio.wire.codec import codec_for
from tests.waiting import until

from .harness import ENDLESS, HELLO, HI, MODEL, PATIENCE_S, SLOW, Bench, open_gateway
from .scrape import Scrape, scrape

TESTS = Path(__file__).parents[1]
RECORDED: dict[str, Any] = json.loads((TESTS / "gateway/observability/metrics-vllm-0.32.0.json").read_text())
DASHBOARDS: dict[str, Any] = json.loads((TESTS / "ops/vllm_dashboards.json").read_text())
COMPAT: dict[str, Any] = {"metrics_compat": "vllm"}
LEFT_OUT = {
    "vllm:admission_rejections",
    "vllm:estimated_flops_per_gpu",
    "vllm:estimated_read_bytes_per_gpu",
    "vllm:estimated_write_bytes_per_gpu",
    "vllm:iteration_tokens_total",
    "vllm:request_num_preemptions",
}
"""What vLLM exports and this gateway does not, as docs/howto/behind-schedulers.md says."""
UNFILLED = {"vllm:iteration_tokens_total", "vllm:kv_block_lifetime_seconds"}
DRAFTED = EngineCounts(drafts=4, draft_tokens=8, accepted_tokens=5, accepted_per_position=(3, 2))
LORA = {"supports_lora": True}
LABELS = {"model_name": MODEL, "engine": "0"}


def speculate(bench: Bench) -> None:
    """As if the engine had reported drafts, which the fake one does not make."""
    (worker,) = bench.gateway.registry.workers()
    worker._group.apply(EngineBatch(load=worker.snapshot().ranks[0].load, counts=replace(DRAFTED)), trio.current_time())


async def test_names_types_labels_and_buckets_are_those_that_vllm_exports(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LORA | {"max_model_len": 4096}, **COMPAT) as bench:
        await bench.chat()
        speculate(bench)
        found = await scrape(bench)
    ours = {name: family for name, family in found.families.items() if name.startswith("vllm:")}
    assert set(ours) == set(RECORDED["families"]) - LEFT_OUT
    for name, family in ours.items():
        theirs = RECORDED["families"][name]
        assert family.type == theirs["type"], name
        assert family.documentation, name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name == "vllm:cache_config_info":
            assert labels < set(theirs["labels"]), name
        else:
            assert labels == set(theirs["labels"]), name
        if theirs["type"] == "histogram":
            bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels}
            assert bounds == {*theirs["buckets"], float("inf")}, name


async def test_what_schedulers_read_is_there_before_the_first_request_and_what_dashboards_show_after_it(
    tmp_path: Path,
) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LORA, workers=2, **COMPAT) as bench:
        fresh = await scrape(bench)
        for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
            (sample,) = fresh.families[f"vllm:{name}"].samples
            assert (sample.labels, sample.value) == (LABELS, 0.0), "one series for all engines: schedulers read one"
        (config,) = fresh.families["vllm:cache_config_info"].samples
        options = bench.engine.options
        blocks = 2 * options.num_gpu_blocks
        assert config.labels == {"engine": "0", "block_size": str(options.block_size), "num_gpu_blocks": str(blocks)}
        (adapters,) = fresh.families["vllm:lora_requests_info"].samples
        assert adapters.labels == {"max_lora": "4", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        assert abs(adapters.value - time.time()) < 60


async def test_every_panel_of_vllm_s_dashboards_has_series(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, **COMPAT) as bench:
        await bench.chat()
        speculate(bench)
        found = await scrape(bench)
    labels: dict[str, set[str]] = {}
    for sample in found.samples():
        labels.setdefault(re.sub("_(bucket|count|sum)$", "", sample.name), set()).update(sample.labels)
    empty = set()
    for where, metric, wanted in panels():
        if metric in labels:
            assert wanted <= labels[metric], where
        else:
            empty.add(metric)
    assert empty == UNFILLED


def panels() -> Iterator[tuple[str, str, set[str]]]:
    for dashboard, shown in DASHBOARDS.items():
        if dashboard != "source":
            for panel, selectors in shown.items():
                for selector in selectors:
                    metric, _, labels = selector.rstrip("}").partition("{")
                    yield f"{dashboard}: {panel}", metric, set(labels.split(","))


def count(found: Scrape, name: str, **labels: str) -> float:
    return found.value(f"vllm:{name}", **LABELS, **labels)


async def test_each_choice_counts_as_a_request_as_the_engine_sees_it(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"step_time_s": 0.002}, **COMPAT) as bench:
        assert (await bench.chat(max_tokens=9)).status_code == 200
        assert (await bench.chat(n=2, stream=True, max_tokens=9)).status_code == 200
        assert (await bench.completion(prompt=["hi", "hi"], max_tokens=3)).status_code == 200
        assert (await bench.chat(model="other")).status_code == 404
        assert (await bench.chat(max_tokens=-1)).status_code == 400
        await bench.wait_idle()
        found = await scrape(bench)
        usage = sum(len(request.prompt_token_ids) for request in bench.engine.received)
    assert count(found, "request_success_total", finished_reason="stop") == 3
    assert count(found, "request_success_total", finished_reason="length") == 2
    assert count(found, "request_success_total") == 5
    assert count(found, "generation_tokens_total") == 5 * 3 + 3 * 2
    assert count(found, "request_generation_tokens_sum") == 5 * 3 + 3 * 2
    assert count(found, "request_prompt_tokens_sum") == usage
    assert count(found, "request_params_n_count") == 4
    assert count(found, "request_params_n_sum") == 5
    assert count(found, "request_params_max_tokens_sum") == 3 * 9 + 2 * 3
    assert count(found, "request_max_num_generation_tokens_sum") == 5 + 5 + 3 + 3
    assert count(found, "time_to_first_token_seconds_count") == 3
    for name in (
        "e2e_request_latency",
        "request_queue_time",
        "request_inference_time",
        "request_time_per_output_token",
    ):
        assert count(found, f"{name}_seconds_count") == 5, name
    parts = [count(found, f"request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode")]
    assert 0 < sum(parts) <= count(found, "e2e_request_latency_seconds_sum")
    gaps = found.value("smg_router_itl_seconds_count")
    assert count(found, "inter_token_latency_seconds_count") == gaps > 0
    assert count(found, "inter_token_latency_seconds_bucket", le="10.0") == gaps
    assert found.value("http_requests_total", handler="/v1/chat/completions", status="4xx") == 2


async def test_failures_are_errors_and_who_leaves_aborts(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, disable_retries=True, **COMPAT) as bench:
        body = {"model": MODEL, "messages": HI, "stream": True}
        async with bench.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_bytes())
            busy = await scrape(bench)
            assert count(busy, "num_requests_running") == 1
            assert count(busy, "request_success_total") == 0
        await bench.wait_idle()
        failing = parse_script("E[] fin=error", bench.model.id_of)
        bench.engine.choose_script = lambda request: failing
        assert (await bench.chat()).status_code >= 500
        await bench.wait_idle()
        found = await scrape(bench)
    assert count(found, "request_success_total", finished_reason="abort") == 1
    assert count(found, "request_success_total", finished_reason="error") == 1


async def test_what_waits_in_the_gateway_or_in_the_engine_is_queued_and_adapters_are_told(tmp_path: Path) -> None:
    limits = {"max_concurrent_requests": 3, "queue_size": 5}
    engine = LORA | {"max_num_seqs": 2} | SLOW
    async with open_gateway(tmp_path, ENDLESS, engine=engine, **limits, **COMPAT) as bench:
        loaded = await bench.http.post("/v1/load_lora_adapter", json={"lora_name": "poet", "lora_path": "/p"})
        assert loaded.status_code == 200
        async with trio.open_nursery() as nursery:
            for model in (MODEL, "poet", "poet", MODEL):
                nursery.start_soon(lambda asked=model: bench.chat(model=asked, stream=True))
                running = len(bench.gateway.in_flight) + 1
                with trio.fail_after(PATIENCE_S):
                    await until(lambda wanted=running: len(bench.gateway.in_flight) == wanted)
            with trio.fail_after(PATIENCE_S):
                found = await scrape(bench)
                while found.value("smg_engine_running_requests") < 2 or {
                    one.phase for one in list(bench.gateway.in_flight)[:2]
                } != {"generating"}:
                    found = await scrape(bench)
                found = await scrape(bench)
            assert count(found, "num_requests_running") == count(found, "num_requests_waiting") == 2
            assert count(found, "kv_cache_usage_perc") > 0
            assert count(found, "num_requests_waiting_by_reason", reason="capacity") == 2
            (adapters,) = found.families["vllm:lora_requests_info"].samples
            assert adapters.labels["running_lora_adapters"] == "poet"
            assert adapters.labels["waiting_lora_adapters"] == "poet"
            nursery.cancel_scope.cancel()


async def test_prefix_cache_counts_are_the_engines_and_outlive_a_worker(tmp_path: Path) -> None:
    async with open_gateway(
        tmp_path, HELLO, workers=2, engine={"block_size": 2, "prefix_caching": True}, **COMPAT
    ) as bench:
        for _ in range(6):
            await bench.chat(messages=[{"role": "user", "content": "hi hi hi hi"}])
        await bench.wait_idle()
        found = await scrape(bench)
        queries, hits = count(found, "prefix_cache_queries_total"), count(found, "prefix_cache_hits_total")
        assert queries > hits > 0
        assert count(found, "prompt_tokens_cached_total") == hits
        assert count(found, "prompt_tokens_by_source_total", source="local_compute") == queries - hits
        (worker_id, *_) = [worker.spec.worker_id for worker in bench.gateway.registry.workers()]
        assert (await bench.http.delete(f"/workers/{worker_id}")).status_code == 202
        with trio.fail_after(PATIENCE_S):
            await until(lambda: len(bench.gateway.registry.workers()) == 1)
        left = await scrape(bench)
        assert count(left, "prefix_cache_queries_total") == queries
        assert count(left, "prefix_cache_hits_total") == hits


async def test_the_http_port_has_metrics_only_where_asked_and_with_a_key_that_may_look(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, **COMPAT) as bench:
        assert (await bench.http.get("/metrics")).status_code == 404
        assert "/metrics" not in (await bench.http.get("/openapi.json")).json()["paths"]
    keys = {"api_key": ("user",), "control_plane_api_keys": ("eye:Scraper:user:look",)}
    (with_keys := tmp_path / "keys").mkdir()
    async with open_gateway(with_keys, HELLO, connect=False, metrics_on_port=True, **COMPAT, **keys) as bench:
        for key, status in (("", 401), ("user", 403), ("look", 200)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = await bench.http.get("/metrics", headers=headers)
            assert answer.status_code == status, (key, answer.text)
        assert answer.headers["content-type"].startswith("text/plain")
        assert "vllm:num_requests_waiting" in answer.text
        assert "smg_build_info" in answer.text


async def test_nothing_of_it_is_shown_unless_asked(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        await bench.chat()
        found = await scrape(bench)
    assert not [name for name in found.families if name.startswith(("vllm:", "http_"))]


async def test_engines_that_were_put_to_sleep_are_shown_asleep(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, **COMPAT) as bench:
        assert count(await scrape(bench), "engine_sleep_state", sleep_state="awake") == 1
        assert (await bench.http.post("/sleep?level=1")).status_code == 200
        asleep = await scrape(bench)
        assert count(asleep, "engine_sleep_state", sleep_state="awake") == 0
        assert count(asleep, "engine_sleep_state", sleep_state="weights_offloaded") == 1
        assert (await bench.http.post("/wake_up")).status_code == 200
        assert count(await scrape(bench), "engine_sleep_state", sleep_state="awake") == 1


def test_counts_that_begin_anew_are_counted_from_there() -> None:
    before, after = (
        EngineCounts(10, 5, accepted_per_position=(2, 1)),
        EngineCounts(12, 6, accepted_per_position=(3, 1, 1)),
    )
    assert after.since(before) == EngineCounts(2, 1, accepted_per_position=(1, 0, 1))
    assert EngineCounts(3, 1).since(before) == EngineCounts(3, 1)


def test_drafts_and_preemptions_are_read_from_what_engines_send() -> None:
    codec = codec_for(EngineProtocol.VLLM)
    drafting = {"num_drafts": 2, "num_draft_tokens": 4, "num_accepted_tokens": 3, "num_accepted_tokens_per_pos": [2, 1]}
    stats = {"num_running_reqs": 1, "num_waiting_reqs": 2, "num_skipped_waiting_reqs": 3, "kv_cache_usage": 0.5}
    stats |= {"spec_decoding_stats": drafting, "connector_prefix_cache_stats": {"queries": 9, "hits": 4}}
    events = [{"type": 1, "timestamp": 1.0}, {"type": 2, "timestamp": 1.5}]
    again = [{"type": 3, "timestamp": 2.0}, {"type": 2, "timestamp": 9.0}]
    output = ["r", [5], None, None, None, None, None, [*events, *again], None, None, None, None, None, 0]
    batch = codec.decode_outputs([packed([0, [output], stats, 1.0])])
    assert batch.load is not None
    assert (batch.load.waiting, batch.load.deferred) == (2, 3)
    assert batch.queue_times == {"r": 0.5}
    assert batch.counts == EngineCounts(
        external_queries=9, external_hits=4, preemptions=1, drafts=2, draft_tokens=4, accepted_tokens=3,
        accepted_per_position=(2, 1),
    )  # fmt: skip


def packed(message: Any) -> bytes:
    data: bytes = msgpack.packb(message)
    return data
