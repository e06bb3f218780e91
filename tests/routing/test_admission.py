"""Overload is answered, not stored."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from smg_trio.api.errors import error_headers
from smg_trio.routing.admission import (
    AdmissionQueue,
    AdmissionQueueFull,
    AdmissionQueueTimeout,
    Permit,
    admission_limit,
)


def test_the_limit_fits_the_host_unless_it_is_given():
    assert [admission_limit(-1, cpus) for cpus in (1, 4, 64)] == [4096, 4096, 65536]
    assert admission_limit(0, 8) is None
    assert admission_limit(7, 8) == 7


async def test_of_a_burst_as_many_are_served_as_places_and_queue_hold_and_the_rest_is_refused_at_once(autojump_clock):
    queue = AdmissionQueue(limit=8, queue_size=8)
    served, refused = 0, []

    async def one_request() -> None:
        nonlocal served
        try:
            with await queue.admit():
                await trio.sleep(5)
                served += 1
        except AdmissionQueueFull as error:
            refused.append((trio.current_time(), error))

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(one_request)
    assert (served, len(refused)) == (16, 84)
    assert {time for time, _ in refused} == {start}
    error = refused[0][1]
    assert (error.code, error.status) == ("admission_queue_full", 429)
    assert error.message == "admission queue is at capacity"
    assert ("retry-after", "1") in error_headers(error)
    assert queue.statistics().in_flight == queue.statistics().waiting == 0
    assert (queue.statistics().admitted, queue.statistics().refused_full) == (16, 84)


async def test_places_go_to_those_who_wait_in_the_order_they_came():
    queue = AdmissionQueue(limit=1, queue_size=10)
    order = []

    async def one_request(number: int) -> None:
        with await queue.admit():
            order.append(number)

    permit = await queue.admit()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(one_request, number)
            await wait_all_tasks_blocked()
        permit.close()
    assert order == [0, 1, 2, 3, 4]


async def test_whoever_waits_too_long_is_told_so_and_leaves_no_place_behind(autojump_clock):
    queue = AdmissionQueue(limit=1, queue_size=1, timeout_s=60)
    with await queue.admit():
        start = trio.current_time()
        with pytest.raises(AdmissionQueueTimeout, match="timed out waiting for an admission slot") as caught:
            await queue.admit()
        assert trio.current_time() - start == 60
        assert (caught.value.code, caught.value.status) == ("admission_queue_timeout", 503)
        assert queue.statistics().waiting == 0
    assert queue.statistics().in_flight == 0
    assert queue.statistics().refused_timeout == 1


async def test_cancelled_waiters_free_their_places_in_the_queue():
    queue = AdmissionQueue(limit=1, queue_size=4)
    permit = await queue.admit()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(queue.admit)
        await wait_all_tasks_blocked()
        with pytest.raises(AdmissionQueueFull):
            await queue.admit()
        nursery.cancel_scope.cancel()
    assert queue.statistics().waiting == 0
    permit.close()
    assert queue.statistics().in_flight == 0


async def test_a_place_given_to_a_task_that_is_cancelled_at_that_moment_goes_to_the_next():
    queue = AdmissionQueue(limit=1, queue_size=4)
    permit = await queue.admit()
    got: list[Permit] = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def impatient() -> None:
            with scope:
                got.append(await queue.admit())

        async def patient() -> None:
            got.append(await queue.admit())

        nursery.start_soon(impatient)
        await wait_all_tasks_blocked()
        nursery.start_soon(patient)
        await wait_all_tasks_blocked()
        scope.cancel()
        permit.close()
    assert len(got) == 1
    got[0].close()
    assert queue.statistics().in_flight == 0


async def test_a_permit_is_given_back_once_however_often_it_is_closed():
    queue = AdmissionQueue(limit=2, queue_size=0)
    first, second = await queue.admit(), await queue.admit()
    first.close()
    first.close()
    assert queue.statistics().in_flight == 1
    second.close()


async def test_without_a_limit_all_are_admitted_and_counted():
    queue = AdmissionQueue(limit=None, queue_size=0)
    permits = [await queue.admit() for _ in range(1000)]
    assert queue.statistics().in_flight == 1000
    for permit in permits:
        permit.close()
    assert queue.statistics().in_flight == 0


async def test_newcomers_do_not_overtake_those_who_wait():
    queue = AdmissionQueue(limit=1, queue_size=1)
    permit = await queue.admit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.admit)
        await wait_all_tasks_blocked()
        permit.close()
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(trio.Cancelled):
                await queue.admit()
    assert queue.statistics().in_flight == 1


# ---- a rate --------------------------------------------------------------------------------------------------


async def begun_at(queue: AdmissionQueue, count: int) -> list[float]:
    """When each of `count` requests that ask now is begun, in seconds from now."""
    began, times = trio.current_time(), []

    async def ask() -> None:
        with await queue.admit():
            times.append(round(trio.current_time() - began, 6))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
    return times


async def test_at_a_rate_requests_beyond_the_burst_are_begun_one_by_one(autojump_clock):
    queue = AdmissionQueue(limit=3, rate_per_s=2)
    assert await begun_at(queue, 7) == [0, 0, 0, 0.5, 1, 1.5, 2]
    await trio.sleep(60)
    assert await begun_at(queue, 4) == [0, 0, 0, 0.5]


async def test_without_a_limit_the_burst_is_a_second_s_worth(autojump_clock):
    assert await begun_at(AdmissionQueue(limit=None, rate_per_s=2), 3) == [0, 0, 0.5]
    assert await begun_at(AdmissionQueue(limit=None, rate_per_s=0.5), 2) == [0, 2]


async def test_who_would_wait_too_long_for_a_turn_is_refused_at_once(autojump_clock):
    queue = AdmissionQueue(limit=1, queue_size=10, timeout_s=3, rate_per_s=0.5)
    (await queue.admit()).close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.admit)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AdmissionQueueTimeout) as caught:
            await queue.admit()
        assert caught.value.retry_after_s == pytest.approx(1)
        assert queue.statistics().waiting == 1
        nursery.cancel_scope.cancel()
    assert queue.statistics().waiting == 0
    assert queue.statistics().refused_timeout == 1


async def test_who_finds_the_queue_for_turns_full_is_refused_and_told_when_to_come_back(autojump_clock):
    queue = AdmissionQueue(limit=1, queue_size=1, rate_per_s=0.25)
    (await queue.admit()).close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.admit)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        with pytest.raises(AdmissionQueueFull) as caught:
            await queue.admit()
        assert caught.value.retry_after_s == pytest.approx(3)
        assert queue.statistics().refused_full == 1
    none = AdmissionQueue(limit=1, queue_size=0, rate_per_s=1)
    (await none.admit()).close()
    with pytest.raises(AdmissionQueueFull):
        await none.admit()


async def test_who_gives_up_waiting_for_a_turn_gives_it_back(autojump_clock):
    queue = AdmissionQueue(limit=1, rate_per_s=1)
    (await queue.admit()).close()
    with trio.move_on_after(0.5):
        await queue.admit()
    began = trio.current_time()
    (await queue.admit()).close()
    assert trio.current_time() - began == pytest.approx(0.5)
    assert queue.statistics().in_flight == 0
