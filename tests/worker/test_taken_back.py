"""Engines that were given up while they were still connected, and have nothing to say of their own when they can."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineDead, EngineSilent
from smg_trio.core.workers import WorkerState
from smg_trio.testing.fake_engine import FakeEngine

from .harness import Bench, collect, memory_bench, request, socket_bench, tokens

both = pytest.mark.parametrize("protocol", list(EngineProtocol))


def stop(engine: FakeEngine) -> None:
    """As after SIGSTOP: it reads nothing and says nothing."""
    engine.stop_reading()
    engine.go_silent()


def go_on(engine: FakeEngine) -> None:
    """As after SIGCONT."""
    engine.speak_again()
    engine.resume_reading()


async def serves_again(bench: Bench, within_s: float) -> None:
    with trio.fail_after(within_s):
        await bench.worker.wait_state(WorkerState.READY)
    assert len(tokens(await collect(bench.worker, request()))) == 4
    assert bench.worker.in_flight == 0


@both
async def test_a_stopped_engine_is_given_up_for_silence_and_taken_back_when_it_goes_on(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        engine = await bench.ready()
        stop(engine)
        with pytest.raises(EngineSilent):
            await collect(bench.worker, request(max_tokens=100))
        await trio.sleep(3600)
        assert bench.worker.state is WorkerState.NOT_READY
        go_on(engine)
        await serves_again(bench, 61)
        assert engine.in_flight == 0
        assert engine.exit_reason is None


@both
async def test_an_engine_that_took_no_requests_is_taken_back_once_it_answers(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol, capacity=2) as bench:
        engine = await bench.ready()
        stop(engine)
        failed: list[EngineDead] = []

        async def ask() -> None:
            with pytest.raises(EngineDead, match="does not take requests") as caught:
                await collect(bench.worker, request(max_tokens=100))
            failed.append(caught.value)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        assert len(failed) == 8
        # One limit for all that is queued for it, not one for each message.
        assert trio.current_time() - began == pytest.approx(10, abs=1)
        await trio.sleep(100)
        assert bench.worker.state is WorkerState.NOT_READY
        go_on(engine)
        await serves_again(bench, 61)
        # What it could be told of before is stopped or done, whichever came first.
        with trio.fail_after(60):
            await engine.wait_until(lambda: engine.in_flight == 0)


async def test_a_deaf_engine_that_still_talks_is_not_taken_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, capacity=2) as bench:
        engine = await bench.ready(step_time_s=1.0)
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(EngineDead):
                    await collect(bench.worker, request(max_tokens=5000))

            nursery.start_soon(ask)
            await engine.wait_received(1)
            engine.stop_reading()
            for _ in range(8):
                nursery.start_soon(ask)
        await trio.sleep(100)
        assert engine.in_flight >= 1
        assert bench.worker.state is WorkerState.NOT_READY


@both
async def test_an_engine_given_up_for_garbage_is_taken_back_when_it_talks_sense(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        engine = await bench.ready(step_time_s=5.0)
        await collect(bench.worker, request())  # so that its connection is known
        with pytest.raises(EngineDead, match="cannot be decoded"):
            async with bench.worker.generate(request(max_tokens=1000)) as stream:
                await engine.wait_received(2)
                engine.send_garbage(3)
                await stream.receive_batch()
        await serves_again(bench, 61)
        assert len(engine.aborts) == 1
        assert engine.in_flight == 0


async def test_one_that_goes_away_after_it_was_given_up_is_waited_for_like_any_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        stop(engine)
        with pytest.raises(EngineSilent):
            await collect(bench.worker, request(max_tokens=100))
        bench.kill(engine)
        await trio.sleep(1000)
        assert bench.worker.state is WorkerState.NOT_READY
        await bench.ready()
        await serves_again(bench, 1)


@both
async def test_it_is_so_on_real_sockets_too(tmp_path: Path, protocol: EngineProtocol) -> None:
    async with socket_bench(tmp_path, protocol=protocol, silence_limit_s=0.2) as bench:
        engine = await bench.ready()
        stop(engine)
        with pytest.raises(EngineSilent):
            await collect(bench.worker, request(max_tokens=100))
        go_on(engine)
        await serves_again(bench, 10)


@pytest.mark.parametrize("reconnects", [True, False])
async def test_the_last_word_of_a_rank_that_is_back_at_once_costs_its_group_nothing(
    tmp_path: Path, reconnects: bool, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        first, second = bench.start_engine(0), bench.start_engine(1)
        await bench.worker.wait_state(WorkerState.READY)
        if reconnects:
            first.restart(sentinel=True)
        else:
            first.send_raw([b"ENGINE_CORE_DEAD"])  # and then it goes on all the same
        await trio.sleep(70)
        phases = [rank.phase.value for rank in bench.worker.snapshot().ranks]
        assert phases == ["ready", "ready"]
        for _ in range(4):
            assert len(tokens(await collect(bench.worker, request()))) == 4
        assert first.received
        assert second.received
        assert second.exit_reason is None
