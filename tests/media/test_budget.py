"""Bytes in flight: what fits goes on, what does not waits or is refused, and all comes back however it ends."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from smg_trio.api.errors import error_response
from smg_trio.media.budget import PATIENCE_S, MediaBudget, MediaHold
from smg_trio.media.errors import MediaMemoryFull, MediaTooLarge


async def test_a_hold_gives_back_what_it_has() -> None:
    told: list[int] = []
    budget = MediaBudget(100, bytes_in_flight=told.append)
    with budget.hold() as hold:
        await hold.add(30, "m")
        await hold.add(0, "m")
        hold.give_back(10)
        hold.give_back(0)
        assert (hold.held, budget.used) == (20, 20)
        hold.give_back(1000)
        await hold.add(40, "m")
    assert (hold.held, budget.used) == (0, 0)
    assert told == [30, 20, 0, 40, 0]


async def test_more_than_the_whole_budget_is_a_413_at_once() -> None:
    budget = MediaBudget(100)
    with budget.hold() as hold:
        await hold.add(60, "m")
        with pytest.raises(
            MediaTooLarge, match=r"^messages\[2\]: the media of one request may hold 100 bytes"
        ) as raised:
            await hold.add(41, "messages[2]")
        assert (raised.value.status, raised.value.param) == (413, "messages[2]")
        await hold.add(40, "m")


async def test_no_room_in_time_is_a_429(autojump_clock: MockClock) -> None:
    waiting: list[int] = []
    budget = MediaBudget(100, waiting=waiting.append)
    with budget.hold() as first, budget.hold() as second:
        await first.add(90, "m")
        began = trio.current_time()
        with pytest.raises(MediaMemoryFull) as raised:
            await second.add(20, "m")
        assert trio.current_time() - began == PATIENCE_S
        assert (second.held, budget.used, budget.waiting) == (0, 90, 0)
    status, headers, _ = error_response(raised.value)
    assert status == 429
    assert ("retry-after", "1") in headers
    assert waiting == [1, 0]


async def test_who_waits_gets_what_comes_back_in_order(autojump_clock: MockClock) -> None:
    budget = MediaBudget(100)
    order: list[str] = []

    async def use(name: str, size: int) -> None:
        with budget.hold() as hold:
            await hold.add(size, name)
            order.append(name)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for name, size in (("a", 50), ("large", 60), ("small", 10), ("b", 50)):
            nursery.start_soon(use, name, size)
            await wait_all_tasks_blocked()
    # The large one is not overtaken by the small one for ever.
    assert order == ["a", "large", "small", "b"]
    assert budget.used == 0


async def test_requests_that_grow_do_not_wait_for_each_other_for_ever(autojump_clock: MockClock) -> None:
    """Each has a file of 10 and needs 45 for its pixels: were all files let in, nobody would find room for pixels."""
    budget = MediaBudget(100)
    done = 0

    async def use() -> None:
        nonlocal done
        with budget.hold() as hold:
            await hold.add(10, "m")
            async with pixels:
                await hold.add(45, "m")
                await trio.sleep(0.1)
            done += 1

    pixels = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(use)
    assert done == 30
    assert budget.used == 0


async def test_who_grows_goes_first_and_is_not_overtaken(mock_clock: MockClock) -> None:
    budget = MediaBudget(100)
    order: list[str] = []

    async def add(hold: MediaHold, size: int, name: str) -> None:
        await hold.add(size, name)
        order.append(name)

    with budget.hold() as most, budget.hold() as growing, budget.hold() as new, budget.hold() as late:
        await most.add(30, "m")
        await growing.add(10, "m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, growing, 80, "growing")
            await wait_all_tasks_blocked()
            # Both would fit now, but then what has begun would wait the longer.
            nursery.start_soon(add, new, 5, "new")
            await wait_all_tasks_blocked()
            nursery.start_soon(add, most, 5, "growing too")
            await wait_all_tasks_blocked()
            assert (order, budget.waiting) == ([], 3)
            most.give_back(10)
            await wait_all_tasks_blocked()
            assert (order, budget.waiting) == ([], 3)
            most.give_back(15)
            await wait_all_tasks_blocked()
            assert (sorted(order), budget.waiting) == (["growing", "growing too"], 1)
            growing.give_back(80)
            await wait_all_tasks_blocked()
            assert (order[2:], budget.waiting) == (["new"], 0)
        await late.add(5, "late")


async def test_one_that_is_cancelled_leaves_nothing_behind(mock_clock: MockClock) -> None:
    budget = MediaBudget(100)

    async def use(hold: MediaHold, size: int) -> None:
        with hold:
            await hold.add(size, "m")
            await trio.sleep_forever()

    with budget.hold() as first:
        await first.add(90, "m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, budget.hold(), 50)
            await wait_all_tasks_blocked()
            nursery.start_soon(use, budget.hold(), 10)
            await wait_all_tasks_blocked()
            assert (budget.used, budget.waiting) == (90, 2)
            nursery.cancel_scope.cancel()
        assert (budget.used, budget.waiting) == (90, 0)


async def test_room_that_comes_in_the_moment_of_cancellation_is_not_lost(mock_clock: MockClock) -> None:
    budget = MediaBudget(100)
    with budget.hold() as first, budget.hold() as second:
        await first.add(90, "m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.add, 50, "m")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            first.give_back(90)
        assert second.held == budget.used
        with budget.hold() as third:
            await third.add(100 - budget.used, "m")


async def test_one_that_gives_up_lets_the_next_in(mock_clock: MockClock) -> None:
    budget = MediaBudget(100)
    with budget.hold() as first, budget.hold() as second, budget.hold() as third:
        await first.add(40, "m")
        scope = trio.CancelScope()

        async def impatient() -> None:
            with scope:
                await second.add(80, "m")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(impatient)
            await wait_all_tasks_blocked()
            nursery.start_soon(third.add, 5, "m")
            await wait_all_tasks_blocked()
            assert (third.held, budget.waiting) == (0, 2)
            scope.cancel()
        assert (second.held, third.held) == (0, 5)


Request = tuple[float, list[tuple[int, float]], float | None]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 8),  # when it comes
            st.lists(st.tuples(st.integers(0, 120), st.floats(0, 4)), max_size=4),  # what it adds, and then does
            st.none() | st.floats(0, 8),  # when it is cancelled
        ),
        max_size=8,
    )
)
def test_whatever_happens_the_sum_is_right(requests: list[Request]) -> None:
    trio.run(run_requests, requests, clock=MockClock(autojump_threshold=0))


async def run_requests(requests: list[Request]) -> None:
    used = 0

    def changed(now: int) -> None:
        nonlocal used
        used = now
        assert 0 <= now <= 100

    budget = MediaBudget(100, bytes_in_flight=changed)
    holds: list[MediaHold] = []

    async def use(begins: float, steps: list[tuple[int, float]], patience: float | None) -> None:
        await trio.sleep(begins)
        with trio.move_on_after(float("inf") if patience is None else patience), budget.hold() as hold:
            holds.append(hold)
            for size, lasts in steps:
                before = hold.held
                try:
                    await hold.add(size, "m")
                except (MediaMemoryFull, MediaTooLarge):
                    assert hold.held == before
                    return
                assert hold.held == before + size
                assert sum(hold.held for hold in holds) == budget.used == used
                await trio.sleep(lasts)

    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(use, *request)
    assert budget.used == used == budget.waiting == 0
