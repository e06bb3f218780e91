"""The file of ``--usage-log``: lines are handed over on the event loop and appended in a thread, none is lost.

The file is opened for each batch, so it may be moved away and read at any time; a line is written whole, so several
gateways may write to one file. While it cannot be written, lines are kept and tried again; beyond a bound the oldest
are given up, and counted.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import deque
from pathlib import Path
from typing import Final

import trio

from smg_trio.core.errors import ConfigError

logger = logging.getLogger("smg_trio.gateway")

_MOST_LINES: Final = 200_000
_AT_ONCE: Final = 10_000
_RETRY_S: Final = 5.0


class UsageLog:
    """Run it; `finish` when no more lines come.

    Attributes:
        lost: lines that were given up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._lines: deque[bytes] = deque()
        self._waiting = trio.Event()

    def check(self) -> None:
        """Raises ConfigError if the file cannot be appended to; it exists afterwards. Blocks."""
        try:
            os.close(self._open())
        except OSError as error:
            raise ConfigError("--usage-log", f"cannot write {self.path}: {error.strerror}.") from None

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, line: bytes) -> None:
        """Append a line, which ends with a line feed, soon. Never waits."""
        if len(self._lines) >= _MOST_LINES:
            self._lines.popleft()
            self.lost += 1
        self._lines.append(line)
        self._waiting.set()

    async def run(self) -> None:
        """Write whatever comes, until cancelled; then what has not been written is left to `finish`."""
        while True:
            await self._waiting.wait()
            self._waiting = trio.Event()
            while self._lines:
                try:
                    await self._write_some()
                except OSError as error:
                    waiting = len(self._lines)
                    logger.warning("usage log %s cannot be written, %d lines wait: %s", self.path, waiting, error)
                    await trio.sleep(_RETRY_S)

    async def finish(self) -> None:
        """Write what is left, once. Cancellation waits for that."""
        with trio.CancelScope(shield=True):
            try:
                while self._lines:
                    await self._write_some()
            except OSError as error:
                self.lost += len(self._lines)
                logger.warning(
                    "usage log %s cannot be written, its last %d lines are lost: %s", self.path, len(self._lines), error
                )

    async def _write_some(self) -> None:
        """Lines are forgotten when they are in the file, so a fault, or cancellation in the meantime, loses none."""
        batch = [self._lines.popleft() for _ in range(min(_AT_ONCE, len(self._lines)))]
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._append, b"".join(batch))
        except BaseException:
            self._lines.extendleft(reversed(batch))
            raise

    def _append(self, data: bytes) -> None:
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # for others who write to it; it ends with the descriptor
            start = os.lseek(file, 0, os.SEEK_END)
            try:
                while data:
                    data = data[os.write(file, data) :]
            except OSError:
                os.ftruncate(file, start)  # no half line, and no line twice: all of it is tried again
                raise
        finally:
            os.close(file)
