"""One observer for the callers, as many as are turned on behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from smg_trio.gateway.observability.observer import Observers, RequestObserver

EVENTS = [name for name, _ in inspect.getmembers(RequestObserver, inspect.isfunction) if not name.startswith("_")]


class Recorder(RequestObserver):
    """Notes what it hears, event and arguments."""

    def __init__(self, name: str, heard: list[tuple[str, str, tuple[Any, ...]]]) -> None:
        self.name = name
        self.heard = heard

    def __getattribute__(self, event: str) -> Any:
        if event not in EVENTS:
            return super().__getattribute__(event)
        return lambda *arguments: self.heard.append((self.name, event, arguments))


def arguments_of(event: Callable[..., None]) -> list[object]:
    return [object() for _ in inspect.signature(event).parameters]


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_reaches_every_member_once_in_order_and_as_it_was_told(event: str) -> None:
    heard: list[tuple[str, str, tuple[Any, ...]]] = []
    observers = Observers([Recorder("a", heard)])
    observers.add(Recorder("b", heard))
    arguments = arguments_of(getattr(observers, event))
    getattr(observers, event)(*arguments)
    assert heard == [("a", event, tuple(arguments)), ("b", event, tuple(arguments))]


@pytest.mark.parametrize("event", EVENTS)
def test_what_an_observer_does_not_care_for_it_may_hear_all_the_same(event: str) -> None:
    observer = RequestObserver()
    getattr(observer, event)(*arguments_of(getattr(observer, event)))
    none = Observers()
    getattr(none, event)(*arguments_of(getattr(none, event)))
