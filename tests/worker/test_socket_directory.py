"""Who may reach a worker's sockets: the gateway's user, whatever the directory and the umask were before."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.worker.nursery import Worker
from smg_trio.worker.socket_directory import SocketPathLock, ensure_socket_directory
from smg_trio.worker.zmq_links import open_zmq_transport

from .harness import collect, request, socket_bench, tokens


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _directory(tmp_path: Path, mode: int) -> Path:
    directory = tmp_path / "sockets"
    directory.mkdir()
    directory.chmod(mode)
    return directory


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o775, 0o707, 0o722])
def test_a_directory_that_others_may_write_to_is_tightened_and_said_so(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _directory(tmp_path, mode)
    with caplog.at_level(logging.WARNING):
        ensure_socket_directory(str(directory / "e"))
        ensure_socket_directory(str(directory / "e"))
    assert _mode(directory) == 0o700
    [line] = [record.getMessage() for record in caplog.records]
    assert f"{directory} had mode {mode:04o}" in line


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o1755])
def test_a_directory_that_only_we_may_write_to_stays_as_it_is(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _directory(tmp_path, mode)
    ensure_socket_directory(str(directory / "e"))
    assert _mode(directory) == mode
    assert caplog.records == []


@pytest.mark.parametrize("mode", [0o1777, 0o2777, 0o2775])
def test_a_directory_that_is_shared_on_purpose_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    directory = _directory(tmp_path, mode)
    with pytest.raises(ConfigError, match=f"{directory} is shared with other users .mode {mode:04o}.*below it"):
        ensure_socket_directory(str(directory / "e"))
    assert _mode(directory) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused_whatever_its_mode(tmp_path: Path) -> None:
    directory = _directory(tmp_path, 0o777)
    os.chown(directory, 12345, -1)
    with pytest.raises(ConfigError, match="owned by uid 12345"):
        ensure_socket_directory(str(directory / "e"))
    assert _mode(directory) == 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_lock_file_of_another_user_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "e.lock").touch()
    os.chown(tmp_path / "e.lock", 12345, -1)
    with pytest.raises(ConfigError, match="remove it"):
        SocketPathLock(str(tmp_path / "e")).acquire()


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink"])
def test_a_lock_file_that_is_none_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "e.lock"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=str(path)):
        SocketPathLock(str(tmp_path / "e")).acquire()
    assert not (tmp_path / "elsewhere").exists()


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o177])
async def test_the_sockets_are_their_user_s_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    directory = _directory(tmp_path, 0o755)
    with _umask(mask):
        async with socket_bench(tmp_path) as bench:
            for end in ("in", "out"):
                assert _mode(directory / f"e-{end}.sock") == 0o600
            await bench.ready()
            assert len(tokens(await collect(bench.worker, request()))) == 4
            assert _mode(directory / "e-engines.json") & 0o077 == 0
            assert _mode(directory / "e.lock") & 0o077 == 0


async def test_nobody_connects_before_the_mode_of_a_socket_is_set(tmp_path: Path) -> None:
    """A thread that connects as soon as the file is there finds 0600 or a socket that does not listen."""
    paths, found, stop = [tmp_path / f"e{number}" for number in range(20)], set(), threading.Event()

    def knock() -> None:
        while not stop.is_set():
            for path in paths:
                with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
                    client.connect(str(path))
                    found.add(_mode(path))

    knocking = threading.Thread(target=knock)
    knocking.start()
    try:
        with _umask(0), open_zmq_transport() as transport:
            for link in [transport.bind_input(f"ipc://{path}") for path in paths]:
                link.close()
    finally:
        stop.set()
        await trio.to_thread.run_sync(knocking.join)
    assert found <= {0o600}


async def test_a_worker_in_a_shared_directory_says_why_it_does_not_start(tmp_path: Path) -> None:
    directory = _directory(tmp_path, 0o1777)
    with open_zmq_transport() as transport:
        worker = Worker(WorkerSpec(worker_id="w", url=f"ipc://{directory}/e", model_id="m"), transport)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            assert worker.state is WorkerState.FAILED
            assert "is shared with other users" in worker.snapshot().reason
            nursery.cancel_scope.cancel()
    assert os.listdir(directory) == []
