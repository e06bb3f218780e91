"""Calls of a plug-in's functions: limited in time, their faults wrapped, and each step between two waits timed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.gateway.plugin_calls import PluginFailed, call_plugin


class Clock:
    """Moves when a plug-in is busy."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def calls(clock: Clock) -> PluginCalls:
    return PluginCalls("hook", "x", "d 1.0", clock)


async def test_functions_may_be_plain_or_async(calls: PluginCalls) -> None:
    async def later(value: int) -> int:
        await trio.lowlevel.checkpoint()
        return value + 1

    class Called:
        async def __call__(self, value: int) -> int:
            return value + 2

    assert await call_plugin(calls, 1.0, lambda value: value, 1) == 1
    assert await call_plugin(calls, 1.0, later, 1) == 2
    assert await call_plugin(calls, 1.0, Called(), 1) == 3


async def test_what_it_raises_is_wrapped_and_what_is_sent_in_is_its_own(calls: PluginCalls) -> None:
    async def raises() -> None:
        try:
            await trio.lowlevel.checkpoint()
        finally:
            raise KeyError("x")

    for function in (raises, lambda: 1 / 0):
        with pytest.raises(PluginFailed) as failed:
            await call_plugin(calls, 1.0, function)
        assert isinstance(failed.value.error, (KeyError, ZeroDivisionError))

    async def handles() -> Any:
        with trio.move_on_after(0) as scope:
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
        return scope.cancelled_caught

    assert await call_plugin(calls, 1.0, handles) is True


async def test_what_takes_too_long_is_cancelled(calls: PluginCalls, autojump_clock: trio.testing.MockClock) -> None:
    ended = []

    async def slow() -> None:
        try:
            await trio.sleep(10)
        finally:
            ended.append(trio.current_time())

    began = trio.current_time()
    with pytest.raises(PluginFailed) as failed:
        await call_plugin(calls, 2.0, slow)
    assert isinstance(failed.value.error, TimeoutError)
    assert ended == [began + 2]


async def test_the_caller_s_cancellation_is_not_a_fault(calls: PluginCalls) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await call_plugin(calls, 2.0, trio.sleep_forever)
    assert scope.cancelled_caught


async def test_only_what_holds_the_loop_counts_as_a_stall(
    calls: PluginCalls, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def works(*seconds: float) -> None:
        for one in seconds:
            clock.now += one
            await trio.lowlevel.checkpoint()

    await call_plugin(calls, 9.0, works, 0.09, 0.09, 0.09)
    assert calls.stalls == 0
    with caplog.at_level(logging.WARNING):
        await call_plugin(calls, 9.0, works, 0.05, 0.25)
    assert (calls.stalls, round(calls.longest_s, 3)) == (1, 0.25)
    assert "hook x (d 1.0) held the event loop for 0.250 s" in caplog.text

    def blocks() -> None:
        clock.now += 0.5

    await call_plugin(calls, 9.0, blocks)
    assert calls.stalls == 2
