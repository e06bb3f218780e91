"""How many bytes the media of all requests may hold at once.

Each request has a hold on the budget for as long as its media are in memory: files, pixels, and tensors that are not
sent yet. A request that finds no room waits for a few seconds, in the order of arrival, then it is refused (429).

What a request needs grows: first the files are known, later the pixels. If new requests could take all the room, none
of them could go on, and all would wait for each other until all are refused. So a hold that has nothing yet is given
room up to half of the limit only (or any, while nobody else has any), and holds that have some go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from smg_trio.media.errors import MediaMemoryFull, MediaTooLarge

PATIENCE_S: Final = 5.0
"""How long one addition waits for room."""
_SHARE_FOR_NEW: Final = 0.5


def _ignore(_: int) -> None:
    """Nobody wants to know."""


class _Waiter:
    """One addition that waits for room."""

    __slots__ = ("granted", "hold", "size")

    def __init__(self, hold: MediaHold, size: int) -> None:
        self.hold = hold
        self.size = size
        self.granted = trio.Event()


class MediaBudget:
    """The bytes, and who waits for some.

    Args:
        limit: most bytes that all holds may have.
        bytes_in_flight, waiting: told at each change, see `MediaHooks`.
    """

    def __init__(
        self,
        limit: int,
        *,
        bytes_in_flight: Callable[[int], None] = _ignore,
        waiting: Callable[[int], None] = _ignore,
    ) -> None:
        self.limit = limit
        self._used = 0
        self._growing: deque[_Waiter] = deque()
        self._new: deque[_Waiter] = deque()
        self._bytes_in_flight = bytes_in_flight
        self._waiting = waiting

    @property
    def used(self) -> int:
        """Bytes that all holds have."""
        return self._used

    @property
    def waiting(self) -> int:
        """Additions that wait for room."""
        return len(self._growing) + len(self._new)

    def hold(self) -> MediaHold:
        """An empty hold; ``with`` gives back what it has at the end."""
        return MediaHold(self)

    async def _take(self, hold: MediaHold, size: int) -> None:
        queue = self._growing if hold.held else self._new
        if not self._growing and not queue and self._fits(hold, size):
            self._grant(hold, size)
            return
        waiter = _Waiter(hold, size)
        queue.append(waiter)
        self._waiting(self.waiting)
        try:
            with trio.move_on_after(PATIENCE_S):
                await waiter.granted.wait()
                return
        except trio.Cancelled:
            if waiter.granted.is_set():
                hold.give_back(size)
            raise
        finally:
            if not waiter.granted.is_set():
                queue.remove(waiter)
                self._serve()
            self._waiting(self.waiting)
        if not waiter.granted.is_set():
            raise MediaMemoryFull("media of other requests hold all the memory that media may; try again later")

    def _fits(self, hold: MediaHold, size: int) -> bool:
        if self._used + size > self.limit:
            return False
        return bool(hold.held) or not self._used or self._used + size <= self.limit * _SHARE_FOR_NEW

    def _grant(self, hold: MediaHold, size: int) -> None:
        hold._held += size
        self._used += size
        self._bytes_in_flight(self._used)

    def _release(self, size: int) -> None:
        self._used -= size
        self._bytes_in_flight(self._used)
        self._serve()

    def _serve(self) -> None:
        for queue in (self._growing, self._new):
            while queue and self._fits(queue[0].hold, queue[0].size):
                waiter = queue.popleft()
                self._grant(waiter.hold, waiter.size)
                waiter.granted.set()
            if queue:
                # Later ones that need less must not starve it.
                return


class MediaHold:
    """What one request has of the budget. Several tasks of the request may add to it.

    ``with budget.hold() as hold: …`` gives back all of it at the end, however it ends.
    """

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes that it has."""
        return self._held

    async def add(self, size: int, where: str) -> None:
        """Take `size` bytes more, for the part `where`; waits for room for `PATIENCE_S` at most.

        If it is cancelled, the hold has what it had before.

        Raises:
            MediaTooLarge: the request would have more than the whole budget.
            MediaMemoryFull: there was no room in time.
        """
        self.check(size, where)
        if size > 0:
            await self._budget._take(self, size)

    def check(self, size: int, where: str) -> None:
        """Raises MediaTooLarge if `size` bytes more would be more than the whole budget."""
        if self._held + size > self._budget.limit:
            problem = f"the media of one request may hold {self._budget.limit} bytes in memory, these need more"
            raise MediaTooLarge(where, problem)

    def give_back(self, size: int) -> None:
        """Have `size` bytes less; at most what it has."""
        size = min(size, self._held)
        if size > 0:
            self._held -= size
            self._budget._release(size)

    def __enter__(self) -> MediaHold:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back(self._held)
