"""A gateway that ends, however it ends, and one after it that takes the living engines over."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.requests import GenerationRequest
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.memory import MemoryNetwork
from smg_trio.testing.options import EngineOptions
from smg_trio.worker.nursery import Worker
from smg_trio.worker.output_stream import OutputStream
from smg_trio.worker.registrations import RegistrationFile

from .harness import collect, request, tokens


def _spec(tmp_path: Path, engine_count: int = 1, protocol: EngineProtocol = EngineProtocol.VLLM) -> WorkerSpec:
    return WorkerSpec(
        worker_id="w", url=f"ipc://{tmp_path}/e", model_id="m", engine_count=engine_count, protocol=protocol
    )


async def _first_life(network: MemoryNetwork, spec: WorkerSpec, asked: GenerationRequest | None = None) -> None:
    """A gateway that serves until ready (and has a request in flight), then is gone without a goodbye."""
    worker = Worker(spec, network)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await worker.wait_state(WorkerState.READY)
        if asked is not None:
            stream = OutputStream[int]()
            entry = worker.begin(asked, stream.delivery(0))
            await stream.receive_batch()
            entry.sent = False  # as if killed: nobody aborts
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", list(EngineProtocol))
async def test_a_living_engine_is_adopted_and_its_orphan_aborted(
    tmp_path: Path, protocol: EngineProtocol, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    spec = _spec(tmp_path, protocol=protocol)
    address = Worker(spec, network).addresses.handshake
    engine = FakeEngine(EngineOptions(protocol=protocol, step_time_s=0.05), network, address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        orphan = request(max_tokens=8000)
        await _first_life(network, spec, orphan)
        await trio.sleep(60)
        worker = Worker(spec, network)
        await nursery.start(worker.run)
        with trio.fail_after(5):
            await worker.wait_state(WorkerState.READY)
            await engine.wait_aborted(orphan.request_id)
        assert len(tokens(await collect(worker, request()))) == 4
        assert engine.exit_reason is None
        assert engine.aborts.count(orphan.request_id) == 1
        nursery.cancel_scope.cancel()


async def test_a_lockstep_group_is_adopted_with_waves_it_takes(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    spec = _spec(tmp_path, engine_count=2)
    address = Worker(spec, network).addresses.handshake
    group = LockstepGroup(2)
    async with trio.open_nursery() as nursery:
        for rank in range(2):
            options = EngineOptions(rank=rank, group_size=2, lockstep=True, step_time_s=0.01)
            nursery.start_soon(FakeEngine(options, network, address, group=group).run)
        worker = Worker(spec, network)
        async with trio.open_nursery() as first:
            await first.start(worker.run)
            await worker.wait_state(WorkerState.READY)
            for _ in range(5):
                await collect(worker, request())
            first.cancel_scope.cancel()
        worker = Worker(spec, network)
        await nursery.start(worker.run)
        with trio.fail_after(5):
            await worker.wait_state(WorkerState.READY)
        assert worker.snapshot().lockstep
        with trio.fail_after(5):
            assert len(tokens(await collect(worker, request()))) == 4
        nursery.cancel_scope.cancel()


async def test_an_engine_that_died_meanwhile_is_not_adopted_and_its_successor_serves(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    spec = _spec(tmp_path)
    address = Worker(spec, network).addresses.handshake
    async with trio.open_nursery() as engines:
        engines.start_soon(FakeEngine(EngineOptions(), network, address).run)
        await _first_life(network, spec)
        engines.cancel_scope.cancel()
    worker = Worker(spec, network)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(30)
        assert worker.state is WorkerState.PENDING
        nursery.start_soon(FakeEngine(EngineOptions(), network, address).run)
        with trio.fail_after(5):
            await worker.wait_state(WorkerState.READY)
        nursery.cancel_scope.cancel()


async def test_an_engine_that_is_connected_but_does_not_answer_is_not_adopted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    spec = _spec(tmp_path)
    engine = FakeEngine(EngineOptions(), network, Worker(spec, network).addresses.handshake)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await _first_life(network, spec)
        engine.go_silent()
        worker = Worker(spec, network)
        await nursery.start(worker.run)
        await trio.sleep(60)
        assert worker.state is WorkerState.PENDING
        nursery.cancel_scope.cancel()


_ENGINE = '{"version": 1, "protocol": "vllm", "engines": {"%s": %s}}'
_UNBELIEVABLE: dict[str, str | bytes] = {
    "empty": "",
    "list": "[]",
    "nothing": "{}",
    "other version": '{"version": 99, "protocol": "vllm", "engines": {"0": {"max_model_len": 5}}}',
    "no map of engines": '{"version": 1, "protocol": "vllm", "engines": [1]}',
    "rank of letters": _ENGINE % ("x", '{"max_model_len": 5}'),
    "negative rank": _ENGINE % ("-1", '{"max_model_len": 5}'),
    "long rank": _ENGINE % ("0" * 5000, '{"max_model_len": 5}'),
    "engine of no map": _ENGINE % ("0", "7"),
    "no context length": _ENGINE % ("0", "{}"),
    "text for a number": _ENGINE % ("0", '{"max_model_len": "5"}'),
    "flag for a number": _ENGINE % ("0", '{"max_model_len": true}'),
    "nil for a number": _ENGINE % ("0", '{"max_model_len": null}'),
    "list for a text": _ENGINE % ("0", '{"max_model_len": 5, "engine_version": [1]}'),
    "huge number": _ENGINE % ("0", '{"max_model_len": 1%s}' % ("0" * 60)),
    "too many digits": _ENGINE % ("0", '{"max_model_len": 1%s}' % ("0" * 9000)),
    "NaN": _ENGINE % ("0", '{"max_model_len": NaN}'),
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep maps": '{"a":' * 100_000,
    "deep within": _ENGINE % ("0", "[" * 300_000 + "]" * 300_000),
    "too long": " " * 2_000_000,
    "not UTF-8": b"\xff\xfe",
    "NULs": b"\0" * 1000,
}


@pytest.mark.parametrize("name", _UNBELIEVABLE)
def test_a_file_that_cannot_be_believed_is_no_registration(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = _UNBELIEVABLE[name]
    path = tmp_path / "e-engines.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert RegistrationFile(str(tmp_path / "e"), EngineProtocol.VLLM).load() == {}
    [record] = caplog.records
    assert str(path) in record.getMessage()
    assert len(record.getMessage()) < 200 + len(str(path))


def test_registrations_of_the_other_protocol_are_none(tmp_path: Path) -> None:
    file = RegistrationFile(str(tmp_path / "e"), EngineProtocol.TOKENSPEED)
    file.save({0: EngineInfo(max_model_len=5)})
    assert RegistrationFile(str(tmp_path / "e"), EngineProtocol.VLLM).load() == {}


def _special_file(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device"])
async def test_a_special_file_in_place_of_the_registrations_neither_blocks_nor_ends_the_worker(
    tmp_path: Path, kind: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("e-engines.json", "e-engines.tmp"):
        _special_file(tmp_path / name, kind)
    network = MemoryNetwork()
    worker = Worker(_spec(tmp_path), network)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        nursery.start_soon(FakeEngine(EngineOptions(), network, worker.addresses.handshake).run)
        await worker.wait_state(WorkerState.READY)
        assert len(tokens(await collect(worker, request()))) == 4
        nursery.cancel_scope.cancel()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("ignoring the kept registrations" in line for line in lines) == 1
    assert not any("binding again" in line for line in lines)
    if kind != "directory":
        # What cannot be read is written anew, so that the next start has it.
        assert RegistrationFile(str(tmp_path / "e"), EngineProtocol.VLLM).load().keys() == {0}


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    file = RegistrationFile(str(tmp_path / "e"), EngineProtocol.VLLM)
    file.save({0: EngineInfo(max_model_len=5)})
    (tmp_path / "e-engines.json").rename(tmp_path / "elsewhere")
    (tmp_path / "e-engines.json").symlink_to(tmp_path / "elsewhere")
    assert file.load() == {}


def test_what_was_saved_is_loaded_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    info = EngineInfo(max_model_len=2048, engine_version="0.32.0", kv_cache_size_tokens=7)
    file = RegistrationFile(str(tmp_path / "e"), EngineProtocol.VLLM)
    file.save({0: info, 3: info})
    assert file.load() == {0: info, 3: info}
    path = tmp_path / "e-engines.json"
    assert path.stat().st_mode & 0o777 == 0o600
    value = json.loads(path.read_text())
    value["engines"]["0"]["of_a_later_version"] = 1
    path.write_text(json.dumps(value))
    assert file.load() == {0: info, 3: info}
