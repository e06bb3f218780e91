"""What a front does where the only process would look at itself: admission, connections, background work."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.gateway.tasks.background import BackgroundTasks
from smg_trio.routing.admission import (
    AdmissionQueue,
    AdmissionQueueFull,
    AdmissionQueueTimeout,
    AdmissionStatistics,
    Permit,
)

if TYPE_CHECKING:
    from smg_trio.core.board import Board
    from smg_trio.processes.channel import Channel

_LOOK_EVERY_S: Final = 0.005
"""While a request waits for an admission slot that another process may give back."""
_NAP_S: Final = 0.0005
_NAPS: Final = 8


class SharedAdmissionQueue(AdmissionQueue):
    """Admission slots of all processes together. They may exceed the limit by one per process, for a moment.

    Order is kept within a process. A limit of answers begun per second is the keeper's to keep: `turn`.
    """

    def __init__(
        self,
        limit: int | None,
        queue_size: int,
        timeout_s: float,
        board: Board,
        process: int,
        turn: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(limit, queue_size, timeout_s)
        self._board = board
        self._cells = board.process(process)
        self._turn = turn

    async def admit(self) -> Permit:
        """See `AdmissionQueue.admit`."""
        if self._turn is not None:
            try:
                await self._turn()
            except AdmissionQueueFull:
                self._refused_full += 1
                raise
            except AdmissionQueueTimeout:
                self._refused_timeout += 1
                raise
        if self._limit is not None and (self._waiters or self._board.answers() >= self._limit):
            await self._wait_for_slot(self._limit)
        self._count(1)
        self._admitted += 1
        return Permit(self)

    async def _wait_for_slot(self, limit: int) -> None:
        if self._board.waiting() >= self._queue_size:
            self._refused_full += 1
            raise AdmissionQueueFull("admission queue is at capacity")
        mine = trio.Event()
        self._waiters.append(mine)
        self._cells.waiting = len(self._waiters)
        try:
            with trio.move_on_after(self._timeout_s):
                # Another process's answer that ends wakes nobody here.
                while self._waiters[0] is not mine or self._board.answers() >= limit:  # noqa: ASYNC110
                    await trio.sleep(_LOOK_EVERY_S)
                return
        finally:
            self._waiters.remove(mine)
            self._cells.waiting = len(self._waiters)
        self._refused_timeout += 1
        raise AdmissionQueueTimeout("timed out waiting for an admission slot")

    def release(self) -> None:
        """See `AdmissionQueue.release`."""
        self._count(-1)

    def _count(self, change: int) -> None:
        self._in_flight += change
        self._cells.answers = self._in_flight

    def everywhere(self) -> AdmissionStatistics:
        """The counts, those of now summed over all processes."""
        own = self.statistics()
        return AdmissionStatistics(
            limit=own.limit,
            queue_size=own.queue_size,
            in_flight=self._board.answers(),
            waiting=self._board.waiting(),
            admitted=own.admitted,
            refused_full=own.refused_full,
            refused_timeout=own.refused_timeout,
        )


class SharedTurns:
    """See `http.listener.Turns`: a connection goes to the process that has fewest open.

    Of one listening socket the process that wakes first would get nearly all; a socket per process (SO_REUSEPORT)
    spreads them unevenly and loses what waits in the queue of a process that ends. So all have the same one, and a
    process that has more open than another lets that one go first, for as long as it takes to be sure that it is alive.
    """

    def __init__(self, board: Board, process: int) -> None:
        self._board = board
        self._cells = board.process(process)
        self._connections = 0

    async def wait(self) -> None:
        """See `Turns.wait`."""
        for _ in range(_NAPS):
            if self._connections <= self._board.fewest_connections(time.monotonic()):
                return
            await trio.sleep(_NAP_S)

    def count(self, connections: int) -> None:
        """See `Turns.count`."""
        self._connections = connections
        self._cells.connections = connections

    def accepting(self, on: bool) -> None:
        """See `Turns.accepting`."""
        self._cells.heartbeat = time.monotonic()
        self._cells.accepting = on


class FrontBackgroundTasks(BackgroundTasks):
    """Background responses of one front, which the keeper knows of: any process may end them."""

    def __init__(self, keeper: Channel) -> None:
        super().__init__()
        self._keeper = keeper

    def start(self, name: str, work: Callable[[], Awaitable[None]], *, owner: str = "") -> None:
        """See `BackgroundTasks.start`."""

        async def known() -> None:
            try:
                await work()
            finally:
                self._keeper.notify("background_ended", name)

        super().start(name, known, owner=owner)
        self._keeper.notify("background_started", name, owner)

    async def end(self, name: str) -> bool:
        """See `BackgroundTasks.end`."""
        return self.cancel(name) or bool(await self._keeper.call("background_end", name))
