"""Memory of another process: mapped only if it is sealed, and given back in a thread when the last view ends."""

from __future__ import annotations

import fcntl
import gc
import os

import pytest
import trio
import trio.testing

from smg_trio.media.shared_memory import SharedMemory

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def memory(size: int, seals: int = SEALS) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, bytes(size))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK])
async def test_memory_that_could_still_change_is_not_mapped(seals: int) -> None:
    descriptor = memory(100, seals)
    with pytest.raises(ValueError, match="not sealed"):
        SharedMemory().map(descriptor)
    assert not is_open(descriptor)


async def test_empty_memory_is_not_mapped() -> None:
    descriptor = memory(0)
    with pytest.raises(ValueError, match="empty"):
        SharedMemory().map(descriptor)
    assert not is_open(descriptor)


@pytest.mark.parametrize("size", [100, 2 << 20])
async def test_the_descriptor_lives_as_long_as_the_last_view(size: int) -> None:
    shared = SharedMemory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shared.run)
        await trio.testing.wait_all_tasks_blocked()
        view = memoryview(shared.map(descriptor := memory(size)))[10:20]
        gc.collect()
        assert is_open(descriptor)
        assert bytes(view) == bytes(10)
        del view
        with trio.fail_after(5):
            while is_open(descriptor):
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [100, 2 << 20])
async def test_what_is_let_go_of_after_the_end_is_closed_where_that_happens(size: int) -> None:
    shared = SharedMemory()
    before = shared.map(first := memory(size))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shared.run)
        await trio.testing.wait_all_tasks_blocked()
        during = shared.map(second := memory(size))
        nursery.cancel_scope.cancel()
    del before, during
    assert not is_open(first)
    assert not is_open(second)
