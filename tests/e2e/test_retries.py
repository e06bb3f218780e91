"""Another attempt where it helps and only there; workers that fail again and again, or are overloaded, are spared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.script import Script
from tests.waiting import until

from .harness import ENDLESS, HELLO, PATIENCE_S, SLOW, Bench, chat_body, error_of, events, join_chat, open_gateway

SOON = {"retry_initial_backoff_ms": 1.0}
HANG = "E[] fin=hang"
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def say_per_attempt(bench: Bench, *says: str) -> list[str]:
    """Have the engines together say the n-th of `says` to the n-th request, the last one ever after; request ids."""
    scripts = [bench.script(one) for one in says]
    seen: list[str] = []

    def choose(request: EngineRequest) -> Script:
        seen.append(request.request_id)
        return scripts[min(len(seen), len(scripts)) - 1](request)

    for engine in bench.engines:
        engine.choose_script = choose
    return seen


async def holder_of(bench: Bench, request_count: int) -> FakeEngine:
    """The engine that got the newest request, once there are so many in all."""
    await until(lambda: sum(len(engine.received) for engine in bench.engines) >= request_count)
    return next(engine for engine in bench.engines if engine.in_flight)


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels."""
    lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))


async def metrics(bench: Bench) -> str:
    return (await bench.http.get(bench.metrics_url)).text


@both
@pytest.mark.parametrize("goodbye", [False, True], ids=["killed", "sentinel"])
async def test_a_death_before_the_first_output_moves_the_request_to_another_worker(
    tmp_path: Path, stream: bool, goodbye: bool
) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, **SOON) as bench:
        seen = say_per_attempt(bench, HANG, HELLO)
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await bench.chat(stream=stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            engine = await holder_of(bench, 1)
            if goodbye:
                engine.die()
            else:
                bench.kill(engine)
        assert answers[0].status_code == 200
        if stream:
            assert join_chat(answers[0].text)["content"] == "Hello world"
        else:
            assert answers[0].json()["choices"][0]["message"]["content"] == "Hello world"
        assert len(seen) == len(set(seen)) == 2  # an engine would die of an id that it has seen
        assert [len(one.received) for one in bench.engines] == [1, 1]
        await bench.wait_idle()
        text = await metrics(bench)
        assert metric(text, "smg_worker_retries_total", worker_type="regular", endpoint="chat") == 1
        assert metric(text, "smg_worker_retry_backoff_seconds_count", attempt="1") == 1
        assert metric(text, "smg_worker_retries_exhausted_total") == 0
        assert metric(text, "smg_router_requests_total") == 1
        assert metric(text, "smg_router_request_errors_total") == 0
        assert metric(text, "smg_worker_cb_outcomes_total", outcome="failure") == 1
        assert metric(text, "smg_worker_cb_outcomes_total", outcome="success") == 1


async def test_many_requests_survive_the_death_of_one_of_two_workers_and_each_ends_once(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, workers=2, policy="round_robin", **SOON) as bench:
        victim, other = bench.engines
        victim.choose_script = bench.script(HANG)
        answers: list[httpx.Response] = []

        async def ask(stream: bool) -> None:
            answers.append(await bench.chat(stream=stream))

        async with trio.open_nursery() as nursery:
            for number in range(32):
                nursery.start_soon(ask, number % 2 == 0)
            with trio.fail_after(PATIENCE_S):
                await victim.wait_received(16)
                await other.wait_received(16)
            bench.kill(victim)
        assert len(answers) == 32
        for answer in answers:
            assert answer.status_code == 200
            if answer.headers["content-type"].startswith("text/event-stream"):
                assert join_chat(answer.text)["content"] == "Hello world"
        assert len(other.received) == 32
        assert not other.aborts
        await bench.wait_idle()


async def test_after_the_first_output_there_is_no_other_attempt(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, workers=2, engine=SLOW, **SOON) as bench:
        text = ""
        body = chat_body(stream=True)
        async with bench.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            killed = False
            async for piece in answer.aiter_text():
                text += piece
                if '"b"' in text and not killed:
                    killed = True
                    bench.kill(await holder_of(bench, 1))
        *_, failure, done = events(text)
        assert done == "[DONE]"
        assert failure["error"]["code"] == "engine_dead"
        assert text.count("[DONE]") == 1
        assert sorted(len(engine.received) for engine in bench.engines) == [0, 1]
        await bench.wait_idle()


@both
async def test_what_no_other_attempt_can_change_is_not_tried_again(tmp_path: Path, stream: bool) -> None:
    async with open_gateway(tmp_path, "E[] fin=error", workers=2, **SOON) as bench:
        error_of(await bench.chat(stream=stream), 500)
        error_of(await bench.chat(stream=stream, max_tokens=-1), 400)
        assert sum(len(engine.received) for engine in bench.engines) == 1
        text = await metrics(bench)
        assert metric(text, "smg_worker_retries_total") == 0
        assert metric(text, "smg_worker_retries_exhausted_total") == 0


@both
@pytest.mark.parametrize(
    ("settings", "own", "attempts"),
    [
        ({"disable_retries": True}, {}, 1),
        ({"retry_max_retries": 2}, {}, 2),
        ({}, {"disable_retry": True}, 1),
        ({"disable_retries": True}, {"disable_retry": False, "max_retries": 2, "initial_backoff_ms": 1}, 2),
    ],
    ids=["disabled", "two", "disabled-by-worker", "two-by-worker"],
)
async def test_attempts_end_where_the_settings_or_the_worker_s_own_say(
    tmp_path: Path, settings: dict[str, Any], own: dict[str, Any], attempts: int, stream: bool
) -> None:
    async with open_gateway(tmp_path, HELLO, workers=3, **(SOON | settings)) as bench:
        for worker in bench.gateway.registry.workers() if own else ():
            body = {"resilience": own}
            assert (await bench.http.patch(f"/workers/{worker.spec.worker_id}", json=body)).status_code == 202
        seen = say_per_attempt(bench, HANG)
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await bench.chat(stream=stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for number in range(attempts):
                engine = await holder_of(bench, number + 1)
                engine.die()
        assert error_of(answers[0], 503)["code"] == "engine_dead"
        assert len(seen) == attempts
        assert metric(await metrics(bench), "smg_worker_retries_exhausted_total") == (attempts > 1)
        await bench.wait_idle()


async def test_an_only_worker_that_dies_and_returns_in_time_gets_the_request_again(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, retry_initial_backoff_ms=300.0) as bench:
        say_per_attempt(bench, HANG, HELLO)
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await bench.chat())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            engine = await holder_of(bench, 1)
            engine.restart()
        assert answers[0].status_code == 200
        assert len(engine.received) == 2
        await bench.wait_idle()


# ---- breaker -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def guarded(tmp_path: Path, workers: int, **settings: Any) -> AsyncIterator[Bench]:
    chosen = {"cb_failure_threshold": 3, "cb_success_threshold": 1, "cb_timeout_duration_secs": 0.2} | settings
    async with open_gateway(
        tmp_path, "E[] fin=error", words=HELLO, workers=workers, policy="round_robin", **chosen
    ) as bench:
        yield bench


async def test_a_worker_that_fails_again_and_again_is_left_alone_and_tried_later(tmp_path: Path) -> None:
    async with guarded(tmp_path, 1) as bench:
        url = bench.urls[0]
        for _ in range(3):
            error_of(await bench.chat(), 500)
        error = error_of(await bench.chat(), 503)
        assert error["code"] == "no_available_workers"
        assert "circuit breaker open" in error["message"]
        assert len(bench.engine.received) == 3
        value = (await bench.http.get("/workers")).json()["workers"][0]
        assert (value["status"], value["status_reason"]) == ("ready", "circuit breaker open")
        text = await metrics(bench)
        assert metric(text, "smg_worker_cb_state", worker=url) == 1
        assert metric(text, "smg_worker_cb_transitions_total", worker=url, **{"from": "closed", "to": "open"}) == 1
        assert metric(text, "smg_worker_cb_outcomes_total", worker=url, outcome="failure") == 3
        # The trial fails: open again.
        with trio.fail_after(PATIENCE_S):
            while (await bench.chat()).status_code != 500:
                await trio.lowlevel.checkpoint()
        error_of(await bench.chat(), 503)
        assert len(bench.engine.received) == 4
        # The next one goes well: closed.
        bench.say(HELLO)
        with trio.fail_after(PATIENCE_S):
            while (await bench.chat()).status_code != 200:
                await trio.lowlevel.checkpoint()
        assert (await bench.chat()).status_code == 200
        text = await metrics(bench)
        assert metric(text, "smg_worker_cb_state", worker=url) == 0
        for before, after, count in [("closed", "open", 1), ("open", "half_open", 2), ("half_open", "open", 1),
                                     ("half_open", "closed", 1)]:  # fmt: skip
            found = metric(text, "smg_worker_cb_transitions_total", worker=url, **{"from": before, "to": after})
            assert found == count, (before, after)
        await bench.wait_idle()


async def test_an_open_breaker_sends_everybody_to_the_other_worker(tmp_path: Path) -> None:
    async with guarded(tmp_path, 2, cb_timeout_duration_secs=60.0) as bench:
        bad, good = bench.engines
        good.choose_script = bench.script(HELLO)
        statuses = [(await bench.chat()).status_code for _ in range(20)]
        assert statuses.count(500) == 3
        assert len(bad.received) == 3
        assert set(statuses[-12:]) == {200}
        assert len(good.received) == 17


async def test_the_client_s_faults_and_departures_open_no_breaker(tmp_path: Path) -> None:
    async with guarded(tmp_path, 1) as bench:
        bench.say(HELLO)
        for _ in range(5):
            error_of(await bench.chat(max_tokens=10**9), 400)
        bench.say(HANG)
        for number in range(5):
            with trio.move_on_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bench.chat)
                    await bench.engine.wait_received(number + 1)
                    nursery.cancel_scope.cancel()
        await bench.wait_idle()
        bench.say(HELLO)
        assert (await bench.chat()).status_code == 200


async def test_a_disabled_breaker_lets_every_request_through(tmp_path: Path) -> None:
    async with guarded(tmp_path, 1, disable_circuit_breaker=True) as bench:
        for _ in range(12):
            error_of(await bench.chat(), 500)
        assert len(bench.engine.received) == 12
        assert "smg_worker_cb_state{" not in await metrics(bench)


async def test_a_new_engine_starts_with_a_clean_record(tmp_path: Path) -> None:
    async with guarded(tmp_path, 1, cb_timeout_duration_secs=60.0) as bench:
        for _ in range(3):
            error_of(await bench.chat(), 500)
        error_of(await bench.chat(), 503)
        bench.kill(bench.engine)
        bench.start_engine(HELLO)
        with trio.fail_after(PATIENCE_S):
            while (await bench.chat()).status_code != 200:
                await trio.lowlevel.checkpoint()


# ---- overload ----------------------------------------------------------------------------------------------


async def crowd(bench: Bench, count: int, nursery: trio.Nursery) -> None:
    """Have `count` streams at the first worker's engine, of which one runs, until its reports say so."""
    for _ in range(count):
        nursery.start_soon(bench.chat)
    worker = bench.worker
    await until(lambda: sum(load.waiting for load in worker.busy_loads()) >= count - 1)


@pytest.mark.parametrize("protected", [True, False])
async def test_requests_go_around_a_worker_whose_engine_has_a_queue(tmp_path: Path, protected: bool) -> None:
    async with open_gateway(
        tmp_path, ENDLESS, words=HELLO, workers=2, connect=False, policy="round_robin",
        worker_overload_waiting_requests=3, disable_worker_overload_protection=not protected,
    ) as bench:  # fmt: skip
        busy = bench.start_engine(ENDLESS, max_num_seqs=1, **SLOW)
        await bench.wait_ready(0)
        async with trio.open_nursery() as nursery:
            await crowd(bench, 4, nursery)
            idle = bench.start_engine(HELLO, worker=1)
            await bench.wait_ready(1)
            assert metric(await metrics(bench), "smg_workers_overloaded", model="m") == protected
            for _ in range(6):
                nursery.start_soon(bench.chat)
            await until(lambda: len(busy.received) + len(idle.received) >= 10)
            assert len(idle.received) == (6 if protected else 3)
            nursery.cancel_scope.cancel()
        await bench.wait_idle()


async def test_if_all_are_overloaded_a_request_is_taken_or_refused_as_the_operator_says(tmp_path: Path) -> None:
    for number, shed in enumerate((False, True)):
        (tmp_path / str(number)).mkdir()
        async with open_gateway(
            tmp_path / str(number), ENDLESS, engine={"max_num_seqs": 1, **SLOW}, worker_overload_waiting_requests=2,
            worker_overload_shed=shed,
        ) as bench:  # fmt: skip
            async with trio.open_nursery() as nursery:
                await crowd(bench, 3, nursery)
                if shed:
                    answer = await bench.chat()
                    assert error_of(answer, 503)["code"] == "worker_overload_protection_shed"
                    assert int(answer.headers["retry-after"]) >= 1
                    assert metric(await metrics(bench), "smg_worker_overload_shed_total") == 1
                else:
                    nursery.start_soon(bench.chat)
                    with trio.fail_after(PATIENCE_S):
                        await bench.engine.wait_received(4)
                nursery.cancel_scope.cancel()
            await bench.wait_idle()
