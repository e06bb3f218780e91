"""Engines on other hosts (``tcp://`` workers): a link that breaks and stalls, strangers, restarts.

The other host is another loopback address behind a relay that the test cuts and freezes.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import zmq

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.workers import RankPhase
from smg_trio.wire.addresses import parse_worker_url
from smg_trio.wire.handshake import identity_of_rank

from .harness import COUNTING, HI, MODEL, PATIENCE_S, SLOW, TOKENSPEED, VLLM, Bench, open_gateway, worker_url
from .tcp_relay import ENGINE_SIDE, GATEWAY_SIDE, Relay, relaying

CHAT: dict[str, Any] = {"model": MODEL, "messages": HI, "stream": True, "return_token_ids": True, "max_tokens": 60}


def three_ports() -> int:
    """The first of three neighbouring ports that are free on both sides."""
    for port in random.SystemRandom().sample(range(10_000, 19_990), 100):
        with socket.socket() as a, socket.socket() as b, socket.socket() as c:
            try:
                for offset, probe in enumerate((a, b, c)):
                    probe.bind((GATEWAY_SIDE, port + offset))
            except OSError:
                continue
            return port
    raise RuntimeError("no free ports")


@dataclass
class Remote:
    """A gateway, and an engine on what is another host to it."""

    bench: Bench
    relay: Relay
    port: int

    @property
    def phase(self) -> RankPhase:
        return self.bench.worker.snapshot().ranks[0].phase


@asynccontextmanager
async def remote(tmp_path: Path, protocol: EngineProtocol = VLLM, **settings: Any) -> AsyncIterator[Remote]:
    """One engine, behind the relay."""
    port = three_ports()
    chosen = {"worker_urls": (f"tcp://{GATEWAY_SIDE}:{port}",), "zmq_advertise_host": ENGINE_SIDE} | settings
    async with (
        open_gateway(tmp_path, protocol=protocol, engine=SLOW, connect=False, **chosen) as bench,
        relaying(port, port + 1, port + 2) as relay,
    ):
        bench.start_engine(COUNTING, handshake=f"tcp://{ENGINE_SIDE}:{port}")
        await bench.wait_ready()
        yield Remote(bench, relay, port)


async def read(http: httpx.AsyncClient) -> AsyncIterator[tuple[list[int], dict[str, Any]]]:
    """(ids so far, last chunk) of a streamed answer, chunk by chunk."""
    ids: list[int] = []
    async with http.stream("POST", "/v1/chat/completions", json=CHAT) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            for choice in chunk.get("choices", ()):
                ids += choice.get("token_ids") or []
            yield ids, chunk


async def whole(http: httpx.AsyncClient) -> list[int]:
    """The ids of an answer that nothing disturbs."""
    answer: list[int] = []
    async for ids, chunk in read(http):
        assert "error" not in chunk
        answer = ids
    return answer


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_a_broken_connection_ends_its_streams_and_the_engine_is_taken_back(
    tmp_path: Path, protocol: EngineProtocol
) -> None:
    async with remote(tmp_path, protocol) as site:
        http, engine = site.bench.http, site.bench.engine
        expected = await whole(http)
        assert len(expected) == 60
        broken = set()
        for attempt in range(6):
            ports = ((site.port + 2,), (site.port + 1,), (site.port + 1, site.port + 2))[attempt % 3]
            uncut = True
            with trio.fail_after(PATIENCE_S):
                async for ids, chunk in read(http):
                    assert ids == expected[: len(ids)], "no hole"
                    if uncut and len(ids) >= 3 + attempt:
                        uncut = False
                        site.relay.cut(*ports)
                    error = chunk.get("error")
                if error is None:
                    assert ids == expected
                else:
                    broken.add(ports)
                    assert error["code"] == "engine_connection_lost", error
                await site.bench.wait_ready()
        assert len(broken) == 3
        assert await whole(http) == expected
        with trio.fail_after(PATIENCE_S):
            await engine.wait_until(lambda: not engine.in_flight)  # what was cut is aborted when it speaks


async def test_an_engine_that_connects_again_before_the_break_is_known_here_leaves_no_hole(tmp_path: Path) -> None:
    async with remote(tmp_path, zmq_heartbeat_secs=0) as site:
        expected = await whole(site.bench.http)
        error, uncut = None, True
        with trio.fail_after(PATIENCE_S):
            async for ids, chunk in read(site.bench.http):
                assert ids == expected[: len(ids)], "no hole"
                error = chunk.get("error")
                if uncut and len(ids) >= 5:
                    uncut = False
                    site.relay.cut(site.port + 2, half=True)
        assert error is not None
        assert error["code"] == "engine_connection_lost"
        await site.bench.wait_ready()
        assert await whole(site.bench.http) == expected


async def test_what_nothing_was_said_of_yet_goes_to_another_worker(tmp_path: Path) -> None:
    beside = worker_url(tmp_path, "beside")
    port = three_ports()
    urls = (f"tcp://{GATEWAY_SIDE}:{port}", beside)
    settings: dict[str, Any] = {"worker_urls": urls, "zmq_advertise_host": ENGINE_SIDE, "policy": "round_robin"}
    async with (
        open_gateway(tmp_path, engine=SLOW, connect=False, **settings) as bench,
        relaying(port, port + 1, port + 2) as relay,
    ):
        far = bench.start_engine(COUNTING, handshake=f"tcp://{ENGINE_SIDE}:{port}")
        near = bench.start_engine(COUNTING, handshake=parse_worker_url(beside).handshake)
        for index in (0, 1):
            await bench.wait_ready(index)
        far.go_silent()

        async def ask() -> None:
            assert (await bench.chat(max_tokens=3)).status_code == 200

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await far.wait_received()
            relay.cut(port + 1, port + 2)
        assert len(near.received) == 2


async def test_a_short_stall_costs_time_only(tmp_path: Path) -> None:
    async with remote(tmp_path) as site:
        expected = await whole(site.bench.http)
        with trio.fail_after(PATIENCE_S):
            async for ids, chunk in read(site.bench.http):
                assert "error" not in chunk
                if len(ids) == 5:
                    site.relay.freeze()
                    await site.relay.held.wait()
                    site.relay.thaw()
        assert ids == expected


async def test_a_host_that_does_not_answer_is_noticed_by_heartbeats(tmp_path: Path) -> None:
    async with remote(tmp_path, zmq_heartbeat_secs=0.2) as site:
        with trio.fail_after(PATIENCE_S):
            async for ids, chunk in read(site.bench.http):
                last = chunk
                if len(ids) == 5:
                    site.relay.freeze()
        assert last["error"]["code"] == "engine_connection_lost"
        assert site.phase is RankPhase.WAITING
        assert (await site.bench.chat()).status_code == 503
        site.relay.thaw()
        await site.bench.wait_ready()
        assert (await site.bench.chat(max_tokens=3)).status_code == 200


async def test_an_engine_that_was_started_anew_says_hello(tmp_path: Path) -> None:
    async with remote(tmp_path) as site:
        site.bench.kill(site.bench.engine)
        with trio.fail_after(PATIENCE_S):
            while site.phase is RankPhase.READY:
                await site.bench.worker.wait_change()
        site.bench.start_engine(COUNTING, handshake=f"tcp://{ENGINE_SIDE}:{site.port}")
        await site.bench.wait_ready()
        assert (await site.bench.chat(max_tokens=3)).status_code == 200


async def test_peers_that_are_not_allowed_are_kept_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    allowed = (f"{GATEWAY_SIDE}/32", f"{ENGINE_SIDE}/32")
    async with remote(tmp_path, zmq_allow_peers=allowed) as site:
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.set(zmq.IDENTITY, identity_of_rank(0))
            stranger.connect(f"tcp://127.0.0.9:0;{GATEWAY_SIDE}:{site.port + 1}")
            with trio.fail_after(PATIENCE_S):
                while "connection from 127.0.0.9" not in caplog.text:
                    await trio.lowlevel.checkpoint()
        assert site.phase is RankPhase.READY
        assert len(await whole(site.bench.http)) == 60


async def test_a_restarted_gateway_finds_its_engine_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_ZMQ_SOCKET_DIR", str(tmp_path / "state"))
    port = three_ports()
    url = f"tcp://{GATEWAY_SIDE}:{port}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with open_gateway(tmp_path / "a", engine=SLOW, connect=False, worker_urls=(url,)) as first:
        first.start_engine(COUNTING, handshake=url)
        await first.wait_ready()
        first.shutdown.ask()
        with trio.fail_after(PATIENCE_S):
            await first.ended.wait()
        async with open_gateway(tmp_path / "b", connect=False, worker_urls=(url,)) as second:
            await second.wait_ready()
            assert (await second.chat(max_tokens=3)).status_code == 200
