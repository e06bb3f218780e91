"""Supervision of engines: start, progress, deaths, restarts.

Each engine has one supervisor task. A life of an engine ends when its process does, when it is not ready in time (if
a time was asked for), or when its worker has lost it while the process lives on, deaf: real vLLM engines do that
after a request they cannot decode. `progress.Lives` decides what follows.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio

from smg_trio.core.errors import EngineFault, SmgError
from smg_trio.core.workers import RankPhase, WorkerSnapshot
from smg_trio.launcher.process import Ending, open_engine_process
from smg_trio.launcher.progress import Death, Lives, Stage, StartProgress, all_ranks_ready, exit_words, quoted

if TYPE_CHECKING:
    from smg_trio.launcher.commands import EngineCommand

logger = logging.getLogger("smg_trio.launcher")

LOST_LIMIT_S: Final = 30.0
"""An engine whose process lives but whose connection is gone has so long to come back before it is ended. Longer
than a worker looks for engines to adopt after it had to bind its sockets anew."""
_FAILURE_LINES: Final = 25
_RESTART_LINES: Final = 10


class EngineCannotStart(EngineFault):
    """An engine has died before it was ever ready, and trying again has not helped or cannot."""

    code = "engine_cannot_start"


class WatchedWorker(Protocol):
    """What supervision needs of the worker an engine belongs to."""

    def snapshot(self) -> WorkerSnapshot:
        """The worker as it is now."""

    async def wait_change(self) -> None:
        """Wait until the snapshot may have changed."""


class RunningEngine(Protocol):
    """What supervision needs of an engine's process."""

    pid: int

    async def wait(self) -> int:
        """Wait for its end; the exit code."""

    def last_lines(self) -> list[str]:
        """What it said last, oldest first."""


OpenEngine = Callable[
    [Sequence[str], Mapping[str, str], Callable[[str], None], Ending], AbstractAsyncContextManager[RunningEngine]
]


class Supervisor:
    """The life of one engine, again and again.

    Args:
        command: what to start.
        worker: where it dials in.
        ending: how its processes end.
        say: takes each line of its output, with the engine's name in front.
        startup_timeout_s: how long a start may take until it is ready; None: without limit.
        host: for messages.
        open_engine: starts a process; tests give another.
    """

    def __init__(
        self,
        command: EngineCommand,
        worker: WatchedWorker,
        ending: Ending,
        say: Callable[[str], None],
        *,
        startup_timeout_s: float | None = None,
        host: str = "127.0.0.1",
        open_engine: OpenEngine = open_engine_process,
    ) -> None:
        self._command = command
        self._worker = worker
        self._ending = ending
        self._say = say
        self._startup_timeout_s = startup_timeout_s
        self._host = host
        self._open_engine = open_engine
        self._lines: list[str] = []
        self._ready_since: float | None = None

    async def run(self) -> SmgError:
        """Keep the engine alive until that proves useless: then why. Cancelled, its processes are ended first."""
        lives = Lives()
        name = self._command.name
        logger.info("Launching worker with command: %s", shlex.join(self._command.words))
        while True:
            try:
                death = await self._live()
            except SmgError as error:
                return error
            pause_s = lives.pause_after(death)
            if pause_s is None:
                return EngineCannotStart(self._failure_words(death))
            logger.warning(
                "%s %s; starting it again in %g s. Its last lines:%s",
                name,
                death.reason,
                pause_s,
                quoted(self._lines[-_RESTART_LINES:]),
            )
            await trio.sleep(pause_s)

    async def _live(self) -> Death:
        command, progress = self._command, StartProgress()
        began = trio.current_time()
        hear = partial(self._hear, progress, began)
        self._ready_since = None
        async with self._open_engine(command.words, command.environment, hear, self._ending) as engine:
            where = f"{self._host}:{command.port}"
            logger.info(
                "Launched %s worker on %s as %s (pid %d, GPUs: %s)",
                command.backend, where, command.name, engine.pid, command.devices,
            )  # fmt: skip
            death = await _first_of(partial(self._until_exit, engine), partial(self._until_lost, progress, began))
        self._lines = engine.last_lines()
        return death

    async def _until_exit(self, engine: RunningEngine) -> Death:
        code = await engine.wait()
        return self._death(exit_words(code), code)

    async def _until_lost(self, progress: StartProgress, began: float) -> Death:
        # What the worker still knows of the life before must not count for this one.
        await self._until(lambda snapshot: not all_ranks_ready(snapshot))

        def is_ready(snapshot: WorkerSnapshot) -> bool:
            self._tell(progress.worker(snapshot), began)
            return all_ranks_ready(snapshot)

        with trio.move_on_after(self._startup_timeout_s or float("inf")) as scope:
            await self._until(is_ready)
        if scope.cancelled_caught:
            return self._death(f"was not ready within {self._startup_timeout_s:g} s")
        self._ready_since = trio.current_time()
        while True:
            await self._until(_is_lost)
            with trio.move_on_after(LOST_LIMIT_S) as scope:
                await self._until(lambda snapshot: not _is_lost(snapshot))
            if scope.cancelled_caught:
                return self._death(
                    f"lost its connection to the gateway and did not come back within {LOST_LIMIT_S:g} s"
                )

    async def _until(self, holds: Callable[[WorkerSnapshot], bool]) -> None:
        while not holds(self._worker.snapshot()):
            await self._worker.wait_change()

    def _death(self, reason: str, exit_code: int | None = None) -> Death:
        ready_for_s = None if self._ready_since is None else trio.current_time() - self._ready_since
        return Death(reason, ready_for_s, exit_code)

    def _hear(self, progress: StartProgress, began: float, line: str) -> None:
        self._say(f"[{self._command.name}] {line}")
        self._tell(progress.line(line), began)

    def _tell(self, stage: Stage | None, began: float) -> None:
        if stage is not None:
            logger.info("%s: %s (%.1f s after its start)", self._command.name, stage, trio.current_time() - began)

    def _failure_words(self, death: Death) -> str:
        command = self._command
        lines = self._lines[-_FAILURE_LINES:]
        remedy = ""
        if any("No module named" in line for line in lines):
            remedy = (
                f"\nIs {command.backend} installed for {command.words[0]}? --engine-python names another interpreter."
            )
        early = "" if death.exit_code is None else " before it was ready"
        return f"{command.name} {death.reason}{early}. Its last lines:{quoted(lines)}{remedy}"


def _is_lost(snapshot: WorkerSnapshot) -> bool:
    return any(rank.phase is RankPhase.WAITING for rank in snapshot.ranks)


async def _first_of(*waits: Callable[[], Awaitable[Death]]) -> Death:
    deaths: list[Death] = []

    async def wait(one: Callable[[], Awaitable[Death]]) -> None:
        deaths.append(await one())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for one in waits:
            nursery.start_soon(wait, one)
    return deaths[0]


async def run_engines(supervisors: Sequence[Supervisor], gave_up: Callable[[SmgError], None]) -> None:
    """Supervise all; `gave_up` is told when one has no use in going on. Cancelled, all processes are ended."""

    async def supervise(supervisor: Supervisor) -> None:
        gave_up(await supervisor.run())

    async with trio.open_nursery() as nursery:
        for supervisor in supervisors:
            nursery.start_soon(supervise, supervisor)
