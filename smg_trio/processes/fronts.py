"""All fronts of a gateway: started, watched, started again when they end, told to drain. The keeper's.

```
serve ── per front: {pause, process ∥ control channel}, again and again ∥ heartbeats
```
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio

from smg_trio.core.errors import GatewayFault

if TYPE_CHECKING:
    from smg_trio.gateway.run import GatewayShutdown
    from smg_trio.processes.channel import Calls, Notices
    from smg_trio.processes.front_process import Front
    from smg_trio.processes.memory import SharedBoard

logger = logging.getLogger("smg_trio.processes")

_BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_LIVED_WELL_S: Final = 60.0
"""A front that has lived for so long is started again at once."""
_HANGING_S: Final = 30.0
_LOOK_EVERY_S: Final = 2.0
_END_LIMIT_S: Final = 5.0
"""After the grace period and what ends it, until a front that has not ended is killed."""


class FrontOwner(Protocol):
    """Who the fronts talk to: the keeper."""

    def make_front(self, index: int) -> Front:
        """The next life of a front."""
        ...

    def notices(self, front: Front) -> Notices:
        """What it may say."""
        ...

    def calls(self, front: Front) -> Calls:
        """What it may ask."""
        ...

    async def stand_in(self, index: int) -> None:
        """Do what must be done for a front that is away, until cancelled."""
        ...

    async def front_ended(self, front: Front) -> None:
        """Its process has ended; its cells on the board are zero."""
        ...


class Fronts:
    """Run `serve` once.

    Args:
        memory: the board; every front inherits it.
        count: how many fronts there are.
        shutdown: told of a start that fails, and of an end that is not clean.
        owner: see `FrontOwner`.

    Attributes:
        living: those whose process runs or is about to, by number.
        ready: set once serving has begun, or cannot.
        sockets: descriptors of the listening sockets, which every front inherits.
        restarts: fronts that ended and were started again.
        failed: the start has failed.
    """

    def __init__(self, memory: SharedBoard, count: int, shutdown: GatewayShutdown, owner: FrontOwner) -> None:
        self._memory = memory
        self._shutdown = shutdown
        self._owner = owner
        self._news = trio.Event()
        self._drain = trio.Event()
        self._ever_ready = False
        self.count = count
        self.living: dict[int, Front] = {}
        self.ready = trio.Event()
        self.sockets: list[int] = []
        self.restarts = 0
        self.failed = False

    def serving(self) -> list[Front]:
        """Those that accept connections, in order."""
        return [front for _, front in sorted(self.living.items()) if front.ready]

    def notify(self, name: str, *arguments: object) -> None:
        """Send a notice to every front."""
        for front in self.living.values():
            front.notify(name, *arguments)

    def told(self) -> None:
        """A front has said something that others may wait for, or has ended."""
        self._news.set()
        self._news = trio.Event()

    async def news(self) -> None:
        """Wait for the next `told`."""
        await self._news.wait()

    def became_ready(self, front: Front) -> None:
        """The front accepts connections."""
        front.ready = self._ever_ready = True
        if len(self.serving()) == self.count:
            self.ready.set()

    def kill(self, index: int, why: str) -> None:
        """End a front that has gone wrong; it is started again."""
        front = self.living.get(index)
        if front is not None:
            logger.error("front %d (pid %d) %s; it is killed", index, front.pid, why)
            front.kill()

    async def serve(self) -> None:
        """Keep all fronts running until `drain` has been called and they have ended. Cancelled, they are killed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_heartbeats)
            nursery.start_soon(self._stop_waiting_when_asked)
            async with trio.open_nursery() as fronts:
                for index in range(1, self.count + 1):
                    fronts.start_soon(self._keep, index)
            nursery.cancel_scope.cancel()

    async def _stop_waiting_when_asked(self) -> None:
        await self._shutdown.wait_asked()
        self.ready.set()

    async def _watch_heartbeats(self) -> None:
        while True:
            await trio.sleep(_LOOK_EVERY_S)
            now = time.monotonic()
            for front in self.serving():  # one that starts may take long to load a model's files
                silent_s = now - self._memory.board.process(front.index).heartbeat
                if silent_s > _HANGING_S:
                    self.kill(front.index, f"has hung for {silent_s:.0f} s")

    async def _keep(self, index: int) -> None:
        """Run a front, and start it again whenever it ends, until the gateway drains."""
        attempt = 0
        while True:
            await self._pause(index, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            if self._drain.is_set():
                return
            started = trio.current_time()
            front = self.living[index] = self._owner.make_front(index)
            code = await self._run(front)
            await self._ended(front, code)
            attempt = 0 if trio.current_time() - started > _LIVED_WELL_S else attempt + 1

    async def _pause(self, index: int, pause_s: float) -> None:
        if not pause_s:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._owner.stand_in, index)
            with trio.move_on_after(pause_s):
                await self._drain.wait()
            nursery.cancel_scope.cancel()

    async def _run(self, front: Front) -> int:
        inherited = [*self.sockets, self._memory.descriptor]
        notices, calls = self._owner.notices(front), self._owner.calls(front)
        try:
            return await front.run(notices, calls, inherited, partial(self._process_started, front.index))
        except OSError as error:
            front.failure = f"process {front.index} cannot be started: {error.strerror}"
            logger.warning("%s", front.failure)
            return -1

    def _process_started(self, index: int, pid: int) -> None:
        cells = self._memory.board.process(index)
        cells.heartbeat = time.monotonic()
        cells.pid = pid

    async def _ended(self, front: Front, code: int) -> None:
        self._memory.board.clear_process(front.index)
        if self._drain.is_set():
            self._shutdown.clean = self._shutdown.clean and code == 0
        elif not self._ever_ready:
            words = front.failure or f"process {front.index} ended with code {code} before it could serve"
            self.failed = True
            self._drain.set()
            self._shutdown.fail(GatewayFault(words))
        else:
            logger.error("front %d (pid %d) ended with code %d; it is started again", front.index, front.pid, code)
            self.restarts += 1
            self.ready.set()  # the others serve, whether or not this one can
        del self.living[front.index]
        self.told()
        await self._owner.front_ended(front)

    async def drain(self, grace_s: float) -> None:
        """Have all of them end, within the grace period and what follows it; kill what is left then."""
        self._drain.set()
        self.sockets = []
        self.notify("drain")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cut_when_told)
            with trio.move_on_after(grace_s + _END_LIMIT_S):
                while self.living:
                    await self.news()
            nursery.cancel_scope.cancel()
        self._kill_left()

    def _kill_left(self) -> None:
        for front in self.living.values():
            logger.warning("front %d (pid %d) has not ended; it is killed", front.index, front.pid)
            self._shutdown.clean = False
            front.kill()

    async def _cut_when_told(self) -> None:
        await self._shutdown.wait_cut()
        self.notify("cut")
