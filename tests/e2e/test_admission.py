"""Overload is answered, not stored: bounded answers, a bounded queue, a bounded wait, and probes that never suffer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx
import pytest
import trio

from tests.waiting import until

from .harness import (
    ENDLESS,
    HELLO,
    SLOW,
    Bench,
    chat_body,
    connect,
    error_of,
    hang_up,
    open_gateway,
    post,
    read_until,
)


async def wait_places(bench: Bench, in_flight: int, waiting: int) -> None:
    def holds() -> bool:
        now = bench.gateway.admission.statistics()
        return (now.in_flight, now.waiting) == (in_flight, waiting)

    await until(holds)


async def fill(bench: Bench, count: int, nursery: trio.Nursery, answers: list[httpx.Response]) -> None:
    """Ask `count` times; answers are added as they come."""

    async def ask() -> None:
        answers.append(await bench.chat())

    for _ in range(count):
        nursery.start_soon(ask)


async def timed(ask: Callable[[], object]) -> float:
    began = trio.current_time()
    await ask()  # type: ignore[misc]
    return trio.current_time() - began


async def test_of_100_requests_16_are_served_and_84_refused_at_once(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, max_concurrent_requests=8, queue_size=8) as bench:
        bench.engine.stop_reading()  # nothing ends until told to
        served: list[httpx.Response] = []
        async with trio.open_nursery() as nursery:
            await fill(bench, 16, nursery, served)
            await wait_places(bench, 8, 8)
            refused: list[tuple[float, httpx.Response]] = []

            async def ask(stream: bool) -> None:
                began = trio.current_time()
                answer = await bench.chat(stream=stream)
                refused.append((trio.current_time() - began, answer))

            async with trio.open_nursery() as crowd:
                for number in range(84):
                    crowd.start_soon(ask, number % 2 == 0)
            assert not served
            for _, answer in refused:
                error = error_of(answer, 429)
                assert error["code"] == "admission_queue_full"
                assert error["message"] == "admission queue is at capacity"
                assert int(answer.headers["retry-after"]) >= 1
            # One after another, so that the crowd's own work is not in the figure.
            alone = [await timed(bench.chat) for _ in range(9)]
            assert median(alone) < 0.1, alone
            assert max(seconds for seconds, _ in refused) < 2.0
            health = [await timed(lambda: bench.http.get("/health")) for _ in range(9)]
            metrics = [await timed(lambda: bench.http.get(bench.metrics_url)) for _ in range(9)]
            assert median(health) < 0.2, health
            assert median(metrics) < 0.2, metrics
            text = (await bench.http.get(bench.metrics_url)).text
            assert "smg_admission_inflight 8.0" in text
            assert "smg_admission_queue_depth 8.0" in text
            assert 'smg_admission_queue_rejected_total{reason="full"} 93.0' in text
            assert 'smg_http_rate_limit_total{result="rejected"} 93.0' in text
            assert len(bench.engine.received) == 0
            bench.engine.resume_reading()
        assert [answer.status_code for answer in served] == [200] * 16
        assert len(bench.engine.received) == 16
        await bench.wait_idle()
        await wait_places(bench, 0, 0)


async def test_who_waits_too_long_is_told_so_with_503(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, max_concurrent_requests=1, queue_size=8, queue_timeout_secs=0.5) as bench:
        bench.engine.stop_reading()
        first: list[httpx.Response] = []
        async with trio.open_nursery() as nursery:
            await fill(bench, 1, nursery, first)
            await wait_places(bench, 1, 0)
            for stream in (False, True):
                answer = await bench.chat(stream=stream)
                error = error_of(answer, 503)
                assert error["code"] == "admission_queue_timeout"
                assert error["message"] == "timed out waiting for an admission slot"
                assert int(answer.headers["retry-after"]) >= 1
            await wait_places(bench, 1, 0)
            text = (await bench.http.get(bench.metrics_url)).text
            assert 'smg_admission_queue_rejected_total{reason="timeout"} 2.0' in text
            bench.engine.resume_reading()
        assert first[0].status_code == 200
        assert (await bench.chat()).status_code == 200
        await bench.wait_idle()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_clients_that_leave_the_queue_free_their_places(tmp_path: Path, reset: bool) -> None:
    async with open_gateway(tmp_path, HELLO, max_concurrent_requests=8, queue_size=8) as bench:
        bench.engine.stop_reading()
        served: list[httpx.Response] = []
        async with trio.open_nursery() as nursery:
            await fill(bench, 12, nursery, served)
            await wait_places(bench, 8, 4)
            leaving = [await connect(bench.port) for _ in range(4)]
            for stream in leaving:
                await stream.send_all(post("/v1/chat/completions", chat_body(stream=True)))
            await wait_places(bench, 8, 8)
            assert error_of(await bench.chat(), 429)
            for stream in leaving:
                await hang_up(stream, reset=reset)
            await wait_places(bench, 8, 4)
            await fill(bench, 4, nursery, served)
            await wait_places(bench, 8, 8)
            assert error_of(await bench.chat(), 429)
            bench.engine.resume_reading()
        assert [answer.status_code for answer in served] == [200] * 16
        assert len(bench.engine.received) == 16  # those that left were never sent
        await bench.wait_idle()
        await wait_places(bench, 0, 0)


async def test_a_stream_holds_its_place_to_its_end_and_whoever_waits_gets_it_then(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, max_concurrent_requests=1, queue_size=1) as bench:
        for leave in (True, False):
            first = await connect(bench.port)
            await first.send_all(post("/v1/chat/completions", chat_body(stream=True, max_tokens=100)))
            await read_until(first, b'"b"')
            answers: list[httpx.Response] = []

            async def ask() -> None:
                answers.append(await bench.chat(max_tokens=2))  # noqa: B023

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await wait_places(bench, 1, 1)
                assert error_of(await bench.chat(), 429)["code"] == "admission_queue_full"
                assert not answers
                if leave:
                    await hang_up(first, reset=True)
            assert answers[0].status_code == 200
            if not leave:
                await read_until(first, b"[DONE]")
                await hang_up(first, reset=False)
            await wait_places(bench, 0, 0)
        await bench.wait_idle()


async def test_without_a_worker_requests_are_503_and_hold_no_place(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, max_concurrent_requests=1, queue_size=0) as bench:
        for _ in range(5):
            assert error_of(await bench.chat(), 503)["code"] == "no_available_workers"
        await wait_places(bench, 0, 0)
