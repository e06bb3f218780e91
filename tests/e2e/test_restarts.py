"""A gateway that is killed and started again while its engines live, and a second one that must keep its hands off."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from smg_trio.wire.addresses import parse_worker_url

from .harness import HI, MODEL, PATIENCE_S, read_log, wait_ready_at, worker_url
from .model import TestModel

START_LIMIT_S = 30.0


class Site:
    """A model, a worker URL, and the processes that use them."""

    def __init__(self, directory: Path, nursery: trio.Nursery, ranks: int) -> None:
        self.model = TestModel(directory / "model")
        self.url = worker_url(directory, "r")
        self.nursery = nursery
        self.ranks = ranks

    async def start_gateway(self, *flags: str) -> Gateway:
        """``launch`` until it listens."""
        command = [
            sys.executable, "-m", "smg_trio", "launch", "--worker-urls", self.url, "--backend", "vllm",
            "--model-path", str(self.model.directory), "--served-model-name", MODEL, "--host", "127.0.0.1",
            "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0",
            "--zmq-engine-count", str(self.ranks), *flags,
        ]  # fmt: skip
        log: list[str] = []
        ports: list[int] = []
        started = trio.Event()
        process = await self._start(command)
        self.nursery.start_soon(read_log, process, log, ports, started)
        with trio.fail_after(START_LIMIT_S):
            await started.wait()
        return Gateway(process, ports[0], log)

    async def start_engines(self) -> trio.Process:
        """All ranks in one process, which outlives every gateway."""
        command = [
            sys.executable, "-m", "smg_trio", "fake-engine", "--handshake", parse_worker_url(self.url).handshake,
            "--ranks", str(self.ranks), "--step-ms", "5", "--vocab-size", str(self.model.vocab_size),
        ]  # fmt: skip
        return await self._start(command)

    async def _start(self, command: list[str]) -> trio.Process:
        process: trio.Process = await self.nursery.start(
            partial(trio.run_process, command, stderr=subprocess.PIPE, check=False)
        )
        return process


class Gateway:
    """A running ``launch``."""

    def __init__(self, process: trio.Process, port: int, log: list[str]) -> None:
        self.process = process
        self.port = port
        self.log = log

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        base_url = f"http://127.0.0.1:{self.port}"
        async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, verify=False) as http:
            yield http

    async def chat(self) -> str:
        """An answer's text."""
        async with self.client() as http:
            body = {"model": MODEL, "messages": HI, "max_tokens": 5, "seed": 1, "ignore_eos": True}
            answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    async def ready(self) -> None:
        """Wait until it serves."""
        with trio.fail_after(START_LIMIT_S):
            await wait_ready_at(self.port)

    async def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def site(directory: Path, ranks: int = 1) -> AsyncIterator[Site]:
    async with trio.open_nursery() as nursery:
        try:
            yield Site(directory, nursery, ranks)
        finally:
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_gateway_killed_with_requests_in_flight_is_followed_by_one_that_takes_the_engines_over(
    tmp_path: Path, ranks: int
) -> None:
    async with site(tmp_path, ranks) as here:
        first = await here.start_gateway()
        engines = await here.start_engines()
        await first.ready()
        before = await first.chat()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(endless_stream, first)
            async with first.client() as http:
                with trio.fail_after(PATIENCE_S):
                    while await in_flight(http) < 4:
                        await trio.lowlevel.checkpoint()
            await first.kill()
        second = await here.start_gateway()
        await second.ready()
        assert await second.chat() == before
        assert engines.returncode is None
        assert any("adopted" in line for line in second.log)
        # What the first gateway had in flight has been aborted: the engines' own figures go back to nothing.
        async with second.client() as http:
            with trio.fail_after(PATIENCE_S):
                while await running(http):
                    await second.chat()
            [worker] = (await http.get("/workers")).json()["workers"]
            assert worker["in_flight"] == worker["load"] == 0


async def endless_stream(gateway: Gateway) -> None:
    """Read a long stream until it breaks off, as it does when the gateway is killed."""
    body = {"model": MODEL, "messages": HI, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with gateway.client() as http:
        with pytest.raises(httpx.TransportError):
            await http.post("/v1/chat/completions", json=body)


async def in_flight(http: httpx.AsyncClient) -> int:
    [worker] = (await http.get("/workers")).json()["workers"]
    return int(worker["in_flight"])


async def running(http: httpx.AsyncClient) -> int:
    """Requests at the engines by their own word; it comes with outputs only."""
    [worker] = (await http.get("/workers")).json()["workers"]
    return sum(rank["num_running_reqs"] for rank in worker["ranks"])


async def test_a_second_gateway_on_the_same_url_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        first = await here.start_gateway()
        await here.start_engines()
        await first.ready()
        second = await here.start_gateway()
        async with second.client() as http:
            with trio.fail_after(PATIENCE_S):
                while (worker := (await http.get("/workers")).json()["workers"][0])["status"] != "failed":
                    await trio.lowlevel.checkpoint()
            path = here.url.removeprefix("ipc://")
            assert worker["status_reason"] == f"another live gateway serves the sockets at {path}"
            assert (await http.get("/readiness")).status_code == 503
            body = {"model": MODEL, "messages": HI}
            refused = await http.post("/v1/chat/completions", json=body)
            assert refused.status_code == 503
            assert "another live gateway" in refused.json()["error"]["message"]
        assert await first.chat()
        # Once the first is gone, the second takes over by itself.
        await first.kill()
        await second.ready()
        assert await second.chat()
