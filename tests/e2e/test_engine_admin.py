"""Engines put to sleep, paused, profiled, emptied and given adapters, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.core.workers import WorkerState

from .harness import ENDLESS, HELLO, PATIENCE_S, TOKENSPEED, Bench, error_of, open_gateway

ADMIN = [
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("POST", "/flush_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
]


def asked(bench: Bench, engine: int = -1) -> list[tuple[str, tuple[Any, ...]]]:
    """What an engine was told, beside what every engine is asked when it comes."""
    calls = bench.engines[engine].utilities
    return [(call.method, call.args) for call in calls if call.method != "get_supported_tasks"]


async def post(bench: Bench, path: str, **body: Any) -> Any:
    answer = await bench.http.post(path, json=body) if body else await bench.http.post(path)
    assert answer.status_code == 200, answer.text
    return answer.json() if answer.headers["content-type"] == "application/json" else answer.text


async def test_engines_sleep_and_wake(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2) as bench:
        assert (await bench.http.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert await post(bench, "/sleep?level=2&mode=keep") == {"status": "sleeping", "level": 2}
        assert (await bench.http.get("/is_sleeping")).json() == {"is_sleeping": True}
        waking = await post(bench, "/wake_up?tags=weights&tags=kv_cache")
        assert waking == {"status": "awake", "tags": ["weights", "kv_cache"]}
        assert await post(bench, "/wake_up") == {"status": "awake", "tags": None}
        for engine in range(2):
            assert ("sleep", (2, "keep")) in asked(bench, engine)
            assert ("wake_up", (["weights", "kv_cache"],)) in asked(bench, engine)
        assert (await bench.chat_text())[0] == "Hello world"


async def test_waking_an_older_engine_asks_whether_it_is_awake(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"version": "0.27.1"}) as bench:
        assert await post(bench, "/wake_up") == {"status": "awake", "tags": None}
        assert [method for method, _ in asked(bench)] == ["wake_up", "is_sleeping"]


async def test_a_pause_that_keeps_requests_lets_them_go_on_later(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as bench:
        texts: list[str] = []

        async def ask() -> None:
            answer = await bench.completion(max_tokens=50)
            texts.append(answer.json()["choices"][0]["text"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_until(lambda: bench.engine.record.tokens > 2)
            assert await post(bench, "/pause?mode=keep") == {"status": "paused"}
            assert (await bench.http.get("/is_paused")).json() == {"is_paused": True}
            assert not texts
            assert await post(bench, "/resume") == {"status": "resumed"}
        assert len(texts[0]) == 50
        assert (await bench.http.get("/is_paused")).json() == {"is_paused": False}


async def test_a_paused_engine_is_not_taken_for_dead(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}, engine_silence_secs=0.2) as bench:
        texts: list[str] = []

        async def ask() -> None:
            answer = await bench.completion(max_tokens=50)
            texts.append(answer.json()["choices"][0]["text"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_until(lambda: bench.engine.record.tokens > 2)
                await post(bench, "/pause?mode=keep")
                # It is asked about its silence three times, and stays.
                await bench.engine.wait_until(
                    lambda: [method for method, _ in asked(bench)].count("is_scheduler_paused") == 3
                )
            assert bench.worker.state is WorkerState.READY
            await post(bench, "/resume")
        assert len(texts[0]) == 50


async def test_a_pause_that_waits_answers_when_all_has_ended(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as bench:
        order: list[str] = []

        async def ask() -> None:
            await bench.completion(max_tokens=30)
            order.append("answered")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_until(lambda: bench.engine.record.tokens > 2)
            await post(bench, "/pause?mode=wait&clear_cache=false")
            order.append("paused")
        assert sorted(order) == ["answered", "paused"]
        assert bench.engine.record.finished
        assert ("pause_scheduler", ("wait", False)) in asked(bench)
        await post(bench, "/resume")


async def test_caches_are_emptied_unless_requests_hold_them(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        assert await post(bench, "/reset_prefix_cache") == {"success": True}
        assert await post(bench, "/reset_prefix_cache?reset_running_requests=true&reset_external=1") == {
            "success": True
        }
        assert asked(bench)[-1] == ("reset_prefix_cache", (True, True))
        assert await post(bench, "/reset_mm_cache") == await post(bench, "/reset_encoder_cache") == ""
        flushed = await post(bench, "/flush_cache")
        assert (flushed["status"], flushed["workers_flushed"], flushed["total_workers"]) == ("success", 1, 1)
        assert flushed["total_http_workers"] == 1  # where clients of the Rust gateways look


async def test_caches_that_running_requests_hold_are_kept(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as bench:

        async def ask() -> None:
            await bench.completion(max_tokens=5000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_received(1)
            assert await post(bench, "/reset_prefix_cache") == {"success": False}
            partly = await bench.http.post("/flush_cache")
            assert (partly.status_code, partly.json()["status"]) == (206, "partial_success")
            assert bench.urls[0] in partly.json()["message"]
            assert partly.json()["failed"][0]["worker"] == bench.urls[0]
            nursery.cancel_scope.cancel()


async def test_an_engine_without_a_profiler_says_so(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        body = {"profile_prefix": "x", "delay_iterations": 1}
        error = error_of(await bench.http.post("/start_profile", json=body), 400)
        assert "Profiling is not enabled" in error["message"]
        error_of(await bench.http.post("/stop_profile"), 400)
        error_of(await bench.http.post("/start_profile", json={"delay_iterations": -1}), 400)
        assert asked(bench) == [("profile", (True, "x", 1, None)), ("profile", (False,))]


async def test_workers_that_could_not_be_profiled_are_named(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, connect=False) as bench:
        bench.start_engine(HELLO, worker=0, profiler=True)
        await bench.wait_ready(0)
        whole = await post(bench, "/start_profile")
        assert (whole["status"], whole["successful"], whole["failed"]) == ("success", [bench.urls[0]], [])
        bench.start_engine(HELLO, worker=1)
        await bench.wait_ready(1)
        partly = await bench.http.post("/stop_profile")
        assert partly.status_code == 206
        body = partly.json()
        assert (body["message"], body["workers_profiled"]) == ("Profile stop: 1 succeeded, 1 failed", 1)
        assert body["failed"][0]["worker"] == bench.urls[1]


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
async def test_a_url_names_the_only_worker_to_profile(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, engine={"profiler": True}) as bench:
        answer = await bench.http.post(path, json={"url": bench.urls[1]})
        assert answer.status_code == 200
        body = answer.json()
        assert (body["workers_profiled"], body["total_workers"], body["successful"]) == (1, 1, [bench.urls[1]])
        assert (len(asked(bench, 0)), len(asked(bench, 1))) == (0, 1)
        for url in ("http://nonexistent:9999", bench.urls[1] + "x", "x" * 100_000):
            error = error_of(await bench.http.post(path, json={"url": url}), 404)
            assert error["param"] == "url"
            assert len(error["message"]) < 400
        for broken in (b"{not json", b'{"url": 7}', b'{"url": ""}'):
            error_of(await bench.http.post(path, content=broken, headers={"content-type": "application/json"}), 400)
        assert (len(asked(bench, 0)), len(asked(bench, 1))) == (0, 1)
        both = await post(bench, path)
        assert both["workers_profiled"] == 2


async def test_one_worker_can_be_meant(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2) as bench:
        worker_id = bench.gateway.registry.workers()[1].spec.worker_id
        await post(bench, f"/pause?worker_id={worker_id}")
        assert (await bench.http.get("/is_paused", params={"worker_id": worker_id})).json() == {"is_paused": True}
        assert asked(bench, 0) == []
        error_of(await bench.http.post("/pause?worker_id=nobody"), 404)
        error_of(await bench.http.post("/pause?model=x"), 404)


@pytest.mark.parametrize("query", ["level=3", "level=x", "mode=now"])
async def test_bad_options_never_reach_an_engine(tmp_path: Path, query: str) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        assert error_of(await bench.http.post(f"/sleep?{query}"), 400)["param"] == query.partition("=")[0]
        assert asked(bench) == []


@pytest.mark.parametrize(("method", "path"), ADMIN)
async def test_tokenspeed_engines_cannot_be_administered(tmp_path: Path, method: str, path: str) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=TOKENSPEED) as bench:
        error = error_of(await bench.http.request(method, path), 501)
        assert error["code"] == "not_implemented"
        assert "tokenspeed" in error["message"]


async def test_without_an_engine_the_reason_is_given(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for method, path in ADMIN:
            error = error_of(await bench.http.request(method, path), 503)
            assert "waiting for HELLO" in error["message"]


# ---- adapters -----------------------------------------------------------------------------------------------

LORA = {"supports_lora": True}


async def test_a_loaded_adapter_is_a_model_until_it_is_unloaded(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, engine=LORA) as bench:
        said = await post(bench, "/v1/load_lora_adapter", lora_name="poet", lora_path="/adapters/poet")
        assert said == "Success: LoRA adapter 'poet' added successfully."
        for engine in range(2):
            [(method, ([name, adapter_id, path],))] = asked(bench, engine)
            assert (method, name, path) == ("add_lora", "poet", "/adapters/poet")
        card = (await bench.http.get("/v1/models/poet")).json()
        assert (card["parent"], card["root"]) == ("m", "/adapters/poet")
        answer = await bench.chat(model="poet")
        assert answer.json()["model"] == "poet"
        received = [request for one in bench.engines for request in one.received]
        assert received[-1].payload[6] == ["poet", adapter_id, "/adapters/poet"]
        said = await post(bench, "/v1/unload_lora_adapter", lora_name="poet")
        assert said == "Success: LoRA adapter 'poet' removed successfully."
        assert all(asked(bench, engine)[-1] == ("remove_lora", (adapter_id,)) for engine in range(2))
        error_of(await bench.chat(model="poet"), 404)
        error_of(await bench.http.post("/v1/unload_lora_adapter", json={"lora_name": "poet"}), 404)


async def test_requests_for_the_base_model_name_no_adapter(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LORA) as bench:
        await post(bench, "/v1/load_lora_adapter", lora_name="poet", lora_path="/p")
        await bench.chat()
        await bench.completion(model="poet")
        base, poet = (request.payload[6] for request in bench.engine.received)
        assert base is None
        assert poet[0] == "poet"


async def test_an_adapter_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LORA) as bench:
        await post(bench, "/v1/load_lora_adapter", lora_name="poet", lora_path="/one")
        again = {"lora_name": "poet", "lora_path": "/two"}
        assert "already" in error_of(await bench.http.post("/v1/load_lora_adapter", json=again), 400)["message"]
        await post(bench, "/v1/load_lora_adapter", **again, load_inplace=True)
        (_, ([_, old, _],)), (_, ([_, new, path],)), removed = asked(bench)
        assert new != old
        assert path == "/two"
        assert removed == ("remove_lora", (old,))
        taken = {"lora_name": "m", "lora_path": "/x"}
        assert "base model" in error_of(await bench.http.post("/v1/load_lora_adapter", json=taken), 400)["message"]


async def test_a_load_that_one_engine_refuses_is_undone_at_all(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, connect=False) as bench:
        bench.start_engine(HELLO, worker=0, **LORA)
        bench.start_engine(HELLO, worker=1)
        await bench.wait_ready(0)
        await bench.wait_ready(1)
        body = {"lora_name": "poet", "lora_path": "/p"}
        assert "--enable-lora" in error_of(await bench.http.post("/v1/load_lora_adapter", json=body), 400)["message"]
        [(_, ([_, adapter_id, _],)), undone] = asked(bench, 0)
        assert undone == ("remove_lora", (adapter_id,))
        error_of(await bench.http.get("/v1/models/poet"), 404)


async def test_an_adapter_serves_on_an_engine_that_comes_later(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LORA) as bench:
        await post(bench, "/v1/load_lora_adapter", lora_name="poet", lora_path="/p")
        bench.kill(bench.engine)
        with trio.fail_after(PATIENCE_S):
            await bench.worker.wait_state(WorkerState.NOT_READY)
        error_of(await bench.http.post("/v1/unload_lora_adapter", json={"lora_name": "poet"}), 503)
        bench.start_engine(HELLO)
        await bench.wait_ready()
        assert (await bench.chat_text(model="poet"))[0] == "Hello world"
        assert bench.engine.received[-1].payload[6][2] == "/p"


async def test_tokenspeed_takes_no_adapters(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, protocol=TOKENSPEED) as bench:
        body = {"lora_name": "poet", "lora_path": "/p"}
        error_of(await bench.http.post("/v1/load_lora_adapter", json=body), 501)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_path": "x"}, "lora_name"),
        ({"lora_name": "", "lora_path": "x"}, "lora_name"),
        ({"lora_name": "x", "lora_path": "x", "is_3d_lora_weight": True}, "is_3d_lora_weight"),
    ],
)
async def test_an_incomplete_adapter_is_refused(tmp_path: Path, body: dict[str, Any], param: str) -> None:
    async with open_gateway(tmp_path, HELLO, engine=LORA) as bench:
        assert error_of(await bench.http.post("/v1/load_lora_adapter", json=body), 400)["param"] == param
