"""Strangers at the data sockets, under a mock clock: what is ignored and counted, and what still ends an engine."""

from __future__ import annotations

import logging
from pathlib import Path

import msgpack
import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineDead
from smg_trio.core.workers import WorkerState
from smg_trio.testing.fake_engine import GARBAGE
from smg_trio.testing.messages import ENGINE_CORE_DEAD
from smg_trio.testing.script import HANG, FixedScript
from smg_trio.wire.handshake import identity_of_rank
from smg_trio.worker.dispatcher import UNDECODABLE_LIMIT, UNKNOWN_LIMIT_S
from smg_trio.worker.log_throttle import SHOWN

from .harness import Bench, collect, memory_bench, request, tokens

both = pytest.mark.parametrize("protocol", list(EngineProtocol))
MANY = 1000


def _refused(bench: Bench) -> dict[str, int]:
    return dict(bench.worker.snapshot().refused)


def _losses(bench: Bench) -> list[int]:
    return [rank.losses for rank in bench.worker.snapshot().ranks]


async def _quiet(bench: Bench) -> None:
    await trio.testing.wait_all_tasks_blocked()


def _stranger(bench: Bench, *messages: list[bytes]) -> None:
    stranger = bench.network.dial_output(bench.worker.addresses.output)
    for message in messages:
        stranger.send_nowait(message)


@both
async def test_garbage_before_any_engine_spoke_is_counted_and_loses_nothing(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        _stranger(bench, *[[GARBAGE]] * MANY)
        await _quiet(bench)
        engine = bench.start_engine()
        await bench.worker.wait_state(WorkerState.READY)
        _stranger(bench, *[[GARBAGE]] * MANY)
        await _quiet(bench)
        assert bench.worker.state is WorkerState.READY
        assert len(tokens(await collect(bench.worker, request()))) == 4
        assert (_losses(bench), engine.aborts) == ([0], [])
        assert _refused(bench) == {"handshake": 0, "input": 0, "output": 2 * MANY}
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) <= SHOWN + 1


@both
async def test_garbage_between_two_lives_of_an_engine_loses_nothing(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        engine = await bench.ready()
        await collect(bench.worker, request())
        bench.kill(engine)
        await bench.worker.wait_state(WorkerState.NOT_READY)
        _stranger(bench, *[[GARBAGE]] * MANY)
        bench.start_engine()
        await bench.worker.wait_state(WorkerState.READY)
        _stranger(bench, *[[GARBAGE]] * MANY)
        assert len(tokens(await collect(bench.worker, request()))) == 4
        assert _losses(bench) == [1]


async def test_a_stranger_who_speaks_the_protocol_is_not_taken_for_an_engine(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        empty = msgpack.packb([0, [["unknown", [5]]], None, 0.0, None, None, None, None])
        reply = msgpack.packb([0, [], None, 0.0, [77, None, None], None, None, None])
        _stranger(bench, [empty], [reply], *[[GARBAGE]] * UNDECODABLE_LIMIT)
        assert len(tokens(await collect(bench.worker, request()))) == 4
        assert (_losses(bench), engine.aborts) == ([0], [])


@pytest.mark.parametrize("known", [True, False])
async def test_the_last_word_of_an_engine_counts_only_if_it_is_an_engine_s(
    tmp_path: Path, known: bool, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=EngineProtocol.TOKENSPEED) as bench:
        await bench.ready()
        if known:
            await collect(bench.worker, request())
        _stranger(bench, *[[ENGINE_CORE_DEAD]] * MANY)
        await trio.sleep(5)
        assert len(tokens(await collect(bench.worker, request()))) == 4
        assert _losses(bench) == [0]
        assert _refused(bench)["output"] == MANY
        bench.engines[0].die(sentinel=True)
        with trio.fail_after(1):
            await bench.worker.wait_state(WorkerState.NOT_READY)


async def test_an_engine_that_dies_before_its_first_word_is_lost_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=EngineProtocol.TOKENSPEED) as bench:
        engine = await bench.ready()
        engine.die(sentinel=True)
        with trio.fail_after(1):
            await bench.worker.wait_state(WorkerState.NOT_READY)


async def test_an_engine_that_never_says_a_thing_that_can_be_decoded_is_lost_after_a_while(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=EngineProtocol.TOKENSPEED) as bench:
        engine = await bench.ready(script=lambda request: FixedScript([], HANG))

        async def mumble() -> None:
            while True:
                engine.send_garbage()
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mumble)
            began = trio.current_time()
            with pytest.raises(EngineDead, match="cannot be decoded"):
                await collect(bench.worker, request())
            assert trio.current_time() - began == pytest.approx(UNKNOWN_LIMIT_S, abs=1)
            nursery.cancel_scope.cancel()


@both
async def test_a_connection_to_the_input_socket_with_the_identity_of_no_rank_changes_nothing(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol, engine_count=2) as bench:
        for rank in range(2):
            bench.start_engine(rank, group_size=2)
        await bench.worker.wait_state(WorkerState.READY)
        address = bench.worker.addresses.input
        registration = msgpack.packb({"max_model_len": 2048})
        asked = request(max_tokens=50)
        async with bench.worker.generate(asked) as stream:
            await stream.receive_batch()
            identities = [identity_of_rank(2), identity_of_rank(0xFFFF), b"x", b"long identity"]
            for identity in identities:
                stranger = bench.network.dial_input(address, identity)
                for message in ([registration], [b"\xc1"], [], [b"a", b"b"]):
                    stranger.send_nowait(message)
                await _quiet(bench)
                stranger.close()
            outputs = []
            while not outputs or outputs[-1].finish_reason is None:
                outputs.extend(output for _, output in await stream.receive_batch())
        assert bench.worker.state is WorkerState.READY
        assert _losses(bench) == [0, 0]
        assert _refused(bench)["input"] == 4 * len(identities)


async def test_those_who_come_and_go_do_not_keep_the_death_of_an_engine_from_being_noticed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()

        async def come_and_go() -> None:
            while True:
                bench.network.dial_output(bench.worker.addresses.output).close()
                await trio.sleep(0.003)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_and_go)
            await trio.sleep(5)
            bench.kill(engine)
            with trio.fail_after(0.1):
                await bench.worker.wait_state(WorkerState.NOT_READY)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("wave", [-1, 1 << 63, (1 << 64) - 1])
async def test_a_wave_number_that_cannot_be_counted_on_is_no_notice(
    tmp_path: Path, wave: int, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2, lockstep=True) as bench:
        for rank in range(2):
            bench.start_engine(rank, group_size=2, lockstep=True)
        await bench.worker.wait_state(WorkerState.READY)
        for notice in ([wave, None], [None, wave]):
            _stranger(bench, [msgpack.packb([0, [], None, 0.0, None, None, *notice])])
        await _quiet(bench)
        assert len(tokens(await collect(bench.worker, request()))) == 4
        assert _refused(bench)["output"] == 2


@pytest.mark.parametrize("said", [5, "generate", {"generate": 1}, None])
async def test_an_engine_that_says_nonsense_of_its_tasks_ends_no_worker(
    tmp_path: Path, said: object, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_bench(tmp_path) as bench:

        async def call_utility(method: str, *arguments: object, rank: int = 0, timeout_s: float = 30.0) -> object:
            return said

        monkeypatch.setattr(bench.worker, "call_utility", call_utility)
        bench.start_engine()
        await bench.worker.wait_state(WorkerState.READY)
        await trio.sleep(1)
        assert bench.worker.state is WorkerState.READY
        assert await bench.worker.supported_tasks() == frozenset()
