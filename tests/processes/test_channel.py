from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from smg_trio.core.conversations import StoredResponse
from smg_trio.core.errors import GatewayFault, RateLimited
from smg_trio.core.workers import HealthOverrides, WorkerSpec
from smg_trio.gateway.security.key_limits import KeyMeters
from smg_trio.gateway.security.key_ring import KeyHolder, KeyLimits
from smg_trio.history.memory import MemoryHistory
from smg_trio.processes import keys
from smg_trio.processes.channel import Calls, Channel, Notices, PeerGone
from smg_trio.processes.history import RemoteHistory, history_calls
from smg_trio.processes.keys import KeyBook
from smg_trio.processes.values import settings_of_value, settings_value, spec_of_value, spec_value
from smg_trio.settings.settings import Settings


@asynccontextmanager
async def channels(calls: Calls, notices: Notices | None = None) -> AsyncIterator[tuple[Channel, Channel]]:
    """A channel from a front to a keeper that answers these calls, and the keeper's end."""
    one, other = socket.socketpair()
    front, keeper = Channel(one, {}, {}), Channel(other, notices or {}, calls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(front.run)
        nursery.start_soon(keeper.run)
        yield front, keeper
        nursery.cancel_scope.cancel()


async def test_calls_are_answered_whatever_their_order_and_size() -> None:
    async def echo(delay_s: float, value: Any) -> Any:
        await trio.sleep(delay_s)
        return value

    async with channels({"echo": echo}) as (front, _):
        answers: dict[int, Any] = {}

        async def ask(number: int) -> None:
            answers[number] = await front.call("echo", 0.01 * (number % 3), [number, "x" * number * 10_000])

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number)
        assert answers == {number: [number, "x" * number * 10_000] for number in range(20)}


async def test_errors_arrive_as_what_they_are() -> None:
    async def limited() -> None:
        raise RateLimited("too much", retry_after_s=3.5)

    async def broken() -> None:
        raise ZeroDivisionError

    async def wrong() -> object:
        return object()

    async with channels({"limited": limited, "broken": broken, "wrong": wrong}) as (front, _):
        with pytest.raises(RateLimited, match="too much") as caught:
            await front.call("limited")
        assert caught.value.retry_after_s == 3.5
        for name in ("broken", "wrong", "unknown"):
            with pytest.raises(GatewayFault, match="internal error"):
                await front.call(name)


async def test_the_end_of_either_process_ends_what_waits() -> None:
    async with channels({"never": trio.sleep_forever}) as (front, keeper):
        gone = trio.Event()

        async def ask() -> None:
            with pytest.raises(PeerGone):
                await front.call("never")
            gone.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await trio.aclose_forcefully(keeper._stream)
            await gone.wait()
        front.notify("lost")
        with pytest.raises(PeerGone):
            await front.call("never")


async def test_history_is_the_keepers() -> None:
    store = MemoryHistory()
    async with channels(history_calls(store)) as (front, _):
        remote = RemoteHistory(front)
        item = {"id": "i", "number": 10**40, "text": "\U0001f600"}
        response = StoredResponse(
            response_id="r", value={"id": "r", "status": "completed", "output": [item]}, input_items=[], owner="me"
        )
        await remote.put_response(response)
        assert await remote.get_response("r", "me") == response == await store.get_response("r", "me")
        assert await remote.get_response("r", "you") is None
        assert await remote.find_items(["i", "j"], "me") == {"i": item}
        assert await remote.has_response("r")
        assert await remote.delete_response("r", "me")
        assert not await remote.delete_response("r", "me")


async def test_key_limits_are_exact_over_fronts_and_a_dead_fronts_slots_are_free() -> None:
    meters = KeyMeters(trio.current_time)
    books = [KeyBook(meters), KeyBook(meters)]
    who = KeyHolder("alice", limits=KeyLimits(2, 60), identity="alice")

    def calls(book: KeyBook) -> Calls:
        return {"key_enter": book.enter, "key_headers": book.headers}

    def notices(book: KeyBook) -> Notices:
        return {"key_use": book.use, "key_close": book.close}

    async with (
        channels(calls(books[0]), notices(books[0])) as (first, _),
        channels(calls(books[1]), notices(books[1])) as (second, _),
    ):
        slots = [await keys.enter(first, who), await keys.enter(second, who)]
        for front in (first, second):
            with pytest.raises(RateLimited, match="concurrent requests: limit 2"):
                await keys.enter(front, who)
        slots[1].use(25)
        slots[1].close()
        assert dict(await keys.headers(second, who))["x-ratelimit-remaining-tokens"] == "35"
        with await keys.enter(first, who):
            books[0].close_all()
            assert meters.of(who).in_flight == 0


def test_settings_and_workers_are_the_same_on_the_other_side() -> None:
    settings = Settings(worker_urls=("ipc:///a", "ipc:///b"), api_key=("k",), port=1, processes="3")
    assert settings_of_value(settings_value(settings)) == settings
    spec = WorkerSpec(
        worker_id="w", url="ipc:///a", model_id="m", labels={"a": "b"}, api_key="s",
        health=HealthOverrides(drain_settle_secs=1.5),
    )  # fmt: skip
    assert spec_of_value(spec_value(spec)) == spec
