"""Health, models and load of a worker behind HTTP, by a clock of the test's own and by real probes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.upstream.client import UpstreamRequest
from smg_trio.upstream.connections import Connection
from smg_trio.upstream.errors import UpstreamUnreachable
from smg_trio.upstream.http_worker import HttpWorker, HttpWorkerOptions

Answers = dict[str, tuple[int, Any] | None]
READY, NOT_READY, PENDING = WorkerState.READY, WorkerState.NOT_READY, WorkerState.PENDING
VLLM = {"data": [{"id": "m", "owned_by": "vllm"}]}
SMG = {"data": [{"id": "m", "owned_by": "self_hosted", "files": None}]}
METRICS = (
    '# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 3.0\n'
    'vllm:num_requests_running{engine="1"} 2.0\nvllm:num_requests_waiting{engine="0"} 4.0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.25\n'
)


class MemoryServer:
    """A server in memory: by path what it answers, None for nothing at all."""

    def __init__(self, nursery: trio.Nursery, **answers: Any) -> None:
        self.answers: Answers = {"/health": (200, ""), "/v1/models": (200, VLLM), "/metrics": (404, "")}
        self.up = True
        self.asked: list[tuple[float, str]] = []
        self._nursery = nursery

    async def connect(self) -> Connection:
        if not self.up:
            raise UpstreamUnreachable("Worker w cannot be reached (refused).")
        ours, theirs = trio.testing.memory_stream_pair()

        def close() -> None:
            ours.send_stream.close()
            ours.receive_stream.close()

        self._nursery.start_soon(self._serve, theirs)
        return Connection(ours, close)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            while data := await stream.receive_some():
                path = bytes(data).split(b" ")[1].decode()
                self.asked.append((trio.current_time(), path))
                answer = self.answers.get(path, (404, ""))
                if answer is None:
                    await trio.sleep_forever()
                    return
                status, value = answer
                body = (value if isinstance(value, str) else json.dumps(value)).encode()
                await stream.send_all(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def times(self, path: str) -> list[float]:
        return [at for at, asked in self.asked if asked == path]


@asynccontextmanager
async def watched(
    change: Callable[[MemoryServer], None] = lambda server: None, **spec: Any
) -> AsyncIterator[tuple[HttpWorker, MemoryServer]]:
    async with trio.open_nursery() as nursery:
        server = MemoryServer(nursery)
        change(server)
        told = WorkerSpec(worker_id="w", url="http://h", model_id="", **spec) if "model_id" not in spec else None
        worker = HttpWorker(
            told or WorkerSpec(worker_id="w", url="http://h", **spec), HttpWorkerOptions(), connect=server.connect
        )
        nursery.start_soon(worker.run)
        await trio.sleep(0.5)
        yield worker, server
        nursery.cancel_scope.cancel()


async def test_a_worker_becomes_ready_and_is_probed_every_ten_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (worker, server):
        assert (worker.state, worker.models, worker.runtime) == (READY, {"m"}, "vllm")
        await trio.sleep(100)
        assert 9 <= len(server.times("/health")) <= 12
        assert 2 <= len(server.times("/v1/models")) <= 3


async def test_one_miss_is_looked_at_again_and_two_make_it_not_ready(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (worker, server):
        server.answers["/health"] = None
        began = trio.current_time()
        await worker.wait_state(NOT_READY)
        assert trio.current_time() - began < 11 + 5 + 1.2 + 5.1
        assert "5s" in worker.snapshot().reason
        assert worker.models == {"m"}  # so that requests are told it is not ready, not that there is no such model
        server.answers["/health"] = (200, "")
        await worker.wait_state(READY)


async def test_a_miss_that_is_followed_by_a_good_probe_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (worker, server):
        for _ in range(3):
            server.answers["/health"] = None
            await trio.sleep(15.2)
            server.answers["/health"] = (200, "")
            await trio.sleep(25)
            assert worker.state is READY


async def test_a_server_that_is_not_there_yet_stays_pending_and_comes(autojump_clock: trio.testing.MockClock) -> None:
    def away(server: MemoryServer) -> None:
        server.up = False

    async with watched(away) as (worker, server):
        await trio.sleep(600)
        assert (worker.state, worker.models) == (PENDING, frozenset())
        assert "refused" in worker.snapshot().reason
        server.up = True
        await worker.wait_state(READY)


async def test_a_failed_request_has_it_probed_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (worker, server):
        server.up = False
        worker.client.pool.close()
        worker.suspect(UpstreamUnreachable("x"))
        began = trio.current_time()
        await worker.wait_state(NOT_READY)
        assert trio.current_time() - began < 2


async def test_a_refused_key_is_asked_about_once_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    def refuses(server: MemoryServer) -> None:
        server.answers["/v1/models"] = (401, {})

    async with watched(refuses) as (worker, server):
        await trio.sleep(300)
        assert worker.state is PENDING
        assert "api_key" in worker.snapshot().reason
        assert len(server.times("/v1/models")) <= 6


async def test_models_come_and_go(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (worker, server):
        server.answers["/v1/models"] = (200, {"data": [{"id": "m"}, {"id": "adapter", "parent": "m"}]})
        await trio.sleep(75)
        assert worker.models == {"m", "adapter"}
        server.answers["/v1/models"] = (200, VLLM)
        await trio.sleep(75)
        assert worker.models == {"m"}


@pytest.mark.parametrize("answer", [(404, ""), (200, "<html>"), (200, {"data": []}), (200, {"data": [{"id": 5}]})])
async def test_a_server_without_a_list_of_models(
    autojump_clock: trio.testing.MockClock, answer: tuple[int, Any]
) -> None:
    def listless(server: MemoryServer) -> None:
        server.answers["/v1/models"] = answer

    async with watched(listless) as (worker, _):
        assert worker.state is PENDING
        assert "model_id" in worker.snapshot().reason
    async with watched(listless, model_id="named") as (worker, _):
        assert (worker.state, worker.models, worker.snapshot().model_id) == (READY, {"named"}, "named")


async def test_another_smg_trio_is_asked_for_its_readiness_and_its_loads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def smg(server: MemoryServer) -> None:
        server.answers["/v1/models"] = (200, SMG)
        loads = [{"num_running_reqs": 5, "num_waiting_reqs": 1, "token_usage": 0.5}] * 2
        server.answers |= {"/readiness": (200, {}), "/v1/loads": (200, {"loads": loads})}

    async with watched(smg) as (worker, server):
        assert worker.runtime == "smg-trio"
        await trio.sleep(20)
        assert worker.load == 6  # per engine
        assert [(one.running, one.waiting, one.kv_usage) for one in worker.busy_loads()] == [(10, 2, 0.5)]
        server.answers["/readiness"] = (503, {"reason": "draining"})
        await worker.wait_state(NOT_READY)
        assert "draining" in worker.snapshot().reason
        assert worker.load == 0


async def test_the_load_is_the_servers_word_or_our_count(autojump_clock: trio.testing.MockClock) -> None:
    def counting(server: MemoryServer) -> None:
        server.answers |= {"/metrics": (200, METRICS), "/long": None}

    async with watched(counting) as (worker, server):
        await trio.sleep(10)
        assert worker.load == 4.5  # (5 running + 4 waiting) / 2 engines
        exchanges = [worker.begin(UpstreamRequest(method="POST", path="/long")) for _ in range(12)]
        assert (worker.load, worker.in_flight) == (6, 12)
        for exchange in exchanges:
            worker.leave(exchange)
        server.answers["/metrics"] = (500, "")
        await trio.sleep(30)
        assert (worker.load, worker.busy_loads(), worker.state) == (0, [], READY)


async def test_draining_and_its_end(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (worker, _):
        worker.start_draining()
        assert worker.state is WorkerState.DRAINING
        await trio.sleep(50)
        assert worker.state is WorkerState.DRAINING
