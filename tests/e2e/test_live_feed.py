"""The feed behind the live page: what is in it, who gets it, and that it waits for nobody and holds nothing up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, open_websocket_url

from smg_trio.core.errors import EngineRejected
from tests.waiting import until

from .harness import ENDLESS, HELLO, MODEL, PATIENCE_S, Bench, chat_body, connect, open_gateway

KEY = "s3cret-kéy"
Snapshot = dict[str, Any]


@asynccontextmanager
async def watch(bench: Bench, *headers: tuple[str, str]) -> AsyncIterator[WebSocketConnection]:
    bench.feed.interval_s = min(bench.feed.interval_s, 0.05)
    raw = [(name.encode(), value.encode()) for name, value in headers]
    url = bench.base_url.replace("http", "ws", 1) + "/dashboard/feed"
    with trio.fail_after(PATIENCE_S):
        async with open_websocket_url(url, extra_headers=raw) as socket:
            yield socket


async def next_of(socket: WebSocketConnection) -> Snapshot:
    snapshot: Snapshot = json.loads(await socket.get_message())
    return snapshot


async def wait_for(socket: WebSocketConnection, wanted: Callable[[Snapshot], bool]) -> Snapshot:
    while not wanted(snapshot := await next_of(socket)):
        pass
    return snapshot


def told(snapshot: Snapshot) -> int:
    """Tokens so far of the oldest answer in flight."""
    shown = snapshot["requests"]["shown"]
    return int(shown[0]["completion_tokens"]) if shown else 0


def running_in_tasks(prefix: str) -> list[str]:
    """The functions with that beginning of their names in which this process's tasks are."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found, pending = [], [root]
    while pending:
        task = pending.pop()
        pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        found += [frame.f_code.co_qualname for frame, _ in task.iter_await_frames()]
    return [name for name in found if name.startswith(prefix)]


async def closed_with(socket: WebSocketConnection) -> tuple[int, str]:
    """Code and reason that the gateway closes the socket with."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            await socket.get_message()
    reason = closed.value.reason
    assert reason is not None
    return reason.code, reason.reason


async def test_without_the_live_page_its_routes_do_not_exist_and_no_task_of_it_runs(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, dashboard=False) as bench:
        url = bench.base_url.replace("http", "ws", 1) + "/dashboard/feed"
        with pytest.raises(ConnectionRejected) as refused:
            async with open_websocket_url(url):
                pass
        assert refused.value.status_code == 404
        page = await bench.http.get("/dashboard")
        assert (page.status_code, page.json()["error"]["code"]) == (404, "not_found")
        assert "/dashboard" not in (await bench.http.get("/openapi.json")).json()["paths"]
        assert not running_in_tasks("LiveFeed.")
    beside = tmp_path / "beside"
    beside.mkdir()
    async with open_gateway(beside, HELLO):
        assert running_in_tasks("LiveFeed.") == ["LiveFeed.run"]


async def test_the_first_snapshot_comes_at_once_and_says_what_the_gateway_is(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, watch(bench) as socket:
        first = await next_of(socket)
        assert (first["type"], first["schema"]) == ("snapshot", 1)
        gateway = first["gateway"]
        assert (gateway["ready"], gateway["ready_workers"], gateway["workers"]) == (True, 1, 1)
        assert gateway["models"] == [MODEL]
        directory = str(bench.model.directory)
        assert gateway["model_files"] == [
            {"id": MODEL, "source": "directory", "directory": directory, "revision": None}
        ]
        assert gateway["memory_bytes"] > 10_000_000
        assert (first["rates"], gateway["cpu_share"], gateway["loop_lag_s"]) == (None, None, None)
        (worker,) = first["workers"]
        assert (worker["url"], worker["status"], worker["circuit_breaker"]) == (bench.urls[0], "ready", "closed")
        second = await next_of(socket)
        assert second["sequence"] == first["sequence"] + 1
        assert second["rates"] == {"input_tokens_per_s": 0, "output_tokens_per_s": 0, "answers_per_s": 0}
        assert second["gateway"]["loop_lag_s"] >= 0


async def test_an_answer_is_seen_in_flight_and_then_in_the_latencies(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.01}) as bench, watch(bench) as socket:
        async with bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer:
            assert answer.status_code == 200
            seen = await wait_for(socket, lambda one: told(one) > 5)
            (request,) = seen["requests"]["shown"]
            assert (request["model"], request["endpoint"], request["phase"]) == (MODEL, "chat", "generating")
            assert request["workers"] == bench.urls
            assert request["age_s"] > 0
            assert "hi" not in json.dumps(request["id"])
            later = await wait_for(socket, lambda one: told(one) > told(seen))
            assert later["rates"]["output_tokens_per_s"] > 0
            assert later["workers"][0]["tokens_per_s"]["output"] == later["rates"]["output_tokens_per_s"]
            assert later["workers"][0]["ranks"][0]["num_running_reqs"] == 1
            assert later["workers"][0]["ranks"][0]["tokens_per_s"] == later["workers"][0]["tokens_per_s"]
        await bench.chat(max_tokens=5)
        seen = await wait_for(socket, lambda one: one["requests"]["total"] == 0 and one["latency"]["answers"] == 2)
        assert 0 < seen["latency"]["ttft_s"]["p50"] <= seen["latency"]["end_to_end_s"]["p50"]
        assert seen["latency"]["inter_token_s"]["p99"] > 0.001
        await bench.wait_idle()


async def test_a_dying_engine_is_seen_with_its_reason_and_its_victims_errors(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": {"step_time_s": 0.01}, "disable_retries": True}
    async with open_gateway(tmp_path, ENDLESS, **options) as bench, watch(bench) as socket:
        assert (await next_of(socket))["workers"][0]["status"] == "ready"
        async with bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer:
            pieces = answer.aiter_bytes()  # held: the end of the iterator would be the end of the connection
            assert await anext(pieces)
            bench.kill(bench.engine)
            seen = await wait_for(socket, lambda one: one["workers"][0]["status"] == "not_ready" and one["errors"])
        assert seen["workers"][0]["status_reason"]
        assert seen["gateway"]["ready"] is False
        assert seen["gateway"]["reason"] == "insufficient healthy workers"
        (error,) = seen["errors"]
        assert (error["status"], error["code"], error["workers"]) == (503, "engine_dead", bench.urls)
        assert (error["model"], error["endpoint"]) == (MODEL, "chat")
        await wait_for(socket, lambda one: one["latency"]["failed"] == 1)
        bench.start_engine(ENDLESS)
        await wait_for(socket, lambda one: one["workers"][0]["status"] == "ready")


async def test_each_error_is_listed_once_and_clients_faults_do_not_hide_ours(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        assert (await bench.chat()).status_code == 503
        for number in range(60):
            answer = await bench.http.post("/v1/chat/completions", json={"model": f"nope-{number}", "messages": []})
            assert answer.status_code in (400, 404)
        async with watch(bench) as socket:
            errors = (await next_of(socket))["errors"]
        assert [error["code"] for error in errors].count("no_available_workers") == 1
        assert len(errors) == 51
        assert errors[-1]["endpoint"] == "/v1/chat/completions"
        assert errors == sorted(errors, key=lambda error: error["time"], reverse=True)
        assert all(error["request_id"] for error in errors)


async def test_workers_that_come_and_go_are_seen(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, watch(bench) as socket:
        added = await bench.http.post("/workers", json={"url": f"ipc://{tmp_path}/s/late"})
        worker_id = added.json()["worker_id"]
        seen = await wait_for(socket, lambda one: len(one["workers"]) == 2)
        assert seen["workers"][1]["status"] == "pending"
        await bench.http.delete(f"/workers/{worker_id}")
        await wait_for(socket, lambda one: len(one["workers"]) == 1)


async def test_a_key_may_come_in_a_header_or_in_the_first_message(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, api_key=(KEY,)) as bench:
        async with watch(bench, ("authorization", f"Bearer {KEY}")) as socket:
            assert (await next_of(socket))["type"] == "snapshot"
        async with watch(bench) as socket:
            await socket.send_message(json.dumps({"type": "auth", "key": KEY}))
            assert (await next_of(socket))["type"] == "snapshot"
        with pytest.raises(ConnectionRejected) as refused:
            async with watch(bench, ("authorization", "Bearer wrong")):
                pass
        assert refused.value.status_code == 401
        assert b"invalid_api_key" in (refused.value.body or b"")


@pytest.mark.parametrize(
    "message",
    [
        json.dumps({"type": "auth", "key": "wrong"}),
        json.dumps({"type": "auth", "key": ""}),
        json.dumps({"type": "auth", "key": None}),
        json.dumps({"key": KEY}),
        json.dumps({"type": "auth", "key": "x" * 20_000}),
        '{"type": "auth", "key": "\\ud800"}',
        "[]",
        "{",
        b"\xff\xfe",
    ],
)
async def test_without_the_key_nothing_is_shown(tmp_path: Path, message: str | bytes) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=(KEY,)) as bench, watch(bench) as socket:
        await socket.send_message(message)
        refusal = await next_of(socket)
        assert refusal["type"] == "error"
        assert refusal["error"]["code"] == "invalid_api_key"
        assert await closed_with(socket) == (4401, "invalid_api_key")


async def test_pages_of_other_origins_may_not_watch(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for origin in ("http://evil.example", f"http://127.0.0.1:{bench.port + 1}", "null", "file://"):
            with pytest.raises(ConnectionRejected) as refused:
                async with watch(bench, ("origin", origin)):
                    pass
            assert refused.value.status_code == 403
            assert b"origin_not_allowed" in (refused.value.body or b"")
        async with watch(bench, ("origin", f"http://127.0.0.1:{bench.port}")) as socket:
            await next_of(socket)


async def test_pages_of_allowed_origins_may_watch(tmp_path: Path) -> None:
    allowed = "https://ops.example"
    async with (
        open_gateway(tmp_path, HELLO, connect=False, cors_allowed_origins=(allowed,)) as bench,
        watch(bench, ("origin", allowed)) as socket,
    ):
        await next_of(socket)


async def test_all_watchers_get_the_same_snapshots_and_none_are_made_for_nobody(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        async with watch(bench) as one, watch(bench) as other:
            first = await next_of(one)
            follower = await wait_for(other, lambda snapshot: snapshot["sequence"] > first["sequence"])
            assert follower == await wait_for(one, lambda snapshot: snapshot["sequence"] == follower["sequence"])
            last = follower["sequence"]
        await until(lambda: not bench.feed.watchers)
        stopped_at = bench.feed.sequence
        assert stopped_at <= last + 1
        async with watch(bench) as late:
            # Not what was shown to those before.
            assert (await next_of(late))["sequence"] == stopped_at + 1


async def test_a_watcher_that_does_not_read_costs_the_others_nothing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        bench.feed.interval_s = 0.001
        # Longer snapshots fill the kernel's buffers sooner.
        for _ in range(50):
            await bench.http.post("/tokenize", json={"prompt": 5, "x" * 1000: 1})
        async with await connect(bench.port, receive_buffer=2048) as slow, watch(bench) as socket:
            await slow.send_all(handshake(bench.port))
            before = await wait_for(socket, lambda _: bench.feed.watchers == 2)
            after = await wait_for(socket, lambda snapshot: snapshot["sequence"] > before["sequence"] + 500)
            assert after["requests"]["total"] == 0
            assert bench.feed.watchers == 2


def handshake(port: int) -> bytes:
    """The bytes of a WebSocket upgrade."""
    return (
        f"GET /dashboard/feed HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


async def test_watchers_see_the_drain_and_do_not_hold_the_gateway(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": {"step_time_s": 0.01}, "shutdown_grace_period_secs": 60.0}
    async with (
        open_gateway(tmp_path, ENDLESS, **options) as bench,
        watch(bench) as socket,
        bench.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer,
        await connect(bench.port, receive_buffer=2048) as slow,
    ):
        assert answer.status_code == 200
        await slow.send_all(handshake(bench.port))
        await wait_for(socket, lambda _: bench.feed.watchers == 2)
        bench.shutdown.ask()
        seen = await wait_for(socket, lambda one: one["gateway"]["draining"])
        assert seen["gateway"]["reason"] == "draining"
        assert seen["requests"]["total"] == 1
        bench.worker.fail_everything(EngineRejected("over"))
        async for _ in answer.aiter_bytes():
            pass
        assert await closed_with(socket) == (1001, "the gateway shuts down")
        began = trio.current_time()
        await bench.ended.wait()
        assert trio.current_time() - began < 5


async def test_a_websocket_to_a_path_that_has_none_is_refused_with_a_body(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for path, status in (("/nowhere", 404), ("/dashboard", 400)):
            with pytest.raises(ConnectionRejected) as refused:
                async with open_websocket_url(bench.base_url.replace("http", "ws", 1) + path):
                    pass
            assert refused.value.status_code == status
            assert json.loads(refused.value.body or b"")["error"]["message"]


async def test_one_that_never_sends_its_key_does_not_hold_the_gateway(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, api_key=(KEY,)) as bench, watch(bench) as socket:
        bench.shutdown.ask()
        assert await closed_with(socket) == (1001, "the gateway shuts down")
        await bench.ended.wait()
