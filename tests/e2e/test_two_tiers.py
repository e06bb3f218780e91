"""A gateway in front of gateways: keys and limits at the front, engines below, traces and ids through both."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.core.workers import WorkerState
from tests.waiting import until

from .fronts import open_front, wait_http_ready
from .harness import COUNTING, HI, SLOW, Bench, events, join_chat, open_gateway
from .test_retries import metric, metrics

KEY, HOST_KEY = "clients-key", "hosts-key"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def two_tiers(
    tmp_path: Path, *, hosts: int = 2, engine: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Bench, list[Bench]]]:
    """A front in front of hosts with an engine each; the front's key opens them, the clients' key does not."""
    async with AsyncExitStack() as stack:
        below = []
        for index in range(hosts):
            directory = tmp_path / f"h{index}"
            directory.mkdir()
            host = open_gateway(directory, COUNTING, api_key=(HOST_KEY,), engine=engine)
            below.append(await stack.enter_async_context(host))
        chosen: dict[str, Any] = {"api_key": (KEY,), "worker_api_key": HOST_KEY, "policy": "round_robin"}
        urls = [host.base_url for host in below]
        front = await stack.enter_async_context(open_front(tmp_path, *urls, **(chosen | settings)))
        front.http.headers["authorization"] = f"Bearer {KEY}"
        yield front, below


async def test_every_api_works_through_two_tiers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "smg_trio.access")
    async with two_tiers(tmp_path) as (front, hosts):
        whole = await front.chat(max_tokens=4)
        assert whole.status_code == 200, whole.text
        streamed = await front.chat(max_tokens=4, stream=True, stream_options={"include_usage": True})
        assert join_chat(streamed.text)["content"] == whole.json()["choices"][0]["message"]["content"]
        assert events(streamed.text)[-1] == "[DONE]"
        named = {"x-request-id": "named-by-client", "traceparent": TRACE}
        response = await front.http.post("/v1/completions", json={"model": "m", "prompt": "hi"}, headers=named)
        assert response.json()["id"] == "cmpl-named-by-client"
        message = {"model": "m", "max_tokens": 3, "messages": HI}
        assert (await front.http.post("/v1/messages", json=message)).json()["usage"]["output_tokens"] == 3
        streamed = await front.http.post("/v1/messages", json=message | {"stream": True})
        assert "event: message_stop" in streamed.text
        counted = await front.http.post("/v1/messages/count_tokens", json=message)
        assert counted.json()["input_tokens"] > 0
        tokens = (await front.http.post("/tokenize", json={"model": "m", "prompt": "hi"})).json()["tokens"]
        detokenized = await front.http.post("/detokenize", json={"model": "m", "tokens": tokens})
        assert detokenized.json()["prompt"] == "hi"
        generated = await front.http.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 2}})
        assert generated.json()[0]["meta_info"]["completion_tokens"] == 2
        # Both gateways' access lines name the request by the same id.
        named_lines = [one for one in caplog.records if "/v1/completions" in one.getMessage()]
        assert len(named_lines) == 2
        assert (await front.http.get("/v1/models")).json()["data"][0]["id"] == "m"
        (await front.http.get("/readiness")).raise_for_status()
        for host in hosts:
            assert all(engine.received for engine in host.engines)
        await front.wait_idle()
        text = await metrics(front)
        assert metric(text, "smg_router_tokens_total", endpoint="messages", token_type="output") == 6
        assert metric(text, "smg_router_tokens_total", endpoint="generate", token_type="output") == 2
        assert metric(text, "smg_worker_selection_total", connection_mode="http", policy="round_robin") >= 8


async def test_keys_and_limits_are_the_fronts(tmp_path: Path) -> None:
    async with two_tiers(tmp_path, hosts=1, key_tokens_per_minute=30) as (front, (host,)):
        assert (await host.http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 401
        refused = await front.http.post(
            "/v1/completions", json={"model": "m", "prompt": "hi"}, headers={"authorization": f"Bearer {HOST_KEY}"}
        )
        assert refused.status_code == 401
        too_much = await front.chat(max_tokens=31)
        assert (too_much.status_code, too_much.headers["x-should-retry"]) == (429, "false")
        answer = await front.chat(max_tokens=20)
        left = 30 - answer.json()["usage"]["total_tokens"]
        assert answer.headers["x-ratelimit-limit-tokens"] == "30"
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= max(0, left) + 2
        while (answer := await front.chat(max_tokens=10)).status_code == 200:
            pass
        assert answer.status_code == 429


async def test_a_client_that_leaves_the_front_frees_the_engine(tmp_path: Path) -> None:
    async with two_tiers(tmp_path, hosts=1, engine=SLOW) as (front, (host,)):
        body = {"model": "m", "prompt": "hi", "max_tokens": 4000, "stream": True}
        async with front.http.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_raw():
                break
        await until(lambda: host.engine.received and not host.engine.in_flight)
        await host.wait_idle()
        await front.wait_idle()


async def test_responses_are_pinned_by_their_id(tmp_path: Path) -> None:
    async with two_tiers(tmp_path) as (front, hosts):
        previous: str | None = None
        for _ in range(4):
            body = {"model": "m", "input": "hi", "max_output_tokens": 2, "previous_response_id": previous}
            made = await front.http.post("/v1/responses", json=body)
            assert made.status_code == 200, made.text
            previous = made.json()["id"]
            assert (await front.http.get(f"/v1/responses/{previous}")).json()["id"] == previous
        assert sorted(len(host.engine.received) for host in hosts) == [0, 4]
        streamed = await front.http.post(
            "/v1/responses", json={"model": "m", "input": "hi", "max_output_tokens": 2, "stream": True}
        )
        created = json.loads(streamed.text.partition("data: ")[2].partition("\n")[0])
        path = f"/v1/responses/{created['response']['id']}"
        assert (await front.http.get(path + "/input_items")).json()["data"]
        assert (await front.http.delete(path)).json()["deleted"] is True
        assert (await front.http.get(path)).status_code == 404
        body = {"model": "m", "input": "hi", "background": True, "max_output_tokens": 2}
        background = await front.http.post("/v1/responses", json=body)
        path = f"/v1/responses/{background.json()['id']}"
        with trio.fail_after(5):
            while (await front.http.get(path)).json()["status"] in ("queued", "in_progress"):
                pass


async def test_a_host_is_drained_under_load_without_a_failed_request(tmp_path: Path) -> None:
    async with two_tiers(tmp_path, engine={"step_time_s": 0.002}) as (front, hosts):
        statuses: list[int] = []
        more = True

        async def client() -> None:
            while more:
                response = await front.chat(max_tokens=8, stream=len(statuses) % 2 == 0)
                statuses.append(response.status_code)
                assert "error" not in response.text, response.text

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(client)
            await until(lambda: len(statuses) > 8)
            hosts[0].shutdown.ask()
            with trio.fail_after(10):
                await hosts[0].ended.wait()
            so_far = len(statuses)
            await until(lambda: len(statuses) > so_far + 8)
            more = False
        assert set(statuses) == {200}
        assert front.gateway.registry.http.workers()[0].state is WorkerState.NOT_READY
        assert front.gateway.registry.http.workers()[1].state is WorkerState.READY


async def test_a_host_that_is_killed_costs_no_request_that_had_no_answer_yet(tmp_path: Path) -> None:
    async with two_tiers(tmp_path) as (front, hosts):
        for _ in range(4):
            assert (await front.chat(max_tokens=2)).status_code == 200
        hosts[0].shutdown.ask()
        hosts[0].shutdown.ask()
        with trio.fail_after(10):
            await hosts[0].ended.wait()
        for _ in range(6):
            assert (await front.chat(max_tokens=2)).status_code == 200


async def test_load_of_the_hosts_is_known_and_readiness_follows_their_engines(tmp_path: Path) -> None:
    async with two_tiers(tmp_path, hosts=1) as (front, (host,)):
        (worker,) = front.gateway.registry.http.workers()
        assert worker.runtime == "smg-trio"
        worker.probe_soon()
        host.kill(host.engine)
        await host.worker.wait_state(WorkerState.NOT_READY)
        worker.probe_soon()
        with trio.fail_after(5):
            await worker.wait_state(WorkerState.NOT_READY)
        assert "503" in worker.snapshot().reason
        host.start_engine(COUNTING)
        await host.wait_ready()
        worker.probe_soon()
        await wait_http_ready(front, 1)


async def test_a_model_with_workers_of_both_kinds(tmp_path: Path) -> None:
    host_directory = tmp_path / "host"
    host_directory.mkdir()
    async with (
        open_gateway(host_directory, COUNTING) as host,
        open_gateway(tmp_path, COUNTING, policy="round_robin") as mixed,
    ):
        added = await mixed.http.post("/workers", json={"url": host.base_url})
        assert added.status_code == 202
        await until(mixed.gateway.registry.http.workers)
        await wait_http_ready(mixed, 1)
        answers = [await mixed.chat(max_tokens=2) for _ in range(6)]
        assert {one.status_code for one in answers} == {200}
        assert len({one.json()["choices"][0]["message"]["content"] for one in answers}) == 1
        assert len(mixed.engine.received) + len(host.engine.received) == 6
        assert mixed.engine.received
        assert host.engine.received
        mixed.kill(mixed.engine)
        await mixed.worker.wait_state(WorkerState.NOT_READY)
        assert (await mixed.chat(max_tokens=2)).status_code == 200
        assert [card["id"] for card in (await mixed.http.get("/v1/models")).json()["data"]] == ["m"]
