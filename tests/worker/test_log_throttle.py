from __future__ import annotations

from smg_trio.worker.log_throttle import MAX_REASON_CHARS, SHOWN, WHILE_S, LogThrottle


def test_the_first_of_a_while_are_told_and_the_others_counted() -> None:
    log = LogThrottle()
    lines = [line for _ in range(1000) for line in log.note("no", 5.0)]
    assert lines == ["no"] * SHOWN
    assert log.note("no", 5.0 + WHILE_S) == [f"{1000 - SHOWN} more messages were refused", "no"]
    assert log.note("no", 5.0 + 2 * WHILE_S) == ["no"]


def test_a_reason_is_cut() -> None:
    (line,) = LogThrottle().note("x" * 100_000, 0.0)
    assert len(line) == MAX_REASON_CHARS + 1
