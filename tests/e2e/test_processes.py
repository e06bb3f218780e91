"""Several gateway processes on one listener: real processes, real sockets, real kills."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.core.errors import GatewayFault
from smg_trio.core.workers import WorkerState
from smg_trio.processes import front_process
from smg_trio.processes import fronts as fronts_module
from smg_trio.processes.keeper import Keeper

from .harness import (
    COUNTING,
    ENDLESS,
    HELLO,
    HI,
    MODEL,
    PATIENCE_S,
    TOKENSPEED,
    Bench,
    events,
    join_chat,
    open_gateway,
)
from .scrape import Scrape
from .test_live_feed import wait_for, watch
from .test_restarts import site

CHAT = {"model": MODEL, "messages": HI}


def keeper_of(bench: Bench) -> Keeper:
    role = bench.gateway.sharing
    assert isinstance(role, Keeper)
    return role


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what other processes do: nothing tells this one when it is done."""
    with trio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.01)


def connections(bench: Bench) -> dict[int, int]:
    board = keeper_of(bench).board
    return {index: board.process(index).connections for index in range(1, board.processes)}


@asynccontextmanager
async def client(bench: Bench, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client with one connection, which is kept alive."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    async with httpx.AsyncClient(
        base_url=bench.base_url, timeout=PATIENCE_S, limits=limits, headers=headers, verify=False
    ) as http:
        yield http


@asynccontextmanager
async def clients_of(bench: Bench) -> AsyncIterator[dict[int, httpx.AsyncClient]]:
    """A client of each front, by the front's number."""
    await bench.http.aclose()
    await eventually(lambda: not any(connections(bench).values()))
    async with AsyncExitStack() as stack:
        found: dict[int, httpx.AsyncClient] = {}
        for _ in range(20):
            before = connections(bench)
            one = await stack.enter_async_context(client(bench))
            assert (await one.get("/health")).status_code == 200
            await eventually(lambda before=before: connections(bench) != before)  # type: ignore[misc]
            after = connections(bench)
            front = next(index for index in after if after[index] > before[index])
            if front in found:  # on a busy machine the other may have been too slow to accept
                await one.aclose()
                await eventually(lambda before=before: connections(bench) == before)  # type: ignore[misc]
            found.setdefault(front, one)
            if len(found) == 2:
                break
        yield found


async def test_every_connection_shows_one_gateway(tmp_path: Path) -> None:
    """Workers, adapters, history, background responses, key limits, admission, metrics and the live page."""
    lora = {"supports_lora": True}
    async with open_gateway(tmp_path, processes="2", engine=lora, max_concurrent_requests=3, queue_size=0) as bench:
        await bench.wait_all_ready()
        async with clients_of(bench) as fronts:
            one, two = fronts[1], fronts[2]
            await _chats(one, two)
            await _workers(bench, one, two)
            await _adapters(one, two)
            await _history(one, two)
            await _admission(bench, one, two)
            await _background(bench, one, two)
            await _metrics(bench)


async def _chats(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    texts = []
    for http in (one, two):
        whole = (await http.post("/v1/chat/completions", json=CHAT)).json()["choices"][0]["message"]["content"]
        streamed = await http.post("/v1/chat/completions", json=CHAT | {"stream": True})
        assert join_chat(streamed.text)["content"] == whole
        texts.append(whole)
    assert texts == ["Hello world"] * 2


async def _workers(bench: Bench, one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    url = f"ipc://{bench.urls[0].removeprefix('ipc://')}-more"
    added = await one.post("/workers", json={"url": url, "model_id": MODEL, "runtime_type": "vllm"})
    assert added.status_code == 202, added.text
    worker_id = added.json()["worker_id"]

    async def seen(http: httpx.AsyncClient) -> dict[str, Any]:
        found = {worker["id"]: worker for worker in (await http.get("/workers")).json()["workers"]}
        value: dict[str, Any] = found.get(worker_id, {})
        return value

    for http in (one, two):
        assert (await seen(http))["url"] == url
    moved = bench.model.directory.with_name("moved")
    shutil.copytree(bench.model.directory, moved)
    patch = {"priority": 7, "resilience": {"max_retries": 2}, "labels": {"model_path": str(moved)}}
    assert (await two.patch(f"/workers/{worker_id}", json=patch)).status_code == 202
    assert (await seen(one))["priority"] == 7
    assert (await seen(one))["resilience"] == {"max_retries": 2}
    for http in (one, two):
        [card] = (await http.get("/v1/models")).json()["data"]
        assert card["root"] == str(moved)
        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    refused = await two.post("/workers", json={"url": url, "model_id": MODEL, "runtime_type": "vllm"})
    assert refused.status_code == 409
    assert refused.headers["x-request-id"]
    assert (await two.get("/workers/none")).status_code == 400
    assert (await two.delete(f"/workers/{worker_id}")).status_code == 202
    for http in (one, two):
        assert await seen(http) == {}


async def _adapters(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    loaded = await one.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "/a"})
    assert loaded.status_code == 200, loaded.text
    for http in (one, two):
        assert "a" in [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
        assert (await http.post("/v1/chat/completions", json=CHAT | {"model": "a"})).status_code == 200
    assert (await two.post("/v1/unload_lora_adapter", json={"lora_name": "a"})).status_code == 200
    for http in (one, two):
        assert (await http.post("/v1/chat/completions", json=CHAT | {"model": "a"})).status_code == 404


async def _history(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    first = (await one.post("/v1/responses", json={"model": MODEL, "input": "hi"})).json()
    following = {"model": MODEL, "input": "and?", "previous_response_id": first["id"]}
    second = await two.post("/v1/responses", json=following)
    assert second.status_code == 200, second.text
    assert (await one.get(f"/v1/responses/{second.json()['id']}")).json()["previous_response_id"] == first["id"]
    assert (await two.delete(f"/v1/responses/{first['id']}")).status_code == 200
    assert (await one.get(f"/v1/responses/{first['id']}")).status_code == 404


async def _admission(bench: Bench, one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    """Three places, of which each front may give one too many for a moment: never more than four."""
    bench.say(ENDLESS)
    board = keeper_of(bench).board
    async with trio.open_nursery() as nursery:
        refused: list[int] = []

        async def stream() -> None:
            body = CHAT | {"stream": True}
            async with client(bench) as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    refused.append(answer.status_code)
                    return
                async for _ in answer.aiter_bytes():
                    pass

        for _ in range(3):
            nursery.start_soon(stream)
        await eventually(lambda: board.answers() == 3)
        for http in (one, two):
            assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 429
            assert (await http.get("/load")).json() == {"server_load": 3}
        workers = (await one.get("/workers")).json()["workers"]
        assert (workers[0]["load"], workers[0]["in_flight"], workers[0]["ranks"][0]["in_flight"]) == (3, 3, 3)
        assert refused == []
        nursery.cancel_scope.cancel()
    await eventually(lambda: board.answers() == 0)


async def _background(bench: Bench, one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    asked = {"model": MODEL, "input": "hi", "background": True}
    response_id = (await one.post("/v1/responses", json=asked)).json()["id"]
    await eventually(lambda: bench.engine.in_flight == 1)
    assert (await two.post(f"/v1/responses/{response_id}/cancel")).json()["status"] == "cancelled"
    await eventually(lambda: bench.engine.in_flight == 0)
    assert (await one.get(f"/v1/responses/{response_id}")).json()["status"] == "cancelled"


async def _metrics(bench: Bench) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        found = Scrape((await http.get(bench.metrics_url)).text)
    assert found.value("smg_http_requests_total", path="/v1/responses") == 3
    assert found.value("smg_http_requests_total", path="/health") == 2
    assert found.value("smg_engine_ready") == 1
    assert found.value("smg_http_rate_limit_total", result="rejected") == 2
    memory = [one.labels["process"] for one in found.samples() if one.name == "process_resident_memory_bytes"]
    assert sorted(memory) == ["0", "1", "2"]


# ---- kills ----------------------------------------------------------------------------------------------


async def read_stream(http: httpx.AsyncClient, **fields: Any) -> str:
    """The text of a streamed answer, as far as it came."""
    text = ""
    try:
        async with http.stream("POST", "/v1/completions", json=COMPLETION | fields) as answer:
            async for chunk in answer.aiter_text():
                text += chunk
    except httpx.HTTPError:
        return text
    return text


COMPLETION = {"model": MODEL, "prompt": "hi", "stream": True, "ignore_eos": True, "seed": 1}


def said(text: str) -> str:
    """What a completions stream said; asserts that it is whole."""
    chunks = events(text)
    assert chunks[-1] == "[DONE]", text
    return "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1] if chunk["choices"])


async def test_a_front_that_is_killed_takes_its_own_answers_with_it_and_nothing_else(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, COUNTING, processes="2", engine={"step_time_s": 0.02}) as bench:
        await bench.wait_all_ready()
        board = keeper_of(bench).board
        async with clients_of(bench) as fronts, httpx.AsyncClient(timeout=PATIENCE_S) as metrics:
            undisturbed = said(await read_stream(fronts[2], max_tokens=60))
            background = {"model": MODEL, "input": "hi", "background": True, "max_output_tokens": 4000}
            response_id = (await fronts[1].post("/v1/responses", json=background)).json()["id"]
            before = Scrape((await metrics.get(bench.metrics_url)).text)
            texts: dict[int, str] = {}

            async def stream(front: int, tokens: int) -> None:
                texts[front] = await read_stream(fronts[front], max_tokens=tokens)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream, 1, 4000)
                nursery.start_soon(stream, 2, 60)
                await eventually(lambda: board.answers() == bench.engine.in_flight == 3)
                killed = board.process(1).pid
                os.kill(killed, signal.SIGKILL)
            assert "[DONE]" not in texts[1]
            assert said(texts[2]) == undisturbed
            for _ in range(4):  # on whichever process accepts
                async with client(bench) as http:
                    assert len(said(await read_stream(http, max_tokens=2))) > 0
            await eventually(lambda: board.process(1).accepting and board.process(1).pid != killed)
            await eventually(lambda: bench.engine.in_flight == 0)
            assert len(bench.engine.aborts) == 2
            assert board.answers() == bench.worker.in_flight == 0
            kept = (await fronts[2].get(f"/v1/responses/{response_id}")).json()
            assert (kept["status"], kept["error"]["code"]) == ("failed", "server_error")
        async with clients_of(bench) as fronts:  # the one that was started again, too
            assert said(await read_stream(fronts[1], max_tokens=60)) == undisturbed
            async with httpx.AsyncClient(timeout=PATIENCE_S) as metrics:
                after = Scrape((await metrics.get(bench.metrics_url)).text)
            for name in ("smg_http_requests_total", "smg_router_tokens_total"):
                assert after.value(name) >= before.value(name) > 0
        bench.shutdown.ask()
        with trio.fail_after(PATIENCE_S):
            await bench.ended.wait()
        assert bench.shutdown.clean


async def test_a_stopped_front_stops_no_engine_that_is_relayed_to_it(tmp_path: Path) -> None:
    """TokenSpeed knows one socket pair: the keeper passes on what the engine says, and does not wait for anybody."""
    async with open_gateway(tmp_path, protocol=TOKENSPEED, processes="2", engine={"step_time_s": 0.005}) as bench:
        await bench.wait_all_ready()
        async with clients_of(bench) as fronts:
            texts = [(await http.post("/v1/chat/completions", json=CHAT)).json() for http in fronts.values()]
            assert {text["choices"][0]["message"]["content"] for text in texts} == {"Hello world"}
            bench.say(COUNTING)
            stopped = keeper_of(bench).board.process(1).pid
            async with trio.open_nursery() as nursery:
                found: list[str] = []

                async def stream() -> None:
                    found.append(await read_stream(fronts[1], max_tokens=100))

                nursery.start_soon(stream)
                await eventually(lambda: bench.engine.in_flight == 1)
                os.kill(stopped, signal.SIGSTOP)
                assert len(said(await read_stream(fronts[2], max_tokens=150))) > 150
                os.kill(stopped, signal.SIGCONT)
            assert len(said(found[0])) > 100
            bench.kill(bench.engine)
            for http in fronts.values():
                await eventually(lambda: bench.worker.state is not WorkerState.READY)
                assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 503
            bench.start_engine(HELLO)
            await bench.wait_ready()
            for http in fronts.values():
                with trio.fail_after(PATIENCE_S):
                    while (await http.get("/readiness")).status_code != 200:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_connections_are_spread_evenly_and_the_queue_is_served_at_the_end(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, processes="3") as bench:
        await bench.http.aclose()
        async with AsyncExitStack() as stack:
            for _ in range(6):
                http = await stack.enter_async_context(client(bench))
                assert (await http.get("/health")).status_code == 200
            assert connections(bench) == dict.fromkeys(range(1, 4), 2)
        await eventually(lambda: not any(connections(bench).values()))
        # All processes stand still: what comes now waits in the kernel's queue until they go on, and drain.
        pids = [keeper_of(bench).board.process(index).pid for index in range(1, 4)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        streams = [await trio.open_tcp_stream("127.0.0.1", bench.port) for _ in range(64)]
        for stream in streams:
            await stream.send_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        bench.shutdown.ask()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)  # to the whole group, as service managers do: it counts once
            os.kill(pid, signal.SIGCONT)
        for stream in streams:
            with trio.fail_after(PATIENCE_S):
                assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 200")
            await stream.aclose()
        with trio.fail_after(PATIENCE_S):
            await bench.ended.wait()
        assert bench.shutdown.clean
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", bench.port)


async def test_the_keepers_death_ends_all_processes_after_what_is_in_flight_and_the_next_gateway_adopts(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as place:
        await place.start_engines()
        gateway = await place.start_gateway("--processes", "2")
        await gateway.ready()
        fronts = children_of(gateway.process.pid)
        assert len(fronts) == 2
        async with gateway.client() as http:
            body = {"model": MODEL, "messages": HI, "stream": True, "max_tokens": 60, "ignore_eos": True}
            async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                chunks = answer.aiter_text()
                text = await anext(chunks)
                await gateway.kill()
                async for chunk in chunks:
                    text += chunk
        assert events(text)[-1] == "[DONE]"
        await eventually(lambda: not any(map(is_alive, fronts)))
        again = await place.start_gateway("--processes", "2")
        await again.ready()
        assert await again.chat()
        assert any("adopted" in line for line in again.log)


def children_of(pid: int) -> list[int]:
    """The processes that the process has started."""
    found = [thread / "children" for thread in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for children in found for child in children.read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_keys_the_live_page_and_a_front_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts_module, "_LOOK_EVERY_S", 0.05)
    key = {"authorization": "Bearer k"}
    limits = {"api_key": ("k",), "key_max_concurrent_requests": 2}
    async with open_gateway(tmp_path, ENDLESS, processes="2", engine={"step_time_s": 0.01}, **limits) as bench:
        bench.http.headers.update(key)
        await bench.wait_all_ready()
        board = keeper_of(bench).board
        async with clients_of(bench) as fronts, trio.open_nursery() as nursery:
            for http in fronts.values():
                http.headers.update(key)
                nursery.start_soon(ignore_end, http, CHAT | {"stream": True})
            await eventually(lambda: board.answers() == 2)
            for _ in range(2):
                async with client(bench, **key) as http:
                    refused = await http.post("/v1/chat/completions", json=CHAT)
                    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            async with watch(bench, ("authorization", "Bearer k")) as one, watch(bench, *key.items()) as two:
                for socket in (one, two):
                    seen = await wait_for(socket, lambda snapshot: snapshot["rates"] is not None)
                    assert seen["requests"]["total"] == len(seen["requests"]["shown"]) == 2
                    assert seen["admission"]["in_flight"] == 2
                    assert seen["rates"]["output_tokens_per_s"] > 0
                    assert [one["answers"] for one in seen["gateway"]["processes"]] == [1, 1]
                    assert seen["errors"][0]["code"] == "rate_limit_exceeded"
            monkeypatch.setattr(fronts_module, "_HANGING_S", 2.5)
            hung = board.process(1).pid
            os.kill(hung, signal.SIGSTOP)
            await eventually(lambda: board.process(1).accepting and board.process(1).pid != hung)
            # The slot that its answer had is free; the other front's answer goes on.
            assert board.answers() == 1
            async with (
                client(bench, **key) as http,
                http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as answer,
            ):
                assert answer.status_code == 200
            nursery.cancel_scope.cancel()


async def ignore_end(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """Read a stream for as long as it comes."""
    with suppress(httpx.HTTPError):
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                pass


async def test_a_front_that_cannot_start_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_process, "environment", lambda own: {"PYTHONHOME": "/nowhere"})
    with pytest.RaisesGroup(pytest.RaisesExc(GatewayFault, match="ended with code 1"), flatten_subgroups=True):
        async with open_gateway(tmp_path, processes="2", connect=False) as bench:
            await bench.ended.wait()
