from __future__ import annotations

import trio
from trio.testing import MockClock

from smg_trio.gateway.tasks.deadlines import DeadlineQueue


async def test_each_deadline_passes_in_its_turn_and_cancelled_ones_never(autojump_clock: MockClock) -> None:
    queue = DeadlineQueue(10)
    passed: list[tuple[str, float]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        await trio.sleep(5)
        queue.start(lambda: passed.append(("a", trio.current_time())))
        cancelled = queue.start(lambda: passed.append(("b", trio.current_time())))
        await trio.sleep(3)
        queue.start(lambda: passed.append(("c", trio.current_time())))
        cancelled.cancel()
        cancelled.cancel()
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert passed == [("a", 15.0), ("c", 18.0)]


async def test_an_ended_answer_is_forgotten_at_once(autojump_clock: MockClock) -> None:
    queue = DeadlineQueue(1800)
    queue.start(lambda: None)
    for _ in range(100):
        queue.start(lambda: None).cancel()
    assert len(queue) == 1
