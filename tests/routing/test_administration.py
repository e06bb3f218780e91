"""Methods called on every engine of some workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineFault, NoReadyWorker, NotImplementedByEngine
from smg_trio.core.workers import WorkerState
from smg_trio.routing.administration import call_all, call_each, engines_of
from tests.worker.harness import memory_bench


async def test_every_rank_is_called_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=3) as bench:
        for rank in range(3):
            bench.start_engine(rank, group_size=3)
        await bench.worker.wait_state(WorkerState.READY)
        engines = engines_of([bench.worker])
        assert [rank for _, rank in engines] == [0, 1, 2]
        assert await call_all(engines, "is_sleeping", timeout_s=1.0) == [False] * 3


async def test_one_failure_is_told_after_all_have_answered(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        bench.start_engine(0, group_size=2, supports_lora=True)
        bench.start_engine(1, group_size=2)
        await bench.worker.wait_state(WorkerState.READY)
        engines = engines_of([bench.worker])
        loaded, refused = await call_each(engines, "add_lora", ["x", 1, "/x"], timeout_s=1.0)
        assert loaded is True
        assert isinstance(refused, EngineFault)
        with pytest.raises(EngineFault, match="LoRA is not enabled"):
            await call_all(engines, "add_lora", ["x", 1, "/x"], timeout_s=1.0)


async def test_a_silent_engine_is_waited_for_no_longer_than_the_limit(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        engine.go_silent()
        with pytest.raises(EngineFault, match="within 7s"):
            await call_all(engines_of([bench.worker]), "is_sleeping", timeout_s=7.0)


async def test_there_must_be_an_engine_that_can_be_asked(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        with pytest.raises(NoReadyWorker, match="waiting for HELLO"):
            engines_of([bench.worker])
    with pytest.raises(NoReadyWorker, match="no worker"):
        engines_of([])
    async with memory_bench(tmp_path / "2", protocol=EngineProtocol.TOKENSPEED) as bench:
        await bench.ready()
        with pytest.raises(NotImplementedByEngine, match="tokenspeed"):
            engines_of([bench.worker])
