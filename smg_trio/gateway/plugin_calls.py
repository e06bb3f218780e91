"""Calls of a plug-in's functions that may wait: limited in time, and watched for what holds the event loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from smg_trio.core.plugin_calls import PluginCalls


class PluginFailed(Exception):
    """A call raised, or was late; `error` says which."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def call_plugin(calls: PluginCalls, limit_s: float, function: Callable[..., Any], *arguments: object) -> Any:
    """What a function of a plug-in returns, awaited if it can be.

    Raises PluginFailed if it raises, or takes longer than `limit_s`; then what it was doing is cancelled.
    """
    with trio.move_on_after(limit_s) as scope:
        try:
            began = calls.clock()
            try:
                result = function(*arguments)
            finally:
                calls.took(calls.clock() - began)
            if inspect.isawaitable(result):
                result = await _stepped(calls, result)
        except Exception as error:
            raise PluginFailed(error) from error
        return result
    assert scope.cancelled_caught, "nothing else leaves the block without a result"
    raise PluginFailed(TimeoutError(f"no answer within {limit_s:g} s"))


@coroutine
def _stepped(calls: PluginCalls, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """Await something, with each of its steps between two waits timed."""
    steps = awaitable.__await__()
    step: Callable[[], Any] = lambda: next(steps)  # noqa: E731
    while True:
        began = calls.clock()
        try:
            trap = step()
        except StopIteration as end:
            return end.value
        finally:
            calls.took(calls.clock() - began)
        try:
            sent = yield trap
        except BaseException as error:  # noqa: BLE001 - cancellation too: it is the plug-in's to clean up
            step = _thrower(steps, error)
        else:
            step = _sender(steps, sent)


def _sender(steps: Generator[Any, Any, Any], value: object) -> Callable[[], Any]:
    return lambda: steps.send(value)


def _thrower(steps: Generator[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)
