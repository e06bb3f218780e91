"""One engine process: a scope that holds its whole process group.

The engine runs in a session of its own, so that a Ctrl-C at the terminal reaches only ``serve``, which ends engines
in its own order. Its output comes through one pipe (stdout and stderr, in the order they were written), line by line.
The pipe's end also tells when the last process of the group is gone, since all of them inherit it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from smg_trio.core.errors import ConfigError

TERMINATE_LIMIT_S = 30.0
"""Between SIGTERM and SIGKILL (the reference's limit)."""
ORPHAN_LIMIT_S = 5.0
"""The same for what is left of a group whose leader has died."""
KEPT_LINES = 40
_LAST_WORDS_LIMIT_S = 1.0
_CHUNK_BYTES = 65536
_LONGEST_LINE_BYTES = 16384


def _ignore(_group: int) -> None:
    return


class EngineProcess:
    """A running engine; made by `open_engine_process`.

    Attributes:
        pid: of its first process, which is also the id of the group.
        reading: ends `read_output`, which goes on under cancellation of its surroundings.
    """

    def __init__(self, process: trio.Process, say: Callable[[str], None]) -> None:
        self._process = process
        self._say = say
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._silent = trio.Event()
        self.reading = trio.CancelScope(shield=True)
        self.pid = process.pid

    def last_lines(self) -> list[str]:
        """What it said last, oldest first."""
        return list(self._lines)

    async def wait(self) -> int:
        """Wait for the end of its first process, and a moment for its last words; the exit code."""
        code = await self._process.wait()
        with trio.move_on_after(_LAST_WORDS_LIMIT_S):
            await self._silent.wait()
        return code

    async def read_output(self) -> None:
        """Pass on what it says until the pipe ends."""
        stdout = self._process.stdout
        assert stdout is not None
        splitter = LineSplitter(self._take)
        with self.reading:
            async with stdout:
                with suppress(trio.BrokenResourceError):
                    while chunk := await stdout.receive_some(_CHUNK_BYTES):
                        splitter.feed(bytes(chunk))
        splitter.finish()
        self._silent.set()

    def _take(self, line: str) -> None:
        self._lines.append(line)
        self._say(line)

    async def end(self, hurry: trio.Event) -> None:
        """End the group, so that nothing of it lives: SIGTERM, and SIGKILL after a while or once `hurry` is set."""
        limit_s = TERMINATE_LIMIT_S if self._process.returncode is None else ORPHAN_LIMIT_S
        self._signal_group(signal.SIGTERM)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, hurry, nursery.cancel_scope)
            with trio.move_on_after(limit_s):
                await self._process.wait()
                await self._silent.wait()
            nursery.cancel_scope.cancel()
        self._signal_group(signal.SIGKILL)
        await self._process.wait()
        with trio.move_on_after(_LAST_WORDS_LIMIT_S):
            await self._silent.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class LineSplitter:
    """Cuts a byte stream into lines of text. Progress bars end theirs with a carriage return."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Add bytes; hands over each line that is complete, without its end and without empty ones."""
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._hand_over(line)
        if len(self._rest) > _LONGEST_LINE_BYTES:
            self.finish()

    def finish(self) -> None:
        """Hand over what has no line end."""
        rest, self._rest = self._rest, b""
        self._hand_over(rest)

    def _hand_over(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip()
        if text:
            self._take(text)


class Ending:
    """How engines end: shared by all of one ``serve``.

    Attributes:
        hurry: once set, nothing is waited for.
        hold, release: told the id of each process group when it begins and when all of it is gone.
    """

    def __init__(
        self,
        hurry: trio.Event,
        hold: Callable[[int], None] = _ignore,
        release: Callable[[int], None] = _ignore,
    ) -> None:
        self.hurry = hurry
        self.hold = hold
        self.release = release


@asynccontextmanager
async def open_engine_process(
    words: Sequence[str], environment: Mapping[str, str], say: Callable[[str], None], ending: Ending
) -> AsyncIterator[EngineProcess]:
    """A running engine; leaving the block for any reason ends its whole group.

    Args:
        words: program and arguments.
        environment: variables to set beside the inherited ones.
        say: takes each line of its output.
        ending: how it ends.

    Raises:
        ConfigError: the program cannot be run.
    """
    try:
        process = await trio.lowlevel.open_process(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError("--engine-python", f"cannot run {words[0]}: {error.strerror}.") from None
    engine = EngineProcess(process, say)
    ending.hold(engine.pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.read_output)
        try:
            yield engine
        finally:
            with trio.CancelScope(shield=True):
                await engine.end(ending.hurry)
            engine.reading.cancel()
            ending.release(engine.pid)
