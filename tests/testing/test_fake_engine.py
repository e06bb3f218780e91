from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from smg_trio.core.engines import EngineProtocol
from smg_trio.testing.fake_engine import GARBAGE, FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.memory import MemoryNetwork
from smg_trio.testing.options import EngineOptions, HandshakeStage
from smg_trio.testing.script import HANG, FixedScript
from smg_trio.worker.links import PeerUnreachable

from .front_end import ENGINE_CORE_DEAD, FrontEnd, abort, init_message, start_wave, tokenspeed_add, utility, vllm_add

RANK_0 = b"\x00\x00"

Running = tuple[FrontEnd, FakeEngine]


@asynccontextmanager
async def running(*, greet: bool = True, **options: Any) -> AsyncIterator[Running]:
    network = MemoryNetwork()
    front_end = FrontEnd(network, "mem://hs", "mem://in", "mem://out")
    engine = FakeEngine(EngineOptions(**{"step_time_s": 0.01} | options), network, "mem://hs")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        if greet:
            await front_end.greet()
        yield front_end, engine
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", list(EngineProtocol))
async def test_it_registers_and_answers(protocol: EngineProtocol, autojump_clock: trio.testing.MockClock) -> None:
    async with running(protocol=protocol) as (front_end, engine):
        await engine.wait_connected()
        if protocol is EngineProtocol.VLLM:
            front_end.send(vllm_add("a", max_tokens=4))
            assert (await front_end.answer("a"))[1:] == (1, None)
        else:
            front_end.send(tokenspeed_add("a", sampling=[1]))
            assert (await front_end.next_batch())[3] == ["length"]
        (request,) = await engine.wait_received(1)
        assert (request.request_id, request.prompt_token_ids) == ("a", [1, 2, 3])


async def test_tokens_take_the_time_of_their_steps(autojump_clock: trio.testing.MockClock) -> None:
    async with running(step_time_s=0.5, prefill_time_s=2.0) as (front_end, _):
        began = trio.current_time()
        front_end.send(vllm_add("a", max_tokens=10))
        await front_end.answer("a")
        assert trio.current_time() - began == pytest.approx(2.0 + 10 * 0.5)


@pytest.mark.parametrize("ready_first", [False, True])
async def test_registration_and_ready_come_in_either_order(
    ready_first: bool, autojump_clock: trio.testing.MockClock
) -> None:
    options = {"ready_first": ready_first, "vanish_after": HandshakeStage.REGISTRATION}
    async with running(greet=False, **options) as (front_end, engine):
        await front_end.handshake.receive_many()
        front_end.handshake.send_nowait([RANK_0, init_message("mem://in", "mem://out")])
        await engine.wait_dead()
        statuses = []
        with trio.move_on_after(1):
            statuses = [msgpack.unpackb(frames[1])["status"] for frames in await front_end.handshake.receive_many()]
        assert statuses == (["READY"] if ready_first else [])
        assert len(await front_end.input.receive_many()) == 1


async def test_vllm_says_hello_before_it_loads_and_tokenspeed_after(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hello_at = {}
    for protocol in EngineProtocol:
        async with running(greet=False, protocol=protocol, load_time_s=60.0) as (front_end, _):
            began = trio.current_time()
            await front_end.handshake.receive_many()
            hello_at[protocol] = trio.current_time() - began
    assert hello_at == {EngineProtocol.VLLM: 0.0, EngineProtocol.TOKENSPEED: 60.0}


@pytest.mark.parametrize(("protocol", "limit_s"), [("vllm", 300.0), ("tokenspeed", 600.0)])
async def test_it_gives_up_when_no_init_comes(
    protocol: str, limit_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    network = MemoryNetwork()
    engine = FakeEngine(EngineOptions(protocol=EngineProtocol(protocol)), network, "mem://hs")
    assert "no INIT" in await engine.run()
    assert trio.current_time() == pytest.approx(limit_s)


@pytest.mark.parametrize("stage", list(HandshakeStage))
async def test_it_can_vanish_at_any_stage_of_the_handshake(
    stage: HandshakeStage, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(greet=False, vanish_after=stage) as (front_end, engine):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(front_end.greet)
            assert await engine.wait_dead() == f"vanished after {stage}"
            nursery.cancel_scope.cancel()
        assert await front_end.handshake.wait_peer_lost() == RANK_0


async def test_the_sentinel_is_the_last_word(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        front_end.send(vllm_add("a", max_tokens=50))
        await front_end.next_batch()
        engine.die(sentinel=True)
        frames = await front_end.next_frames()
        while frames != [ENGINE_CORE_DEAD]:
            frames = await front_end.next_frames()
        assert await engine.wait_dead() == "told to die"
        assert await front_end.input.wait_peer_lost() == RANK_0


async def test_without_sentinel_only_the_connections_tell(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        engine.die(sentinel=False)
        assert await front_end.input.wait_peer_lost() == RANK_0
        assert await front_end.output.wait_peer_lost() is None
        with trio.move_on_after(10) as scope:
            await front_end.next_frames()
        assert scope.cancelled_caught


async def test_a_duplicate_id_kills_it_with_the_sentinel(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        front_end.send(vllm_add("a", max_tokens=50), vllm_add("a", max_tokens=50))
        assert await front_end.next_frames() == [ENGINE_CORE_DEAD]
        assert "duplicate" in await engine.wait_dead()


async def test_an_undecodable_request_leaves_it_alive_and_deaf(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        front_end.send(vllm_add("a", max_tokens=3), vllm_add("b", temperature=-1.0))
        assert (await front_end.answer("a"))[1] == 1
        assert await front_end.input.wait_peer_lost() == RANK_0
        with pytest.raises(PeerUnreachable):
            front_end.send(vllm_add("c"))
        assert engine.exit_reason is None


async def test_it_can_be_half_open_by_order(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        front_end.send(vllm_add("a", max_tokens=3))
        await engine.wait_received(1)
        engine.close_input()
        assert (await front_end.answer("a"))[1] == 1
        with pytest.raises(PeerUnreachable):
            front_end.send(vllm_add("b"))


async def test_a_silent_engine_works_on_without_a_word(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        engine.go_silent()
        front_end.send(vllm_add("a", max_tokens=3))
        await engine.wait_until(lambda: engine.record.finished == ["a"])
        engine.speak_again()
        front_end.send(vllm_add("b", max_tokens=1))
        assert (await front_end.next_batch())[1][0][0] == "b"


async def test_it_can_stop_reading_and_go_on(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        front_end.send(vllm_add("a", max_tokens=1))
        await front_end.answer("a")
        engine.stop_reading()
        front_end.send(utility(1, "is_sleeping"))
        front_end.send(vllm_add("b", max_tokens=1))
        with trio.move_on_after(60):
            await engine.wait_received(2)
        assert len(engine.received) == 1
        engine.resume_reading()
        await engine.wait_received(2)


async def test_told_twice_to_stop_reading_it_still_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        engine.stop_reading()
        front_end.send(vllm_add("a", max_tokens=1))
        await trio.sleep(1)
        front_end.send(vllm_add("b", max_tokens=1))
        engine.stop_reading()
        engine.resume_reading()
        with trio.fail_after(60):
            await engine.wait_received(2)


async def test_garbage_comes_between_good_messages(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        engine.send_garbage(2)
        assert [await front_end.next_frames() for _ in range(2)] == [[GARBAGE]] * 2
        front_end.send(vllm_add("a", max_tokens=1))
        await front_end.answer("a")


async def test_aborts_and_utilities_are_recorded_and_can_be_awaited(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as (front_end, engine):
        engine.choose_script = lambda request: FixedScript([[5]], HANG)
        front_end.send(vllm_add("a"), utility(5, "is_sleeping"))
        await engine.wait_received(1)
        assert engine.in_flight == 1
        front_end.send(abort("a"))
        await engine.wait_aborted("a")
        assert (engine.in_flight, engine.aborts) == (0, ["a"])
        assert [call.method for call in engine.utilities] == ["is_sleeping"]


async def test_a_restart_begins_anew_and_keeps_the_record(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (front_end, engine):
        front_end.send(vllm_add("a", max_tokens=50))
        await engine.wait_received(1)
        engine.restart()
        registrations = await front_end.greet()
        assert set(registrations) == {RANK_0}
        front_end.send(vllm_add("a", max_tokens=1))
        await engine.wait_received(2)
        assert [request.request_id for request in engine.received] == ["a", "a"]
        assert engine.exit_reason is None


async def test_a_second_run_is_a_second_life(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    front_end = FrontEnd(network, "mem://hs", "mem://in", "mem://out")
    engine = FakeEngine(EngineOptions(), network, "mem://hs")
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            await front_end.greet()
            await engine.wait_connected()
            engine.die(sentinel=False)


async def test_it_serves_a_restarted_front_end_without_a_handshake(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = MemoryNetwork()
    front_end = FrontEnd(network, "mem://hs", "mem://in", "mem://out")
    engine = FakeEngine(EngineOptions(), network, "mem://hs")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await front_end.greet()
        front_end.close()
        again = FrontEnd(network, "mem://hs", "mem://in", "mem://out")
        again.send(vllm_add("a", max_tokens=2))
        assert (await again.answer("a"))[1] == 1
        nursery.cancel_scope.cancel()


async def test_broken_handshake_messages_can_be_scripted(autojump_clock: trio.testing.MockClock) -> None:
    async with running(greet=False, hello=b"\xc1") as (front_end, _):
        assert await front_end.handshake.receive_many() == [[RANK_0, b"\xc1"]]
    partial = msgpack.packb({"max_model_len": 7})
    async with running(greet=False, registration=partial) as (front_end, _):
        assert await front_end.greet() == {RANK_0: {"max_model_len": 7}}


async def test_lockstep_ranks_wait_for_each_other(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    front_end = FrontEnd(network, "mem://hs", "mem://in", "mem://out")
    group = LockstepGroup(2)
    engines = [
        FakeEngine(
            EngineOptions(rank=rank, group_size=2, lockstep=True, step_time_s=0.01),
            network,
            "mem://hs",
            group=group,
        )
        for rank in range(2)
    ]
    async with trio.open_nursery() as nursery:
        for engine in engines:
            nursery.start_soon(engine.run)
        registrations = await front_end.greet(2)
        assert {r["data_parallel_size"] for r in registrations.values()} == {2}
        front_end.send(vllm_add("a", max_tokens=2))
        with trio.move_on_after(60) as scope:
            await front_end.next_frames()
        assert scope.cancelled_caught
        for rank in range(2):
            front_end.send(start_wave(1), rank=rank)
        await front_end.answer("a")
        waves = []
        while len(waves) < 2:
            batch = await front_end.next_batch()
            waves += [(batch[0], batch[6])] if batch[6] is not None else []
        assert sorted(waves) == [(0, 1), (1, 1)]
        assert (await engines[1].wait_waves(1)) == [(1, -1)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("capacity", [None, 2])
async def test_a_front_end_that_reads_late_gets_everything(
    capacity: int | None, autojump_clock: trio.testing.MockClock
) -> None:
    network = MemoryNetwork(capacity=capacity)
    front_end = FrontEnd(network, "mem://hs", "mem://in", "mem://out")
    engine = FakeEngine(EngineOptions(), network, "mem://hs")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await front_end.greet()
        front_end.send(vllm_add("a", max_tokens=20))
        await trio.testing.wait_all_tasks_blocked()
        assert len((await front_end.answer("a"))[0]) == 20
        nursery.cancel_scope.cancel()
