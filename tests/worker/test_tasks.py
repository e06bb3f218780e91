"""Which tasks an engine was started for, and that it is never sent another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import NoReadyWorker, NotImplementedByEngine, UnsupportedFeature
from smg_trio.core.requests import GenerationRequest, PoolingParams
from smg_trio.core.workers import WorkerState
from smg_trio.worker.tasks import TOKENSPEED_TASKS, TaskBook

from .harness import collect, memory_bench, request

INFO = EngineInfo(max_model_len=10)


def pooled(task: str) -> GenerationRequest:
    return GenerationRequest(request_id=task, prompt_token_ids=[1], pooling=PoolingParams(task=task))


def test_pooling_waits_until_the_engine_has_spoken_and_generating_does_not() -> None:
    book = TaskBook()
    book.check(request(), 0, INFO)
    with pytest.raises(NoReadyWorker):
        book.check(pooled("embed"), 0, INFO)
    book.note(0, INFO, ["embed"])
    book.check(pooled("embed"), 0, INFO)
    with pytest.raises(UnsupportedFeature, match="'classify'; it supports 'embed'"):
        book.check(pooled("classify"), 0, INFO)
    with pytest.raises(UnsupportedFeature, match="'generate'"):
        book.check(request(), 0, INFO)


def test_what_an_engine_said_does_not_hold_for_its_successor() -> None:
    book = TaskBook()
    book.note(0, INFO, ["embed"])
    assert book.of(0, EngineInfo(max_model_len=10)) is None
    assert book.of(1, INFO) is None


def test_tokenspeed_engines_need_not_be_asked() -> None:
    book = TaskBook(TOKENSPEED_TASKS)
    book.check(request(), 0, INFO)
    with pytest.raises(NotImplementedByEngine, match="'embed'"):
        book.check(pooled("embed"), 0, INFO)


async def test_each_engine_is_asked_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        bench.start_engine(0, supported_tasks=("generate", "embed"), group_size=2)
        bench.start_engine(1, supported_tasks=("generate",), group_size=2)
        await bench.worker.wait_state(WorkerState.READY)
        for _ in range(3):
            assert await bench.worker.supported_tasks() == {"generate"}
        assert [[call.method for call in engine.utilities] for engine in bench.engines] == [["get_supported_tasks"]] * 2


async def test_an_engine_of_another_kind_in_its_place_is_asked_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready(supported_tasks=("embed",))
        assert await bench.worker.supported_tasks() == {"embed"}
        bench.kill(engine)
        await bench.worker.wait_state(WorkerState.NOT_READY)
        with pytest.raises(NoReadyWorker):
            await bench.worker.supported_tasks()
        await bench.ready(supported_tasks=("generate",))
        with pytest.raises(UnsupportedFeature):
            await collect(bench.worker, pooled("embed"))
        assert len(await collect(bench.worker, request())) == 4


async def test_a_pooled_vector_comes_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready(supported_tasks=("embed",), embedding_size=100)
        [output] = await collect(bench.worker, pooled("embed"))
        assert output.pooled is not None
        assert len(output.pooled) == 100


@pytest.mark.parametrize("protocol", list(EngineProtocol))
async def test_an_engine_that_only_generates_survives_being_asked_to_pool(
    tmp_path: Path, autojump_clock: MockClock, protocol: Any
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        engine = await bench.ready()
        with pytest.raises((UnsupportedFeature, NotImplementedByEngine)):
            await collect(bench.worker, pooled("embed"))
        assert not engine.received


async def test_a_paused_engine_that_owes_output_is_asked_and_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        await bench.worker.call_utility("pause_scheduler", "keep")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, bench.worker, request())
            await engine.wait_until(lambda: [one.method for one in engine.utilities].count("is_scheduler_paused") == 2)
            assert trio.current_time() >= 600
            assert bench.worker.state is WorkerState.READY
            await bench.worker.call_utility("resume_scheduler")
