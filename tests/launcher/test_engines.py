"""Supervision under a clock of its own: processes and workers in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineLoad, EngineProtocol
from smg_trio.core.errors import ConfigError, SmgError
from smg_trio.core.workers import RankPhase, RankSnapshot, WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.launcher.commands import EngineCommand
from smg_trio.launcher.engines import LOST_LIMIT_S, EngineCannotStart, Supervisor, run_engines
from smg_trio.launcher.process import Ending
from smg_trio.launcher.progress import RESTART_PAUSES_S

COMMAND = EngineCommand(
    index=3, backend=EngineProtocol.VLLM, port=31000, url="ipc:///w", words=("python", "-m", "engine"), environment={}
)


class MemoryWorker:
    """A worker of one rank whose phase the test decides."""

    def __init__(self) -> None:
        self.phase = RankPhase.WAITING
        self._change = trio.Event()

    def be(self, phase: RankPhase) -> None:
        self.phase = phase
        self._change.set()
        self._change = trio.Event()

    def snapshot(self) -> WorkerSnapshot:
        rank = RankSnapshot(0, self.phase, "", 0, EngineLoad(), None)
        spec = WorkerSpec(worker_id="w", url="ipc:///w", model_id="m")
        return WorkerSnapshot(spec, WorkerState.PENDING, "", 0, False, 0, (rank,), "tcp://127.0.0.1:1")

    async def wait_change(self) -> None:
        await self._change.wait()


class MemoryEngine:
    """A process that ends when the test says so."""

    def __init__(self, number: int, say: Callable[[str], None]) -> None:
        self.pid = number
        self._say = say
        self._ended = trio.Event()
        self._code = 0
        self._lines: list[str] = []

    def print(self, line: str) -> None:
        self._lines.append(line)
        self._say(line)

    def exit(self, code: int) -> None:
        self._code = code
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._code

    def last_lines(self) -> list[str]:
        return list(self._lines)


class Stage:
    """A supervisor with all it needs, in memory."""

    def __init__(self, *, startup_timeout_s: float | None = None, failure: SmgError | None = None) -> None:
        self.worker = MemoryWorker()
        self.engines: list[MemoryEngine] = []
        self.closed: list[int] = []
        self.said: list[str] = []
        self.result: SmgError | None = None
        self._failure = failure
        self._started = trio.Event()
        self.supervisor = Supervisor(
            COMMAND,
            self.worker,
            Ending(trio.Event()),
            self.said.append,
            startup_timeout_s=startup_timeout_s,
            open_engine=self.open_engine,
        )

    @asynccontextmanager
    async def open_engine(
        self, words: Sequence[str], environment: Mapping[str, str], say: Callable[[str], None], ending: Ending
    ) -> AsyncIterator[MemoryEngine]:
        if self._failure is not None:
            raise self._failure
        engine = MemoryEngine(len(self.engines), say)
        self.engines.append(engine)
        self._started.set()
        self._started = trio.Event()
        try:
            yield engine
        finally:
            self.closed.append(engine.pid)

    async def next_engine(self) -> MemoryEngine:
        count = len(self.engines)
        while len(self.engines) == count:
            await self._started.wait()
        return self.engines[-1]

    def take_result(self, error: SmgError) -> None:
        self.result = error

    async def run(self) -> None:
        await run_engines([self.supervisor], self.take_result)


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def make_ready(stage: Stage) -> None:
    for phase in (RankPhase.LOADING, RankPhase.READY):
        stage.worker.be(phase)
        await settle()


async def test_an_engine_that_died_after_being_ready_is_started_again(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    engine = await stage.next_engine()
    for pause_s in RESTART_PAUSES_S[:4]:
        await make_ready(stage)
        died = trio.current_time()
        engine.exit(-9)
        stage.worker.be(RankPhase.WAITING)
        engine = await stage.next_engine()
        assert trio.current_time() - died == pytest.approx(pause_s)
    assert stage.closed == [0, 1, 2, 3]
    assert stage.result is None


async def test_an_engine_that_cannot_start_is_given_up_with_its_last_lines(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    for number in (1, 2):
        engine = await stage.next_engine()
        engine.print(f"ValueError: no such thing ({number})")
        engine.exit(1)
    await settle()
    assert isinstance(stage.result, EngineCannotStart)
    assert stage.result.message == (
        "engine-3 exited with code 1 before it was ready. Its last lines:\n    ValueError: no such thing (2)"
    )
    assert stage.said == ["[engine-3] ValueError: no such thing (1)", "[engine-3] ValueError: no such thing (2)"]
    assert len(stage.engines) == 2


async def test_a_missing_engine_package_is_explained(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    for _ in range(2):
        engine = await stage.next_engine()
        engine.print("python: No module named vllm")
        engine.exit(1)
    await settle()
    assert stage.result is not None
    assert "Is vllm installed for python? --engine-python" in stage.result.message


async def test_wrong_engine_options_are_not_tried_twice(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    (await stage.next_engine()).exit(2)
    await settle()
    assert isinstance(stage.result, EngineCannotStart)


async def test_a_program_that_cannot_be_run_is_given_up_at_once(nursery: trio.Nursery) -> None:
    failure = ConfigError("--engine-python", "cannot run it.")
    stage = Stage(failure=failure)
    await stage.run()
    assert stage.result is failure


async def test_a_start_that_takes_too_long_counts_as_failed_only_if_a_limit_was_set(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage, patient = Stage(startup_timeout_s=20.0), Stage()
    nursery.start_soon(stage.run)
    nursery.start_soon(patient.run)
    for _ in range(2):
        await stage.next_engine()
        stage.worker.be(RankPhase.LOADING)
    await trio.sleep(3600)
    assert stage.result is not None
    assert stage.result.message.startswith("engine-3 was not ready within 20 s. Its last lines:")
    assert (stage.closed, patient.closed) == ([0, 1], [])


async def test_an_engine_whose_process_outlives_its_connection_is_restarted(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    await stage.next_engine()
    await make_ready(stage)
    lost = trio.current_time()
    stage.worker.be(RankPhase.WAITING)
    await stage.next_engine()
    assert trio.current_time() - lost == pytest.approx(LOST_LIMIT_S + RESTART_PAUSES_S[0])
    assert stage.closed == [0]


async def test_an_engine_that_comes_back_in_time_is_left_alone(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    await stage.next_engine()
    await make_ready(stage)
    for back in (RankPhase.READY, RankPhase.LOADING):
        stage.worker.be(RankPhase.WAITING)
        await trio.sleep(LOST_LIMIT_S - 1)
        stage.worker.be(back)
        await trio.sleep(10 * LOST_LIMIT_S)
    assert (len(stage.engines), stage.closed) == (1, [])


async def test_readiness_left_over_from_the_life_before_does_not_count(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    stage.worker.be(RankPhase.READY)
    for _ in range(2):
        engine = await stage.next_engine()
        await settle()
        engine.exit(1)
    await settle()
    assert isinstance(stage.result, EngineCannotStart)


async def test_the_stages_of_a_start_are_logged_once(caplog: pytest.LogCaptureFixture, nursery: trio.Nursery) -> None:
    stage = Stage()
    caplog.set_level("INFO", "smg_trio.launcher")
    nursery.start_soon(stage.run)
    engine = await stage.next_engine()
    stage.worker.be(RankPhase.LOADING)
    await settle()
    engine.print("Starting to load model m")
    engine.print("Loading weights took 1.00 seconds")
    engine.print("GPU KV cache size: 10 tokens")
    stage.worker.be(RankPhase.READY)
    await settle()
    told = [
        record.getMessage().partition(" (")[0] for record in caplog.records if "after its start" in record.getMessage()
    ]
    assert told == [
        "engine-3: said HELLO",
        "engine-3: loading the model",
        "engine-3: profiling memory and warming up",
        "engine-3: ready",
    ]
    nursery.cancel_scope.cancel()


async def test_cancellation_ends_the_running_process(nursery: trio.Nursery) -> None:
    stage = Stage()
    async with trio.open_nursery() as inner:
        inner.start_soon(stage.run)
        await stage.next_engine()
        inner.cancel_scope.cancel()
    assert stage.closed == [0]
    assert stage.result is None
