"""An exception in one of the gateway's own tasks is logged and ends that task's work at most, never the gateway."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio_websocket import open_websocket_url

from smg_trio.core.errors import Conflict
from smg_trio.core.workers import PendingWorker, WorkerSpec
from smg_trio.gateway.tasks.keep_running import keep_running

from .harness import HELLO, PATIENCE_S, Bench, open_gateway

ENDS = ("response.completed", "error")


class Broken(Exception):
    """What none of these tasks expects."""


def fail(*_: object, **__: object) -> Any:
    raise Broken


class BrokenAnswer:
    """An answer in flight that breaks whatever looks at it."""

    def __getattr__(self, name: str) -> Any:
        raise Broken(name)


@contextmanager
def in_background(bench: Bench) -> Iterator[None]:
    async def work() -> None:
        fail()

    bench.gateway.background.start("broken", work)
    yield


@contextmanager
def at_a_deadline(bench: Bench) -> Iterator[None]:
    bench.gateway.deadlines._timeout_s = 0.0
    bench.gateway.deadlines.start(fail)
    bench.gateway.deadlines._timeout_s = PATIENCE_S
    yield


@contextmanager
def at_a_keep_alive(bench: Bench) -> Iterator[None]:
    bench.gateway.keep_alives._timeout_s = 0.0
    bench.gateway.keep_alives.start(fail)
    bench.gateway.keep_alives._timeout_s = PATIENCE_S
    yield


@contextmanager
def in_the_live_feed(bench: Bench) -> Iterator[None]:
    broken: Any = BrokenAnswer()
    bench.gateway.in_flight[broken] = None
    with bench.feed.watch():
        yield
    del bench.gateway.in_flight[broken]


@contextmanager
def at_the_loop_watch(bench: Bench) -> Iterator[None]:
    bench.gateway.metrics._lag = BrokenAnswer()  # type: ignore[assignment]
    yield


@contextmanager
def in_a_worker_added_in_the_background(bench: Bench) -> Iterator[None]:
    async def make_spec() -> WorkerSpec:
        raise Broken

    application = PendingWorker(worker_id="w", url="ipc:///nowhere/w", model_id="x", runtime_type="vllm")
    bench.gateway.registry.apply(application, make_spec)
    yield


@contextmanager
def at_a_models_end(bench: Bench) -> Iterator[None]:
    async def make_spec() -> WorkerSpec:
        raise Conflict("taken")

    registry = bench.gateway.registry
    registry.model_unused, kept = fail, registry.model_unused
    registry.apply(PendingWorker(worker_id="v", url="ipc:///x/v", model_id="y", runtime_type="vllm"), make_spec)
    yield
    registry.model_unused = kept


@contextmanager
def in_watching_a_worker(bench: Bench) -> Iterator[None]:
    entry: Any = bench.gateway.registry._entry(bench.worker.spec.worker_id)
    lifecycle, entry.lifecycle = entry.lifecycle, BrokenAnswer()
    # What is asked for once at the head of each turn must be there.
    entry.lifecycle.thresholds = lifecycle.thresholds
    bench.worker._note_change()
    yield
    entry.lifecycle = lifecycle


@contextmanager
def in_an_engine_call(bench: Bench) -> Iterator[None]:
    bench.nursery.start_soon(_call_engine, bench)
    yield


async def _call_engine(bench: Bench) -> None:
    with pytest.raises(Exception, match="could not be sent"):
        await bench.worker.call_utility(0, "sleep", (object(),))


class ExceptionLogged(logging.Handler):
    """Notices a log record that carries an exception."""

    def __init__(self) -> None:
        super().__init__()
        self.event = trio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.event.set()


PLACES: list[Callable[[Bench], Any]] = [
    # Before there is a request: both queues watch their oldest entry first.
    at_a_deadline,
    at_a_keep_alive,
    in_background,
    in_the_live_feed,
    at_the_loop_watch,
    in_a_worker_added_in_the_background,
    at_a_models_end,
    in_watching_a_worker,
    in_an_engine_call,
]


async def test_an_exception_in_a_task_of_the_gateway_does_not_end_it(
    tmp_path: Path,
) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for break_it in PLACES:
            logged = ExceptionLogged()
            logging.getLogger("smg_trio").addHandler(logged)
            with break_it(bench), trio.fail_after(PATIENCE_S):
                await logged.event.wait()
            logging.getLogger("smg_trio").removeHandler(logged)
            assert (await bench.chat()).status_code == 200, break_it.__name__
            assert not bench.ended.is_set(), break_it.__name__


async def test_a_name_that_is_taken_is_refused_and_free_again_when_its_task_has_ended(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, connect=False) as bench:
        background, go = bench.gateway.background, trio.Event()
        background.start("one", go.wait)
        with pytest.raises(Conflict):
            background.start("one", trio.sleep_forever)
        go.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        background.start("one", trio.sleep_forever)
        assert background.cancel("one")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not background.cancel("one")


async def test_a_task_that_fails_is_started_again_a_second_later(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[float] = []

    async def run() -> None:
        began.append(trio.current_time())
        if len(began) < 3:
            raise Broken

    start: Awaitable[None] = keep_running("counting", run)
    await start
    assert [at - began[0] for at in began] == [0.0, 1.0, 2.0]
    assert [record.message for record in caplog.records] == ["counting failed; it is started again in 1 s"] * 2


async def test_a_turn_that_fails_for_no_known_reason_is_an_error_event_and_the_socket_stays(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        async with open_websocket_url(f"ws://127.0.0.1:{bench.port}/v1/responses") as socket:

            async def turn() -> dict[str, Any]:
                await socket.send_message(json.dumps({"type": "response.create", "input": "hi"}))
                with trio.fail_after(PATIENCE_S):
                    while (event := json.loads(await socket.get_message()))["type"] not in ENDS:
                        pass
                return dict(event)

            assert (await turn())["type"] == "response.completed"
            limits, bench.gateway.limits = bench.gateway.limits, cast(Any, BrokenAnswer())
            event = await turn()
            assert (event["status"], event["error"]["code"]) == (500, "internal_error")
            assert event["error"]["message"] == "internal error"
            bench.gateway.limits = limits
            assert (await turn())["type"] == "response.completed"
        await bench.wait_idle()
        assert (await bench.chat()).status_code == 200
