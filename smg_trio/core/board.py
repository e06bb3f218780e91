"""Counts that the processes of one gateway share: a table of numbers in memory that all of them have mapped. Pure.

Every cell has one writer, so there are no locks: a process counts in cells of its own, and who wants to know how many
there are sums those of all. What an engine reported may be written by any process that heard it; a report that is read
while it is written is as good as the one before or after.

```
processes × {pid, heartbeat, accepting, connections, answers, waiting}
slots × {waiting, running, kv_usage, reported_at, heard_at; processes × in flight; processes × leases}
```
A worker has one slot per rank, one after the other; its leases are counted in the first one. Times are seconds of the
system's monotonic clock (`time.monotonic`), which is the same in every process. All cells are 64-bit floats.
"""

from __future__ import annotations

from typing import Final

from smg_trio.core.engines import EngineLoad

MAX_SLOTS: Final = 2048
"""Ranks of all workers together."""

_CELL_BYTES: Final = 8
_PROCESS_CELLS: Final = 8
_LOAD_CELLS: Final = 8
_PID, _HEARTBEAT, _ACCEPTING, _CONNECTIONS, _ANSWERS, _WAITING = range(6)
_LOAD_WAITING, _LOAD_RUNNING, _LOAD_KV, _REPORTED_AT, _HEARD_AT = range(5)

STALE_S: Final = 3.0
"""A process without a heartbeat for so long is not waited for: it is stopped, or too busy to accept."""


def board_bytes(processes: int, slots: int = MAX_SLOTS) -> int:
    """How much memory a board takes."""
    return _CELL_BYTES * (processes * _PROCESS_CELLS + slots * _slot_cells(processes))


def _slot_cells(processes: int) -> int:
    return _LOAD_CELLS + 2 * processes


class Board:
    """The table. Process 0 is the keeper; 1 and up are the fronts.

    Args:
        memory: `board_bytes` of it, zeroed when it is new; mapped by every process.
        processes: how many processes there are, the keeper included.
    """

    def __init__(self, memory: memoryview, processes: int, slots: int = MAX_SLOTS) -> None:
        self.cells: memoryview[float] = memory.cast("d")
        self.processes = processes
        self.slots = slots
        self._slot_cells = _slot_cells(processes)
        self._first_slot = processes * _PROCESS_CELLS

    def process(self, index: int) -> ProcessCells:
        """What one process says of itself."""
        return ProcessCells(self.cells, index * _PROCESS_CELLS)

    def ranks(self, first_slot: int, count: int, process: int) -> RankCells:
        """The ranks of one worker, as counted by `process`. Raises ValueError beyond the board."""
        if not 0 <= first_slot <= first_slot + count <= self.slots:
            raise ValueError(f"slots {first_slot}..{first_slot + count} are not on the board")
        return RankCells(
            self.cells,
            self._first_slot + first_slot * self._slot_cells,
            self._slot_cells,
            count,
            self.processes,
            process,
        )

    def clear_process(self, index: int) -> None:
        """The process has ended: nothing that it counted is there any more. Called by the keeper."""
        start = index * _PROCESS_CELLS
        for cell in range(start, start + _PROCESS_CELLS):
            self.cells[cell] = 0.0
        for slot in range(self.slots):
            counts = self._first_slot + slot * self._slot_cells + _LOAD_CELLS + index
            self.cells[counts] = self.cells[counts + self.processes] = 0.0

    def clear_slots(self, first_slot: int, count: int) -> None:
        """The worker is gone, or new: nothing is known of its ranks."""
        start = self._first_slot + first_slot * self._slot_cells
        for cell in range(start, start + count * self._slot_cells):
            self.cells[cell] = 0.0

    def answers(self) -> int:
        """Answers that hold an admission slot, in all processes."""
        return self._sum(_ANSWERS)

    def waiting(self) -> int:
        """Requests that wait for one, in all processes."""
        return self._sum(_WAITING)

    def _sum(self, cell: int) -> int:
        return int(sum(self.cells[cell : self.processes * _PROCESS_CELLS : _PROCESS_CELLS]))

    def fewest_connections(self, now: float) -> int:
        """The fewest connections that a process which accepts any has open; 0 if none accepts."""
        fewest: float | None = None
        for index in range(1, self.processes):
            one = self.process(index)
            if one.accepting and now - one.heartbeat < STALE_S:
                fewest = one.connections if fewest is None else min(fewest, one.connections)
        return int(fewest or 0)


class ProcessCells:
    """One process's row. Its attributes are the cells themselves: assign to them to tell the others.

    Attributes:
        heartbeat: when it last showed that its event loop runs.
        accepting: whether it takes connections.
        connections: how many it has open.
        answers, waiting: its part of `Board.answers` and `Board.waiting`.
    """

    __slots__ = ("_cells", "_start")

    def __init__(self, cells: memoryview[float], start: int) -> None:
        self._cells = cells
        self._start = start

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return int(self._cells[self._start + _PID])

    @pid.setter
    def pid(self, value: int) -> None:
        self._cells[self._start + _PID] = float(value)

    @property
    def heartbeat(self) -> float:
        """See the class."""
        return float(self._cells[self._start + _HEARTBEAT])

    @heartbeat.setter
    def heartbeat(self, value: float) -> None:
        self._cells[self._start + _HEARTBEAT] = value

    @property
    def accepting(self) -> bool:
        """See the class."""
        return bool(self._cells[self._start + _ACCEPTING])

    @accepting.setter
    def accepting(self, value: bool) -> None:
        self._cells[self._start + _ACCEPTING] = float(value)

    @property
    def connections(self) -> int:
        """See the class."""
        return int(self._cells[self._start + _CONNECTIONS])

    @connections.setter
    def connections(self, value: int) -> None:
        self._cells[self._start + _CONNECTIONS] = float(value)

    @property
    def answers(self) -> int:
        """See the class."""
        return int(self._cells[self._start + _ANSWERS])

    @answers.setter
    def answers(self, value: int) -> None:
        self._cells[self._start + _ANSWERS] = float(value)

    @property
    def waiting(self) -> int:
        """See the class."""
        return int(self._cells[self._start + _WAITING])

    @waiting.setter
    def waiting(self, value: int) -> None:
        self._cells[self._start + _WAITING] = float(value)


class RankCells:
    """The ranks of one worker: what all processes know of them, and the cells in which one process counts."""

    __slots__ = ("_cells", "_count", "_process", "_processes", "_start", "_step")

    def __init__(
        self, cells: memoryview[float], start: int, step: int, count: int, processes: int, process: int
    ) -> None:
        self._cells = cells
        self._start = start
        self._step = step
        self._count = count
        self._processes = processes
        self._process = process

    def set_in_flight(self, rank: int, count: int) -> None:
        """So many requests of this process are at the rank."""
        self._cells[self._start + rank * self._step + _LOAD_CELLS + self._process] = float(count)

    def in_flight(self, rank: int) -> int:
        """Requests at the rank, of all processes."""
        start = self._start + rank * self._step + _LOAD_CELLS
        return int(sum(self._cells[start : start + self._processes]))

    def anything_in_flight(self) -> bool:
        """Whether any process has a request at any rank."""
        return any(self.in_flight(rank) for rank in range(self._count))

    def set_leases(self, count: int) -> None:
        """So many requests of this process are meant for the worker."""
        self._cells[self._start + _LOAD_CELLS + self._processes + self._process] = float(count)

    def leases(self) -> int:
        """Requests meant for the worker, of all processes."""
        start = self._start + _LOAD_CELLS + self._processes
        return int(sum(self._cells[start : start + self._processes]))

    def report(self, rank: int, load: EngineLoad, now: float) -> None:
        """What the rank's engine said of its load, in place of what it said before."""
        start = self._start + rank * self._step
        self._cells[start + _LOAD_WAITING] = float(load.waiting)
        self._cells[start + _LOAD_RUNNING] = float(load.running)
        self._cells[start + _LOAD_KV] = load.kv_usage
        self._cells[start + _REPORTED_AT] = now

    def load(self, rank: int) -> EngineLoad:
        """The last report."""
        start = self._start + rank * self._step
        waiting, running, kv_usage = self._cells[start : start + 3]
        return EngineLoad(int(running), int(waiting), kv_usage)

    def heard(self, now: float) -> None:
        """One of the worker's engines has said something."""
        self._cells[self._start + _HEARD_AT] = now

    @property
    def heard_at(self) -> float:
        """When one of the engines last said something to any process; 0.0 if none ever has."""
        return float(self._cells[self._start + _HEARD_AT])


class SlotBook:
    """Which slots of a board are whose; kept by the keeper alone."""

    def __init__(self, slots: int = MAX_SLOTS) -> None:
        self._slots = slots
        self._taken: dict[str, tuple[int, int]] = {}

    def take(self, worker_id: str, count: int) -> int | None:
        """The first of `count` slots in a row for a worker, which may have them already; None if there are none."""
        before = self._taken.get(worker_id)
        if before is not None and before[1] == count:
            return before[0]
        self._taken.pop(worker_id, None)
        start = 0
        for first, size in sorted(self._taken.values()):
            if first - start >= count:
                break
            start = first + size
        if start + count > self._slots:
            return None
        self._taken[worker_id] = (start, count)
        return start

    def give_back(self, worker_id: str) -> tuple[int, int] | None:
        """The worker is gone: its first slot and how many it had."""
        return self._taken.pop(worker_id, None)
