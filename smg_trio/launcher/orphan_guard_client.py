"""Starts the `orphan_guard` process and tells it which engines live."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from smg_trio.launcher import orphan_guard
from smg_trio.launcher.process import Ending


@asynccontextmanager
async def open_orphan_guard(hurry: trio.Event) -> AsyncIterator[Ending]:
    """An orphan guard for the engines of this process: the `Ending` to start them with.

    Args:
        hurry: once set, the end of an engine waits for nothing.

    Leaving the block lets go of it: whatever of them is still held then is ended by the guard, which is waited for.
    """
    read_end, write_end = os.pipe()
    try:
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-I", orphan_guard.__file__],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read_end)
        tell = _Teller(write_end)
        yield Ending(hurry, tell.hold, tell.release)
    finally:
        os.close(write_end)
    with trio.CancelScope(shield=True):
        await process.wait()


class _Teller:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def hold(self, group: int) -> None:
        self._write(f"+{group}\n")

    def release(self, group: int) -> None:
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        # Without its orphan guard serve works all the same; a pipe takes such a line immediately.
        with suppress(BrokenPipeError):
            os.write(self._descriptor, line.encode())
