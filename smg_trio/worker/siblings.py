"""What a worker must know of the other processes of its gateway, where there are several.

Each process has a socket pair of its own at every worker's engines. Process 0 (the keeper) answers the handshake and
lists all pairs in INIT; the others (the fronts) learn from an engine's registration on their own pair that it is there.
What the engines' load is, and how much is in flight at them, all of them count on one board.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from smg_trio.core.engines import EngineLoad
from smg_trio.worker.ledger import InFlight, Ledger
from smg_trio.worker.liveness import SilenceClock
from smg_trio.worker.ranks import RankSelector

if TYPE_CHECKING:
    from collections.abc import Callable

    from smg_trio.core.board import RankCells

DeliveryT = TypeVar("DeliveryT")

CALL_ID_BITS: Final = 48
"""Calls of engine methods are numbered per process; the process's number stands in the bits above, so that replies
which every process hears (of an engine with one pair) mean something to one of them only."""


class Siblings:
    """One worker's part in a gateway of several processes.

    Attributes:
        index: which process this is: 0 the keeper, 1 and up a front.
        pairs: how many processes there are, and so how many pairs an engine is told of.
        cells: the worker's ranks on the board.
        stalled: told the number of a process that does not take what is passed on to it.
        monotonic: a clock that is the same in all processes, in seconds.
    """

    __slots__ = ("cells", "index", "monotonic", "pairs", "stalled")

    def __init__(
        self, index: int, pairs: int, cells: RankCells, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.index = index
        self.pairs = pairs
        self.cells = cells
        self.monotonic = monotonic
        self.stalled: Callable[[int], None] = lambda process: None


class SharedLedger(Ledger[DeliveryT]):
    """A ledger that tells the other processes how much is in flight at each rank."""

    def __init__(self, rank_count: int, cells: RankCells) -> None:
        super().__init__(rank_count)
        self._cells = cells

    def open(self, request_id: str, rank: int, delivery: DeliveryT) -> InFlight[DeliveryT]:
        """See `Ledger.open`."""
        entry = super().open(request_id, rank, delivery)
        self._cells.set_in_flight(rank, self.in_flight(rank))
        return entry

    def end(self, entry: InFlight[DeliveryT]) -> bool:
        """See `Ledger.end`."""
        ended = super().end(entry)
        if ended:
            self._cells.set_in_flight(entry.rank, self.in_flight(entry.rank))
        return ended

    def anywhere(self) -> bool:
        """Whether any process has something in flight."""
        return self._cells.anything_in_flight()


class SharedRankSelector(RankSelector):
    """Chooses by what all processes have sent, and by the newest report that any of them heard.

    An engine reports its load to one process per step, and to the same one for long (vLLM 0.27.1, 0.32.0).
    """

    def __init__(self, rank_count: int, cells: RankCells, monotonic: Callable[[], float]) -> None:
        super().__init__(rank_count, cells.in_flight)
        self._cells = cells
        self._monotonic = monotonic

    def report(self, rank: int, load: EngineLoad) -> None:
        """See `RankSelector.report`."""
        self._cells.report(rank, load, self._monotonic())

    def idle(self, rank: int) -> None:
        """See `RankSelector.idle`: once nobody has anything at the rank."""
        if not self._cells.in_flight(rank):
            self._cells.report(rank, EngineLoad(kv_usage=self._cells.load(rank).kv_usage), self._monotonic())

    def forget(self, rank: int) -> None:
        """See `RankSelector.forget`."""
        self._cells.report(rank, EngineLoad(), self._monotonic())

    def load(self, rank: int) -> EngineLoad:
        """See `RankSelector.load`."""
        return self._cells.load(rank)


class SharedSilenceClock(SilenceClock):
    """An engine that talks to another process is not silent: what is owed here may wait behind that one's work."""

    def __init__(
        self, limit_s: float, cells: RankCells, now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        super().__init__(limit_s)
        self._cells = cells
        self._now = now
        self._monotonic = monotonic

    def heard(self, now: float) -> None:
        """See `SilenceClock.heard`."""
        super().heard(now)
        self._cells.heard(self._monotonic())

    def _look(self) -> None:
        if self._since is not None:
            # Each process's loop has a clock of its own; how long ago something was is the same for all.
            self._since = max(self._since, self._now() - (self._monotonic() - self._cells.heard_at))

    def silent_s(self, now: float) -> float:
        """See `SilenceClock.silent_s`."""
        self._look()
        return super().silent_s(now)

    def deadline(self) -> float | None:
        """See `SilenceClock.deadline`; it may move on later without a word."""
        self._look()
        return super().deadline()
