"""Several processes at one worker's engines: a keeper and two fronts, in one test process, on a network in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from smg_trio.core.board import Board, board_bytes
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineDead, EngineSilent
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.memory import MemoryNetwork
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import HANG, FixedScript, LengthScript, Script, ScriptChooser
from smg_trio.worker.nursery import Worker
from smg_trio.worker.siblings import Siblings

from .harness import collect, request, tokens

COUNT: Script = LengthScript()
VLLM, TOKENSPEED = EngineProtocol.VLLM, EngineProtocol.TOKENSPEED


class Processes:
    """The workers of a gateway's processes; `stop` and `start` are one process's death and successor."""

    def __init__(self, nursery: trio.Nursery, spec: WorkerSpec, fronts: int, **limits: float) -> None:
        self.nursery = nursery
        self.network = MemoryNetwork()
        self.spec = spec
        self.engines: list[FakeEngine] = []
        self._limits = limits
        self.group = LockstepGroup(spec.engine_count)
        self.restart(fronts)

    def restart(self, fronts: int) -> None:
        """A new gateway, of that many fronts; the one before must have been stopped."""
        self.pairs = fronts + 1
        self.board = Board(memoryview(bytearray(board_bytes(self.pairs, 8))), self.pairs, 8)
        self.workers: dict[int, Worker] = {}
        self.scopes: dict[int, trio.CancelScope] = {}

    async def start(self, *indexes: int) -> None:
        for index in indexes:
            siblings = Siblings(
                index, self.pairs, self.board.ranks(0, self.spec.engine_count, index), trio.current_time
            )
            worker = self.workers[index] = Worker(
                self.spec, self.network, siblings=siblings if self.pairs > 1 else None, **self._limits
            )
            self.scopes[index] = trio.CancelScope()
            await self.nursery.start(self._run, worker, self.scopes[index])

    async def _run(self, worker: Worker, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await worker.run(task_status=task_status)

    async def stop(self, index: int) -> None:
        """Nothing is said to the engine of a process that is killed: what it had in flight goes on there."""
        self.workers[index]._group.ledger.entries.clear()
        self.scopes[index].cancel()
        await trio.testing.wait_all_tasks_blocked()
        self.board.clear_process(index)

    def engine(self, rank: int = 0, says: ScriptChooser = lambda asked: COUNT, **options: Any) -> FakeEngine:
        defaults: dict[str, Any] = {"protocol": self.spec.protocol, "rank": rank, "step_time_s": 0.01}
        chosen = EngineOptions(**(defaults | {"group_size": self.spec.engine_count} | options))
        address = next(iter(self.workers.values())).addresses.handshake
        engine = FakeEngine(
            chosen, self.network, address, choose_script=says, group=self.group if chosen.lockstep else None
        )
        self.engines.append(engine)
        self.nursery.start_soon(engine.run)
        return engine

    async def ready(self) -> None:
        for worker in self.workers.values():
            await worker.wait_state(WorkerState.READY)


@pytest.fixture
def processes(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(
        fronts: int = 2, *, engines: int = 1, protocol: EngineProtocol = VLLM, **limits: float
    ) -> AsyncIterator[Processes]:
        spec = WorkerSpec(
            worker_id="w",
            url=f"ipc://{tmp_path}/s/e",
            model_id="m",
            protocol=protocol,
            engine_count=engines,
            vocab_size=32000,
        )
        async with trio.open_nursery() as nursery:
            bench = Processes(nursery, spec, fronts, **limits)
            await bench.start(*range(fronts + 1))
            yield bench
            nursery.cancel_scope.cancel()

    return opened


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_each_front_gets_its_own_outputs_and_ends_its_own_requests(
    processes: Any, protocol: EngineProtocol, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes(protocol=protocol) as bench:
        engine = bench.engine()
        await bench.ready()
        found: dict[int, list[int]] = {}

        async def ask(front: int) -> None:
            # The same id at both is one that no gateway makes; outputs would go astray if they were told apart by it.
            found[front] = tokens(await collect(bench.workers[front], request(max_tokens=3 + front)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 1)
            nursery.start_soon(ask, 2)
        assert {front: len(ids) for front, ids in found.items()} == {1: 4, 2: 5}
        with trio.move_on_after(0.05):
            await collect(bench.workers[1], request(max_tokens=1000, request_id="left"))
        await engine.wait_aborted("left")
        assert bench.board.ranks(0, 1, 0).in_flight(0) == 0
        indexes = {asked.client_index for asked in engine.received}
        assert indexes == ({1, 2} if protocol is VLLM else {0})


async def test_ranks_are_chosen_by_what_all_fronts_have_sent(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes(engines=4) as bench:
        for rank in range(4):
            bench.engine(rank, lambda asked: FixedScript([[5]], HANG))
        await bench.ready()
        scopes = [bench.workers[1 + index % 2].generate(request()) for index in range(40)]
        for scope in scopes:
            await scope.__aenter__()
        await trio.sleep(0.1)
        assert [len(engine.received) for engine in bench.engines] == [10] * 4
        assert bench.workers[1].load == bench.workers[0].load == 10
        for scope in scopes:
            await scope.__aexit__(None, None, None)


async def test_an_engine_that_works_for_another_front_is_not_silent(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes(silence_limit_s=10.0) as bench:
        engine = bench.engine(max_num_seqs=1, step_time_s=1.0, stats=False)
        await bench.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, bench.workers[1], request(max_tokens=25))
            await engine.wait_received()
            # It waits in the engine's queue for 25 s and hears nothing meanwhile.
            assert len(tokens(await collect(bench.workers[2], request(max_tokens=2)))) == 2
        engine.go_silent()
        failed = []

        async def fail(front: int) -> None:
            with pytest.raises(EngineSilent):
                await collect(bench.workers[front], request(max_tokens=2))
            failed.append(front)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, 1)
            nursery.start_soon(fail, 2)
        assert sorted(failed) == [1, 2]


async def test_a_lockstep_group_never_stalls_whoever_asks(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes(engines=2) as bench:
        for rank in range(2):
            bench.engine(rank, lockstep=True, input_delay_s=0.004 * rank)
        await bench.ready()

        async def ask(front: int) -> None:
            for index in range(60):
                with trio.fail_after(5):
                    await collect(bench.workers[front], request(max_tokens=1 + index % 3))
                await trio.sleep(0.003 * (index % 5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 1)
            nursery.start_soon(ask, 2)


async def test_a_fronts_successor_takes_the_engine_over_and_ends_what_was_left(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes() as bench:
        engine = bench.engine()
        await bench.ready()
        bench.nursery.start_soon(collect, bench.workers[2], request(max_tokens=500, request_id="stays"))
        bench.workers[1].begin(request(max_tokens=500, request_id="orphan"), _Nobody())
        await engine.wait_received(2)
        await bench.stop(1)
        await trio.sleep(1)
        assert engine.aborts == []
        await bench.start(1)
        await bench.workers[1].wait_state(WorkerState.READY)
        await engine.wait_aborted("orphan")
        assert len(tokens(await collect(bench.workers[1], request(max_tokens=4)))) == 4
        assert "stays" not in engine.aborts


async def test_the_keeper_stands_in_for_a_front_that_is_away(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes() as bench:
        engine = bench.engine()
        await bench.ready()
        bench.workers[1].begin(request(max_tokens=5000, request_id="orphan"), _Nobody())
        await engine.wait_received()
        await bench.stop(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.workers[0].hold_pair, 1)
            await engine.wait_aborted("orphan")
            nursery.cancel_scope.cancel()
        await bench.start(1)
        await bench.workers[1].wait_state(WorkerState.READY)
        assert len(tokens(await collect(bench.workers[1], request(max_tokens=4)))) == 4


class _Nobody:
    """A consumer that is not there."""

    def put(self, output: Any) -> bool:
        return True

    def fail(self, error: Exception) -> None:
        return


async def test_every_process_notices_that_an_engine_is_gone_and_takes_the_next_one(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes() as bench:
        engine = bench.engine(says=lambda asked: FixedScript([[5]], HANG))
        await bench.ready()
        failed = []

        async def fail(front: int) -> None:
            with pytest.raises(EngineDead):
                await collect(bench.workers[front], request())
            failed.append(front)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, 1)
            nursery.start_soon(fail, 2)
            await engine.wait_received(2)
            engine.die(sentinel=False)
        assert sorted(failed) == [1, 2]
        bench.engine()
        await bench.ready()
        for front in (1, 2):
            assert len(tokens(await collect(bench.workers[front], request(max_tokens=2)))) == 2


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_gateways_of_1_3_2_and_1_processes_serve_one_engine_that_never_restarts(
    processes: Any, protocol: EngineProtocol, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes(0, protocol=protocol) as bench:
        engine = bench.engine(max_num_seqs=1000)
        await bench.ready()
        for number, fronts in enumerate((0, 3, 2, 0)):
            if number:
                left = f"left-{number}"
                last = max(bench.workers)
                bench.workers[last].begin(request(max_tokens=5000, request_id=left), _Nobody())
                await engine.wait_until(lambda left=left: any(one.request_id == left for one in engine.received))
                for index in sorted(bench.workers, reverse=True):
                    await bench.stop(index)
                bench.restart(fronts)
                await bench.start(*range(fronts + 1))
                await bench.ready()
                await engine.wait_aborted(left)
            for index in bench.workers:
                if index or not fronts:
                    assert len(tokens(await collect(bench.workers[index], request(max_tokens=3)))) == 3
        assert engine.exit_reason is None


async def test_a_new_engine_is_told_of_all_pairs_where_it_was_relayed_before(
    processes: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with processes(0) as bench:
        bench.engine()
        await bench.ready()
        await bench.stop(0)
        bench.restart(2)
        await bench.start(0, 1, 2)
        await bench.ready()
        await collect(bench.workers[2], request())
        assert [asked.client_index for asked in bench.engines[0].received] == [0]
        bench.engines[0].restart()
        await trio.sleep(1)
        await bench.ready()
        await collect(bench.workers[2], request())
        assert [asked.client_index for asked in bench.engines[0].received] == [0, 2]
