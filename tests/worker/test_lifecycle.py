"""A worker's life under a mock clock, with engines in memory."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import (
    EngineDead,
    EngineFault,
    EngineSilent,
    InvalidRequest,
    NoReadyWorker,
    UnsupportedFeature,
)
from smg_trio.core.outputs import FinishReason
from smg_trio.core.workers import RankPhase, WorkerState
from smg_trio.testing.options import HandshakeStage
from smg_trio.testing.script import HANG, FixedScript, LengthScript

from .harness import collect, memory_bench, request, tokens

PROTOCOLS = list(EngineProtocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_engine_dials_in_and_serves(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        assert bench.worker.state is WorkerState.PENDING
        engine = await bench.ready()
        outputs = await collect(bench.worker, request(max_tokens=5))
        assert len(tokens(outputs)) == 5
        assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert bench.worker.in_flight == 0
        assert engine.aborts == []


@pytest.mark.parametrize("ready_first", [True, False])
async def test_registration_and_ready_may_come_in_either_order(
    tmp_path: Path, ready_first: bool, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready(ready_first=ready_first)
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_request_before_any_engine_says_what_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        with pytest.raises(NoReadyWorker, match="waiting for HELLO"):
            async with bench.worker.generate(request()):
                pass
        bench.start_engine(load_time_s=1000.0)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NoReadyWorker, match="loading the model"):
            async with bench.worker.generate(request()):
                pass


async def test_leaving_the_scope_aborts_once_and_only_what_still_runs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        asked = request(max_tokens=1000)
        async with bench.worker.generate(asked) as stream:
            await stream.receive_batch()
        await engine.wait_aborted(asked.request_id)
        await collect(bench.worker, request(max_tokens=2))
        assert engine.aborts == [asked.request_id]
        assert bench.worker.in_flight == 0


async def test_a_request_left_before_it_was_sent_never_reaches_the_engine(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        async with bench.worker.generate(request()):
            pass
        await collect(bench.worker, request(max_tokens=1))
        assert len(engine.received) == 1
        assert engine.aborts == []


async def test_a_duplicate_id_is_refused_before_the_wire(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        async with bench.worker.generate(request(request_id="twin", max_tokens=100)):
            with pytest.raises(InvalidRequest, match="already in flight"):
                async with bench.worker.generate(request(request_id="twin")):
                    pass
        assert engine.exit_reason is None


@pytest.mark.parametrize("stray", [[b"\x00\x00", b"x"], [b"\xff" * 9, b"\xc1"]])
async def test_stray_messages_on_the_input_socket_are_ignored(
    tmp_path: Path, stray: list[bytes], autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        dialer = engine._dialer
        stranger = dialer.dial_input(bench.worker.addresses.input, stray[0] if stray[0] != b"\x00\x00" else b"\x09\x00")
        stranger.send_nowait([stray[1]])
        await trio.sleep(1)
        assert len(tokens(await collect(bench.worker, request()))) == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt_token_ids": []},
        {"prompt_token_ids": [32000]},
        {"prompt_token_ids": [-1]},
        {"prompt_token_ids": [1] * 8192},
        {"sampling": {"temperature": -1.0}},
        {"sampling": {"top_p": 0.0}},
        {"sampling": {"logit_bias": {40000: 1.0}}},
        {"rank": 7},
    ],
)
async def test_what_would_kill_or_deafen_the_engine_is_refused(
    tmp_path: Path, bad: dict[str, object], autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        with pytest.raises(Exception) as refusal:  # noqa: PT011 - the class differs, the parameter is what counts
            async with bench.worker.generate(request(**bad)):
                pass
        assert getattr(refusal.value, "param", None)
        assert bench.worker.in_flight == 0
        assert len(tokens(await collect(bench.worker, request()))) == 4
        assert len(engine.received) == 1


@pytest.mark.parametrize("sentinel", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_dead_engine_fails_its_requests_within_a_second_and_its_successor_serves(
    tmp_path: Path, sentinel: bool, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, protocol=protocol) as bench:
        engine = await bench.ready()
        for _ in range(3):
            began = trio.current_time()
            with pytest.raises(EngineDead):
                async with bench.worker.generate(request(max_tokens=1000)) as stream:
                    await stream.receive_batch()
                    began = trio.current_time()
                    engine.die(sentinel=sentinel)
                    while True:
                        await stream.receive_batch()
            assert trio.current_time() - began < 1.0
            assert bench.worker.state is WorkerState.NOT_READY
            engine = await bench.ready()
            assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_an_idle_engine_that_is_killed_is_noticed_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        began = trio.current_time()
        bench.kill(engine)
        await bench.worker.wait_state(WorkerState.NOT_READY)
        assert trio.current_time() - began < 1.0
        assert bench.worker.snapshot().reason == "the engine closed its connection"


async def test_what_an_engine_pushed_before_it_vanished_is_still_delivered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready(step_time_s=0.0)
        async with bench.worker.generate(request(max_tokens=3)) as stream:
            await engine.wait_received(1)
            await engine.wait_until(lambda: engine.in_flight == 0)
            bench.kill(engine)
            outputs = []
            while not outputs or outputs[-1].finish_reason is None:
                outputs.extend(output for _, output in await stream.receive_batch())
        assert len(tokens(outputs)) == 3


async def test_a_deaf_engine_is_lost_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        engine.close_input()
        await bench.worker.wait_state(WorkerState.NOT_READY)
        with pytest.raises(NoReadyWorker):
            async with bench.worker.generate(request()):
                pass


async def test_silence_kills_only_after_the_whole_limit_counted_from_the_submit(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        await collect(bench.worker, request())
        engine.go_silent()
        await trio.sleep(299)  # idle: nothing is owed, so this does not count
        began = trio.current_time()
        with pytest.raises(EngineSilent, match="no engine output for 300s"):
            async with bench.worker.generate(request(max_tokens=1000)) as stream:
                await stream.receive_batch()
        assert trio.current_time() - began == pytest.approx(300, abs=1)
        assert bench.worker.state is WorkerState.NOT_READY


async def test_each_output_restarts_the_silence_clock(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready(step_time_s=250.0)
        assert len(tokens(await collect(bench.worker, request(max_tokens=5)))) == 5


async def test_an_idle_connection_never_dies(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready()
        await trio.sleep(80_000)
        assert bench.worker.state is WorkerState.READY
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_silent_engine_that_speaks_again_is_taken_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready(ignore_aborts=True, step_time_s=1.0)
        engine.go_silent()
        with pytest.raises(EngineSilent):
            await collect(bench.worker, request(max_tokens=8000))
        engine.speak_again()
        with trio.fail_after(60):
            await bench.worker.wait_state(WorkerState.READY)
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_an_engine_that_comes_while_others_are_asked_whether_they_are_paused_is_not_taken_for_silent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        engines = [bench.start_engine(0), await bench.ready(1)]
        for engine in engines:
            engine.go_silent()

        async def ask() -> None:
            with pytest.raises(EngineDead):
                await collect(bench.worker, request(max_tokens=8000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            for engine in engines:
                await engine.wait_received()
            await engines[0].wait_until(lambda: "is_scheduler_paused" in [call.method for call in engines[0].utilities])
            bench.kill(engines[1])
            bench.start_engine(1, load_time_s=5.0)
        with trio.fail_after(60):
            while bench.worker.snapshot().ranks[1].phase is not RankPhase.READY:
                await bench.worker.wait_change()
        assert bench.worker.snapshot().ranks[0].phase is RankPhase.WAITING
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_one_garbage_frame_is_survived_and_three_in_a_row_are_not(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        async with bench.worker.generate(request(max_tokens=3)) as stream:
            await stream.receive_batch()
            engine.send_garbage(2)
            outputs = []
            while not outputs or outputs[-1].finish_reason is None:
                outputs.extend(output for _, output in await stream.receive_batch())
        assert bench.worker.state is WorkerState.READY
        engine.go_silent()
        with pytest.raises(EngineDead, match="cannot be decoded"):
            async with bench.worker.generate(request(max_tokens=1000)) as stream:
                await engine.wait_received(2)
                engine.send_garbage(3)
                await stream.receive_batch()
        assert bench.worker.state is WorkerState.NOT_READY


async def test_an_engine_that_does_not_take_requests_is_lost_after_the_send_limit(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, capacity=2) as bench:
        engine = await bench.ready()
        engine.stop_reading()
        failures: list[float] = []

        async def ask() -> None:
            try:
                await collect(bench.worker, request())
            except EngineDead:
                failures.append(trio.current_time())

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(ask)
        # What was already on its way when the engine stopped reading may have been served.
        assert len(failures) >= 3
        assert failures[-1] - began == pytest.approx(10, abs=1)
        assert bench.worker.in_flight == 0


@pytest.mark.parametrize("stage", [HandshakeStage.HELLO, HandshakeStage.INIT, HandshakeStage.REGISTRATION])
async def test_an_engine_that_vanishes_in_its_handshake_leaves_room_for_the_next(
    tmp_path: Path, stage: HandshakeStage, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = bench.start_engine(vanish_after=stage)
        await engine.wait_dead()
        assert bench.worker.state is WorkerState.PENDING
        await bench.ready()
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_an_engine_whose_ready_is_lost_serves_by_its_registration(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_bench(tmp_path) as bench:
        identity, addresses = b"\x00\x00", bench.worker.addresses
        handshake = bench.network.dial_handshake(addresses.handshake, identity)
        handshake.send_nowait([msgpack.packb({"status": "HELLO", "local": False, "headless": True})])
        await handshake.receive_many()
        registration = {"max_model_len": 100, "vllm_version": "0.32.0", "data_parallel_size": 1}
        engine = bench.network.dial_input(addresses.input, identity)
        engine.send_nowait([msgpack.packb(registration)])
        began = trio.current_time()
        with trio.fail_after(30):
            await bench.worker.wait_state(WorkerState.READY)
        assert trio.current_time() - began == pytest.approx(5.0)
        assert "its READY is missing" in caplog.text


async def test_garbage_and_strangers_at_the_handshake_disturb_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready()
        bench.start_engine(hello=b"\xc1garbage", rank=0)
        bench.start_engine(rank=5)
        await trio.sleep(5)
        assert bench.worker.state is WorkerState.READY
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_second_hello_of_a_living_rank_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        first = await bench.ready()
        second = bench.start_engine()
        await trio.sleep(10)
        assert bench.worker.state is WorkerState.READY
        await collect(bench.worker, request())
        assert len(first.received) == 1
        assert not second.received


async def test_a_second_hello_that_was_refused_is_answered_when_the_rank_is_free(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        first = await bench.ready()
        second = bench.start_engine()
        await trio.sleep(10)
        bench.kill(first)
        with trio.fail_after(5):
            await bench.worker.wait_state(WorkerState.NOT_READY)
            await bench.worker.wait_state(WorkerState.READY)
        await collect(bench.worker, request())
        assert len(second.received) == 1


async def test_a_refused_stranger_that_has_left_changes_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        first = await bench.ready()
        bench.kill(bench.start_engine())
        stranger = bench.start_engine()
        await trio.sleep(10)
        bench.kill(stranger)
        bench.kill(first)
        await bench.worker.wait_state(WorkerState.NOT_READY)
        assert bench.worker.snapshot().ranks[0].reason == "the engine closed its connection"
        bench.start_engine()
        with trio.fail_after(5):
            await bench.worker.wait_state(WorkerState.READY)


async def test_an_engine_that_restarts_at_once_is_taken_in(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        with pytest.raises(EngineDead):
            async with bench.worker.generate(request(max_tokens=1000)) as stream:
                await stream.receive_batch()
                engine.restart()
                while True:
                    await stream.receive_batch()
        with trio.fail_after(5):
            await bench.worker.wait_state(WorkerState.READY)
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_slow_load_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready(load_time_s=4000.0)
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_slow_handshake_is_said_in_the_log(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_bench(tmp_path) as bench:
        await trio.sleep(601)
        assert "startup handshake timed out while waiting for HELLO after 600s" in caplog.text
        bench.start_engine(load_time_s=700.0)
        await trio.sleep(650)
        assert "startup handshake timed out while waiting for READY after 600s" in caplog.text
        await bench.worker.wait_state(WorkerState.READY)


# ---- groups ---------------------------------------------------------------------------------------------------


async def test_a_group_waits_for_all_its_ranks_and_says_which_are_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        bench.start_engine(1, group_size=2)
        await trio.sleep(1)
        assert bench.worker.state is WorkerState.PENDING
        assert bench.worker.snapshot().reason == "1 of 2 ranks ready (rank 0: waiting for HELLO)"
        await bench.ready(0, group_size=2)


async def test_a_cold_burst_spreads_across_ranks(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        bench.start_engine(0, group_size=2)
        await bench.ready(1, group_size=2)
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(collect, bench.worker, request())
        assert [len(engine.received) for engine in bench.engines] == [4, 4]


async def test_a_pinned_rank_gets_the_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        bench.start_engine(0, group_size=2)
        engine = await bench.ready(1, group_size=2)
        for _ in range(4):
            await collect(bench.worker, request(rank=1))
        assert len(engine.received) == 4


@pytest.mark.parametrize("sentinel", [True, False])
async def test_a_dense_group_goes_on_without_a_dead_rank_and_names_it(
    tmp_path: Path, sentinel: bool, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2) as bench:
        first = bench.start_engine(0, group_size=2)
        await bench.ready(1, group_size=2)
        survivors: list[int] = []

        async def survive() -> None:
            survivors.append(len(tokens(await collect(bench.worker, request(max_tokens=300, rank=1)))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(survive)
            with pytest.raises(EngineDead):
                async with bench.worker.generate(request(max_tokens=1000, rank=0)) as stream:
                    await stream.receive_batch()
                    first.die(sentinel=sentinel)
                    while True:
                        await stream.receive_batch()
            assert bench.worker.state is WorkerState.READY
            assert "rank 0" in bench.worker.snapshot().reason
            assert [rank.phase for rank in bench.worker.snapshot().ranks] == [RankPhase.WAITING, RankPhase.READY]
        assert survivors == [300]
        bench.start_engine(0, group_size=2)
        while bench.worker.snapshot().reason:
            await bench.worker.wait_change()


async def test_a_lockstep_group_is_woken_for_every_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2, lockstep=True) as bench:
        bench.start_engine(0, group_size=2, lockstep=True)
        await bench.ready(1, group_size=2, lockstep=True)
        for _ in range(3):
            assert len(tokens(await collect(bench.worker, request()))) == 4
            await trio.sleep(10)  # the group pauses, and must be woken again
        waves = [wave for wave, _ in bench.engines[0].waves]
        assert waves == sorted(set(waves))
        assert [len(engine.waves) for engine in bench.engines] == [3, 3]


async def test_a_wake_up_that_ranks_see_on_different_sides_of_a_pause_stalls_no_request(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    random = Random(7)
    async with memory_bench(tmp_path, engine_count=2, lockstep=True) as bench:
        options: dict[str, Any] = {"group_size": 2, "lockstep": True, "step_time_s": 0.01}
        bench.start_engine(0, **options)
        await bench.ready(1, input_delay_s=0.008, **options)
        for number in range(1_000):
            with trio.fail_after(2):
                await collect(bench.worker, request(max_tokens=number % 3 + 1, rank=number % 2))
            await trio.sleep(random.random() * 0.2)
        wakes = len(bench.engines[0].waves)
        assert wakes > 1_010, "hardly a pause came between a wake-up's two arrivals: the engines did not show the fault"
        assert wakes < 3_000


async def test_a_lockstep_group_that_only_sends_wave_notices_is_silent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path, engine_count=2, lockstep=True) as bench:
        first = bench.start_engine(0, group_size=2, lockstep=True)
        await bench.ready(1, group_size=2, lockstep=True)
        for engine in bench.engines:
            engine.stop_reading()
        notice = msgpack.packb([0, [], None, 0.0, None, None, 5, None])

        async def notify() -> None:
            while True:
                await trio.sleep(1)
                first.send_raw([notice])

        with trio.fail_after(400):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(notify)
                with pytest.raises(EngineSilent):
                    await collect(bench.worker, request())
                nursery.cancel_scope.cancel()


async def test_a_lockstep_group_fails_as_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2, lockstep=True) as bench:
        first = bench.start_engine(0, group_size=2, lockstep=True)
        await bench.ready(1, group_size=2, lockstep=True)
        with pytest.raises(EngineDead):
            async with bench.worker.generate(request(max_tokens=1000, rank=1)) as stream:
                await stream.receive_batch()
                first.die(sentinel=False)
                while True:
                    await stream.receive_batch()
        assert bench.worker.state is WorkerState.NOT_READY


async def test_tokenspeed_groups_are_never_lockstep(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, engine_count=2, protocol=EngineProtocol.TOKENSPEED) as bench:
        bench.start_engine(0, group_size=2)
        await bench.ready(1, group_size=2)
        assert not bench.worker.snapshot().lockstep
        assert len(tokens(await collect(bench.worker, request()))) == 4


# ---- the rest -------------------------------------------------------------------------------------------------


async def test_utilities_answer_fail_and_time_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        assert await bench.worker.call_utility("is_sleeping") is False
        assert await bench.worker.call_utility("get_supported_tasks") == ["generate"]
        with pytest.raises(EngineFault, match="no_such_method"):
            await bench.worker.call_utility("no_such_method")
        engine.go_silent()
        with pytest.raises(EngineFault, match="did not answer within 5s"):
            await bench.worker.call_utility("is_sleeping", timeout_s=5)


async def test_a_utility_call_fails_with_its_engine(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        engine.go_silent()
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(EngineDead):
                    await bench.worker.call_utility("is_sleeping")

            nursery.start_soon(call)
            await engine.wait_until(lambda: engine.utilities[-1].method == "is_sleeping")
            engine.die(sentinel=False)


async def test_tokenspeed_has_no_utilities(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path, protocol=EngineProtocol.TOKENSPEED) as bench:
        await bench.ready()
        with pytest.raises(UnsupportedFeature):
            await bench.worker.call_utility("is_sleeping")


async def test_an_error_finish_is_delivered_and_the_worker_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready(script=lambda request: FixedScript([[5], [6]], HANG))
        with trio.move_on_after(5):
            await collect(bench.worker, request(max_tokens=50))
        assert bench.worker.state is WorkerState.READY
        assert bench.worker.in_flight == 0


async def test_a_consumer_that_lags_gets_everything_in_larger_batches(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready()
        async with bench.worker.generate(request(max_tokens=100)) as stream:
            await trio.sleep(10)
            batch = await stream.receive_batch()
        assert len(tokens([output for _, output in batch])) == 100


async def test_a_consumer_that_never_reads_fails_alone(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smg_trio.worker.output_stream.PENDING_OUTPUTS_LIMIT", 50)
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready()
        asked = request(max_tokens=1000)
        async with bench.worker.generate(asked) as stream:
            await engine.wait_aborted(asked.request_id)
            batch = await stream.receive_batch()
            assert len(batch) == 50
            with pytest.raises(Exception, match="stopped reading"):
                await stream.receive_batch()
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_ending_the_worker_aborts_what_is_in_flight(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        engine = await bench.ready(script=lambda request: LengthScript())
        asked = request(max_tokens=1000)
        bench.worker.begin(asked, _NoDelivery())
        await engine.wait_received(1)
        bench.worker.fail_everything(EngineDead("over"))
        await engine.wait_aborted(asked.request_id)
        assert bench.worker.in_flight == 0


class _NoDelivery:
    def put(self, output: object) -> bool:
        return True

    def fail(self, error: object) -> None:
        return


async def test_draining_takes_nothing_new(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with memory_bench(tmp_path) as bench:
        await bench.ready()
        bench.worker.start_draining()
        assert bench.worker.state is WorkerState.DRAINING
        with pytest.raises(NoReadyWorker, match="draining"):
            async with bench.worker.generate(request()):
                pass
