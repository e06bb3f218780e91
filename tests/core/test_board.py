from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.board import STALE_S, Board, SlotBook, board_bytes
from smg_trio.core.engines import EngineLoad

PROCESSES, SLOTS = 4, 12


def fresh() -> Board:
    return Board(memoryview(bytearray(board_bytes(PROCESSES, SLOTS))), PROCESSES, SLOTS)


counts = st.integers(0, 2**40)
writes = st.tuples(st.sampled_from(["in_flight", "leases", "answers", "waiting", "load"]), st.integers(1, 3), counts)


@given(st.lists(writes, max_size=40))
def test_what_is_summed_is_what_each_process_wrote_last_and_cells_do_not_touch(written: list[Any]) -> None:
    board = fresh()
    last: dict[tuple[str, int], int] = {}
    neighbour = board.ranks(4, 2, 1)
    neighbour.set_in_flight(0, 7)
    neighbour.set_leases(5)
    for what, process, count in written:
        ranks, cells = board.ranks(1, 3, process), board.process(process)
        if what == "in_flight":
            ranks.set_in_flight(2, count)
        elif what == "leases":
            ranks.set_leases(count)
        elif what == "load":
            ranks.report(2, EngineLoad(count, count + 1, 0.25), 1.0)
        else:
            setattr(cells, what, count)
        last[what, process] = count
    seen = board.ranks(1, 3, 0)

    def total(name: str) -> int:
        return sum(count for (what, _), count in last.items() if what == name)

    assert seen.in_flight(2) == total("in_flight")
    assert (seen.in_flight(0), seen.in_flight(1)) == (0, 0)
    assert seen.anything_in_flight() == bool(total("in_flight"))
    assert seen.leases() == total("leases")
    assert (board.answers(), board.waiting()) == (total("answers"), total("waiting"))
    newest = [count for what, _, count in written if what == "load"]
    assert seen.load(2) == (EngineLoad(newest[-1], newest[-1] + 1, 0.25) if newest else EngineLoad())
    assert (neighbour.in_flight(0), neighbour.leases()) == (7, 5)


@given(st.lists(writes, max_size=40), st.integers(1, 3))
def test_a_dead_process_leaves_what_the_others_count(written: list[Any], dead: int) -> None:
    board, without = fresh(), fresh()
    for what, process, count in written:
        for one in (board, without):
            if what in ("in_flight", "leases") and (one is board or process != dead):
                getattr(one.ranks(0, 2, process), f"set_{what}")(*((1, count) if what == "in_flight" else (count,)))
            elif what in ("answers", "waiting") and (one is board or process != dead):
                setattr(one.process(process), what, count)
    board.clear_process(dead)
    assert bytes(board.cells.cast("B")) == bytes(without.cells.cast("B"))


def test_the_fewest_connections_are_those_of_a_process_that_accepts_and_lives() -> None:
    board, now = fresh(), 1000.0
    assert board.fewest_connections(now) == 0
    for index, connections in ((1, 5), (2, 3), (3, 1)):
        cells = board.process(index)
        cells.accepting, cells.connections, cells.heartbeat = True, connections, now
    assert board.fewest_connections(now) == 1
    board.process(3).heartbeat = now - STALE_S
    assert board.fewest_connections(now) == 3
    board.process(2).accepting = False
    assert board.fewest_connections(now) == 5


def test_ranks_beyond_the_board_are_refused() -> None:
    board = fresh()
    with pytest.raises(ValueError, match="not on the board"):
        board.ranks(SLOTS - 1, 2, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=40))
def test_workers_slots_never_overlap_and_are_refused_only_where_there_is_no_room(steps: list[Any]) -> None:
    book, held = SlotBook(SLOTS), dict[str, tuple[int, int]]()
    for number, size, give_back in steps:
        worker = f"w{number}"
        if give_back:
            assert book.give_back(worker) == held.pop(worker, None)
            continue
        held.pop(worker, None) if held.get(worker, (0, size))[1] != size else None
        first = book.take(worker, size)
        taken = {slot for start, length in held.values() for slot in range(start, start + length)}
        if first is None:
            free = [slot not in taken for slot in range(SLOTS)]
            assert not any(all(free[start : start + size]) for start in range(SLOTS - size + 1))
            continue
        if worker not in held:
            assert taken.isdisjoint(range(first, first + size))
        assert first + size <= SLOTS
        held[worker] = first, size
