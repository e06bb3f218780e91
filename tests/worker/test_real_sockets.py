"""The same worker on libzmq: what only real sockets can show."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineDead, EngineSilent
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.worker.nursery import Worker
from smg_trio.worker.zmq_links import open_zmq_transport

from .harness import collect, request, socket_bench, tokens


@pytest.mark.parametrize("protocol", list(EngineProtocol))
async def test_many_requests_lose_and_double_nothing(tmp_path: Path, protocol: EngineProtocol) -> None:
    async with socket_bench(tmp_path, protocol=protocol) as bench:
        engine = await bench.ready(step_time_s=0.001)
        alone = tokens(await collect(bench.worker, request(max_tokens=60, prompt_token_ids=[7, 7])))
        answers: list[list[int]] = []

        async def ask() -> None:
            answers.append(tokens(await collect(bench.worker, request(max_tokens=60, prompt_token_ids=[7, 7]))))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)
        assert answers == [alone] * 50
        assert bench.worker.in_flight == 0
        assert engine.aborts == []


@pytest.mark.parametrize("idle", [True, False])
async def test_a_killed_engine_is_noticed_within_a_second(tmp_path: Path, idle: bool) -> None:
    async with socket_bench(tmp_path) as bench:
        engine = await bench.ready()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(EngineDead):
                    await collect(bench.worker, request(max_tokens=5000))

            if not idle:
                nursery.start_soon(ask)
                await engine.wait_received(1)
            with trio.fail_after(1):
                bench.kill(engine)
                await bench.worker.wait_state(WorkerState.NOT_READY)
        await bench.ready()
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_repeated_restarts_are_all_taken_in(tmp_path: Path) -> None:
    async with socket_bench(tmp_path) as bench:
        engine = await bench.ready()
        for sentinel in (True, False, True):
            engine.die(sentinel=sentinel)
            await bench.worker.wait_state(WorkerState.NOT_READY)
            engine = await bench.ready()
            assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_dead_rank_of_a_dense_group_is_named_by_its_connection(tmp_path: Path) -> None:
    async with socket_bench(tmp_path, engine_count=3) as bench:
        for rank in (2, 0):
            bench.start_engine(rank, group_size=3)
        await bench.ready(1, group_size=3)
        bench.kill(bench.engines[0])
        with trio.fail_after(1):
            while not bench.worker.snapshot().reason:
                await bench.worker.wait_change()
        assert "rank 2: the engine closed its connection" in bench.worker.snapshot().reason
        assert bench.worker.state is WorkerState.READY
        for _ in range(4):
            assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_silent_engine_dies_of_it_on_the_real_clock_too(tmp_path: Path) -> None:
    async with socket_bench(tmp_path, silence_limit_s=0.3) as bench:
        engine = await bench.ready()
        engine.go_silent()
        with pytest.raises(EngineSilent):
            await collect(bench.worker, request(max_tokens=5000))


async def test_an_engine_that_waited_before_the_gateway_came_is_answered_at_once(tmp_path: Path) -> None:
    async with socket_bench(tmp_path) as bench:
        engine = bench.start_engine()
        with trio.fail_after(2):
            await engine.wait_connected()
            await bench.worker.wait_state(WorkerState.READY)


async def test_a_stopped_engine_process_fails_its_requests_by_the_send_limit(tmp_path: Path) -> None:
    async with socket_bench(tmp_path, send_limit_s=0.5) as bench:
        command = [sys.executable, "-m", "smg_trio", "fake-engine", "--handshake", bench.worker.addresses.handshake]
        command += ["--max-model-len", "200000"]
        process = await trio.lowlevel.open_process(command, stderr=subprocess.DEVNULL)
        try:
            await bench.worker.wait_state(WorkerState.READY)
            process.send_signal(signal.SIGSTOP)
            failures: list[EngineDead] = []

            async def ask() -> None:
                try:
                    await collect(bench.worker, request(prompt_token_ids=[31_000] * 100_000))
                except EngineDead as error:
                    failures.append(error)

            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(ask)
            assert len(failures) == 50
            assert "does not take requests" in failures[0].message
            assert bench.worker.in_flight == 0
        finally:
            process.kill()
            await process.wait()


# ---- files ----------------------------------------------------------------------------------------------------


async def _reason_of_failure(spec: WorkerSpec) -> str:
    with open_zmq_transport() as transport:
        worker = Worker(spec, transport)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            state, reason = worker.state, worker.snapshot().reason
            nursery.cancel_scope.cancel()
        assert state is WorkerState.FAILED
        return reason


def _spec(path: Path) -> WorkerSpec:
    return WorkerSpec(worker_id="w", url=f"ipc://{path}", model_id="m")


async def test_sockets_left_by_a_dead_gateway_are_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "sockets"
    directory.mkdir(mode=0o700)
    for end in ("in", "out"):
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(directory / f"e-{end}.sock"))
        dead.close()
    async with socket_bench(tmp_path) as bench:
        await bench.ready()


async def test_a_plain_file_at_a_socket_path_is_never_deleted(tmp_path: Path) -> None:
    plain = tmp_path / "e-in.sock"
    plain.write_text("keep")
    reason = await _reason_of_failure(_spec(tmp_path / "e"))
    assert str(plain) in reason
    assert plain.read_text() == "keep"


async def test_a_symlinked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "is not a directory" in await _reason_of_failure(_spec(tmp_path / "link" / "e"))


async def test_the_directory_is_made_private_and_no_socket_is_left_at_the_end(tmp_path: Path) -> None:
    async with socket_bench(tmp_path):
        directory = tmp_path / "sockets"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {"e-in.sock", "e-out.sock"} <= set(os.listdir(directory))
    assert os.listdir(directory) == []


async def test_a_second_gateway_does_not_steal_the_sockets_of_a_live_one(tmp_path: Path) -> None:
    async with socket_bench(tmp_path) as bench:
        await bench.ready()
        reason = await _reason_of_failure(_spec(tmp_path / "sockets" / "e"))
        assert "another live gateway" in reason
        assert len(tokens(await collect(bench.worker, request()))) == 4


async def test_a_taken_handshake_port_is_said_and_tried_again(tmp_path: Path) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    spec = WorkerSpec(worker_id="w", url=f"ipc://{tmp_path}/e", model_id="m", handshake_address=address)
    with open_zmq_transport() as transport:
        worker = Worker(spec, transport)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            assert worker.state is WorkerState.FAILED
            assert "in use" in worker.snapshot().reason
            taken.close()
            with trio.fail_after(5):
                await worker.wait_state(WorkerState.PENDING)
            nursery.cancel_scope.cancel()
