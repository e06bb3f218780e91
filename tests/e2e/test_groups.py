"""Several engines behind one worker: dense ranks live and die alone, lockstep ranks together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.core.workers import WorkerState
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from tests.waiting import until

from .harness import ENDLESS, HELLO, PATIENCE_S, SLOW, TOKENSPEED, VLLM, Bench, error_of, events, open_gateway

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])


async def ranks(bench: Bench) -> list[dict[str, Any]]:
    [worker] = (await bench.http.get("/workers")).json()["workers"]
    found: list[dict[str, Any]] = worker["ranks"]
    return found


async def wait_rank(bench: Bench, rank: int, status: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while (await ranks(bench))[rank]["status"] != status:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_group(tmp_path: Path, says: str, *, lockstep: bool = False, **settings: Any) -> AsyncIterator[Bench]:
    """A worker of two engines, both ready."""
    async with open_gateway(tmp_path, says, words=HELLO, connect=False, zmq_engine_count=2, **settings) as bench:
        group = LockstepGroup(2) if lockstep else None
        for rank in range(2):
            bench.start_engine(says, rank=rank, group_size=2, lockstep=lockstep, group=group, **SLOW)
        await bench.wait_ready()
        yield bench


async def in_flight(bench: Bench, counts: list[int]) -> None:
    """Wait until the engines have so many requests each."""
    with trio.fail_after(PATIENCE_S):
        for engine, count in zip(bench.engines, counts, strict=True):
            await engine.wait_until(lambda: engine.in_flight == count)  # noqa: B023


@both
async def test_a_group_serves_when_all_its_engines_are_there_and_says_who_is_missing(
    tmp_path: Path, protocol: Any
) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, protocol=protocol, zmq_engine_count=2) as bench:
        bench.start_engine(HELLO, rank=1, group_size=2)
        await wait_rank(bench, 1, "ready")
        assert (await bench.http.get("/readiness")).json()["reason"] == "insufficient healthy workers"
        [worker] = (await bench.http.get("/workers")).json()["workers"]
        assert worker["status"] == "pending"
        assert worker["dp_size"] == 2
        assert worker["status_reason"] == "1 of 2 ranks ready (rank 0: waiting for HELLO)"
        assert "rank 0: waiting for HELLO" in error_of(await bench.chat(), 503)["message"]
        bench.start_engine(HELLO, rank=0, group_size=2)
        await bench.wait_ready()
        assert (await bench.chat_text())[0] == "Hello world"
        await bench.wait_idle()


@both
async def test_a_burst_is_spread_over_the_ranks(tmp_path: Path, protocol: Any) -> None:
    async with open_group(tmp_path, ENDLESS, protocol=protocol) as bench:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(bench.chat)
            await in_flight(bench, [4, 4])
            assert [rank["in_flight"] for rank in await ranks(bench)] == [4, 4]
            nursery.cancel_scope.cancel()
        await bench.wait_idle()
        await in_flight(bench, [0, 0])
        assert sorted(len(engine.aborts) for engine in bench.engines) == [4, 4]


@both
async def test_a_dead_dense_rank_takes_only_its_own_requests_and_is_taken_back(tmp_path: Path, protocol: Any) -> None:
    async with open_group(tmp_path, ENDLESS, protocol=protocol, disable_retries=True) as bench:
        dying, living = bench.engines
        texts: list[str] = []

        async def stream() -> None:
            texts.append((await bench.chat(stream=True, max_tokens=120)).text)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(stream)
            await in_flight(bench, [2, 2])
            with trio.fail_after(PATIENCE_S):  # so that every stream has begun
                while bench.gateway.answers < 4 or min(rank["num_running_reqs"] for rank in await ranks(bench)) < 2:
                    await trio.lowlevel.checkpoint()
            bench.kill(dying)
            await wait_rank(bench, 0, "waiting")
            [_, other] = await ranks(bench)
            assert (await ranks(bench))[0]["reason"] == "the engine closed its connection"
            assert other["status"] == "ready"
            assert (await bench.http.get("/readiness")).status_code == 200
        failed = [text for text in texts if '"error"' in text]
        assert len(texts) == 4
        assert len(failed) == 2
        for text in texts:
            assert events(text)[-1] == "[DONE]"
            assert text.count("[DONE]") == 1
        living.choose_script = bench.script(HELLO)
        before = len(living.received)
        for _ in range(3):
            assert (await bench.chat()).status_code == 200
        assert len(living.received) == before + 3
        back = bench.start_engine(HELLO, rank=0, group_size=2)
        await wait_rank(bench, 0, "ready")
        for _ in range(4):
            assert (await bench.chat()).status_code == 200
        assert back.received
        await bench.wait_idle()


async def test_an_engine_too_many_or_a_stranger_with_a_taken_rank_disturbs_nobody(tmp_path: Path, caplog: Any) -> None:
    async with open_group(tmp_path, HELLO) as bench:
        await _refused(bench, caplog, 2, "HELLO from unexpected engine id 2: this worker has 2 engine(s)")
        await _refused(bench, caplog, 1, "duplicate HELLO for engine id 1 after INIT phase")
        for _ in range(4):
            assert (await bench.chat()).status_code == 200
        assert [len(engine.received) for engine in bench.engines] == [2, 2, 0, 0]
        assert bench.worker.state is WorkerState.READY


async def _refused(bench: Bench, caplog: Any, rank: int, words: str) -> None:
    stranger = bench.start_engine(HELLO, rank=rank, group_size=2)
    await until(lambda: words in caplog.text)
    bench.kill(stranger)


async def test_every_rank_of_a_lockstep_group_is_woken_for_each_request(tmp_path: Path) -> None:
    async with open_group(tmp_path, HELLO, lockstep=True) as bench:
        for number in range(1, 5):
            assert (await bench.chat_text())[0] == "Hello world"
            for engine in bench.engines:
                with trio.fail_after(PATIENCE_S):
                    await engine.wait_waves(number)
        for engine in bench.engines:
            waves = [wave for wave, _ in engine.waves]
            assert waves == sorted(waves)
        [worker] = (await bench.http.get("/workers")).json()["workers"]
        assert worker["wave"] >= 1
        await bench.wait_idle()


async def test_a_lockstep_group_dies_as_one_and_comes_back_as_one(tmp_path: Path) -> None:
    async with open_group(tmp_path, ENDLESS, lockstep=True, disable_retries=True) as bench:
        texts: list[httpx.Response] = []

        async def stream() -> None:
            texts.append(await bench.chat(stream=True))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(stream)
            await in_flight(bench, [2, 2])
            bench.kill(bench.engines[1])
        assert len(texts) == 4
        for answer in texts:
            assert answer.status_code == 503 or '"error"' in answer.text
        with trio.fail_after(PATIENCE_S):
            await bench.worker.wait_state(WorkerState.NOT_READY)
        assert (await bench.http.get("/readiness")).status_code == 503
        error_of(await bench.chat(), 503)
        bench.kill(bench.engines[0])
        await _come_back(bench)
        assert (await bench.chat_text())[0] == "Hello world"
        await bench.wait_idle()


async def _come_back(bench: Bench) -> list[FakeEngine]:
    group = LockstepGroup(2)
    engines = [
        bench.start_engine(HELLO, rank=rank, group_size=2, lockstep=True, group=group, **SLOW) for rank in range(2)
    ]
    await bench.wait_ready()
    return engines
