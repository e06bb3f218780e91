"""Files that are read again when they change, without a restart.

One task looks at all of them once a second. What has changed is read once it has been still from one look to the
next, so that a certificate is not read before its key has been replaced too. SIGHUP reads everything immediately. What
cannot be read is logged as a warning, and its previous contents stay in force.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

from smg_trio.core.errors import ConfigError

logger = logging.getLogger("smg_trio.gateway")

_LOOK_EVERY_S = 1.0

Signature = tuple[tuple[int, int, int] | None, ...]
"""Of each file what changes when it is written or replaced: inode, size, time in ns; None if it is not there."""


class WatchedFile:
    """Files that are read together.

    Attributes:
        what: they are, for the log.
        paths: of the files; links are followed.
        read: takes over what they hold now. Raises ConfigError and changes nothing if that cannot be used.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Awaitable[None]]) -> None:
        self.what = what
        self.paths = tuple(paths)
        self.read = read
        self.tried: Signature = ()
        self.seen: Signature = ()

    def signature(self) -> Signature:
        """The files as they are now."""
        return tuple(map(_signature, self.paths))


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character in the path
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class FileWatcher:
    """Reads `followed` at the start, and again when they change."""

    def __init__(self, followed: Sequence[WatchedFile], *, look_every_s: float = _LOOK_EVERY_S) -> None:
        self._followed = [one for one in followed if one.paths]
        self._look_every_s = look_every_s
        self._lock = trio.Lock()

    @property
    def follows(self) -> list[Path]:
        """Every file."""
        return [path for one in self._followed for path in one.paths]

    async def read_first(self) -> None:
        """Read everything. Raises ConfigError."""
        for one in self._followed:
            one.tried = one.seen = await trio.to_thread.run_sync(one.signature)
            await one.read()

    async def run(self) -> None:
        """Look for changes until cancelled; returns immediately if there is nothing to look at."""
        while self._followed:
            await trio.sleep(self._look_every_s)
            await self.look()

    async def look(self) -> None:
        """Read what has changed since it was last read and is still the same as at the last look."""
        async with self._lock:
            for one in self._followed:
                now = await trio.to_thread.run_sync(one.signature)
                if now != one.tried and now == one.seen:
                    await self._read(one, now)
                one.seen = now

    async def read_all(self) -> None:
        """Read everything now, changed or not."""
        async with self._lock:
            for one in self._followed:
                await self._read(one, await trio.to_thread.run_sync(one.signature))

    async def _read(self, one: WatchedFile, now: Signature) -> None:
        one.tried = one.seen = now
        try:
            await one.read()
        except ConfigError as error:
            logger.warning("%s not reloaded, the previous contents stay in force: %s", one.what, error.message)
        except Exception:
            # Files are written by people and programs while the gateway runs: none of them may end it.
            logger.exception("%s not reloaded, the previous contents stay in force", one.what)
        else:
            logger.info("%s reloaded", one.what)

    async def read_on_hangup(
        self, tell: Callable[[], None] = lambda: None, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Read everything, and call `tell`, at each SIGHUP, which then does not end the process, until cancelled."""
        with trio.open_signal_receiver(signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                tell()
                await self.read_all()
