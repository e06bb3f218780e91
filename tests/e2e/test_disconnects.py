"""Clients that leave, and clients that do not read: the engine is told, at once and once, and nobody else suffers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.gateway.observability.http_metrics import CLIENT_LEFT_CODE
from tests.certificates import Authority

from .harness import (
    ENDLESS,
    PATIENCE_S,
    SLOW,
    TOKENSPEED,
    VLLM,
    Bench,
    chat_body,
    connect,
    connect_over,
    hang_up,
    open_gateway,
    post,
    read_until,
)
from .scrape import scrape

both = pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
leaving = pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
RESPONSES = "smg_http_responses_total"


async def delay_of_abort(bench: Bench, body: dict[str, Any], path: str, *, reset: bool, mark: bytes | None) -> float:
    """Ask, leave (after `mark` has come, or once the engine has the request), wait for the abort; seconds."""
    already = len(bench.engine.received)
    stream = await connect(bench.port)
    await stream.send_all(post(path, body))
    count = body.get("n", 1)
    with trio.fail_after(PATIENCE_S):
        await bench.engine.wait_received(already + count)
        if mark is not None:
            await read_until(stream, mark)
        await hang_up(stream, reset=reset)
        left = trio.current_time()
        ids = {request.request_id for request in bench.engine.received[already:]}
        await bench.engine.wait_until(lambda: ids <= set(bench.engine.aborts))
    return trio.current_time() - left


WAYS: dict[str, Callable[[], tuple[str, dict[str, Any], str, bytes | None]]] = {
    "mid_stream": lambda: (ENDLESS, chat_body(stream=True), "/v1/chat/completions", b'"b"'),
    "plain": lambda: (ENDLESS, chat_body(), "/v1/chat/completions", None),
    "before_the_first_token": lambda: ("E[] fin=hang", chat_body(stream=True), "/v1/chat/completions", None),
    "several_choices": lambda: (ENDLESS, chat_body(stream=True, n=3), "/v1/chat/completions", b'"b"'),
    "completions": lambda: (ENDLESS, {"prompt": "x", "max_tokens": 5000}, "/v1/completions", None),
}


@both
@leaving
@pytest.mark.parametrize("way", WAYS)
async def test_the_engine_is_told_within_100_ms_and_once(tmp_path: Path, protocol: Any, reset: bool, way: str) -> None:
    says, body, path, mark = WAYS[way]()
    async with open_gateway(tmp_path, says, protocol=protocol, engine=SLOW) as bench:
        # A busy machine is slow now and then; the gateway may not be slow each time.
        delays: list[float] = []
        while min(delays, default=1) >= 0.1 and len(delays) < 10:
            delays.append(await delay_of_abort(bench, body, path, reset=reset, mark=mark))
        assert min(delays) < 0.1, delays
        await bench.wait_idle()
        assert sorted(bench.engine.aborts) == sorted(request.request_id for request in bench.engine.received)
        assert bench.engine.in_flight == 0


@leaving
async def test_a_client_that_leaves_while_its_request_waits_at_the_engine(tmp_path: Path, reset: bool) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW | {"max_num_seqs": 1}) as bench:
        running = await connect(bench.port)
        await running.send_all(post("/v1/chat/completions", chat_body(stream=True)))
        await read_until(running, b'"b"')
        delay = await delay_of_abort(bench, chat_body(stream=True), "/v1/chat/completions", reset=reset, mark=None)
        assert delay < 1
        await hang_up(running, reset=reset)
        await bench.wait_idle()
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 2)


@leaving
async def test_a_client_that_leaves_during_tokenizing_reaches_no_engine(tmp_path: Path, reset: bool) -> None:
    async with open_gateway(
        tmp_path, ENDLESS, engine=SLOW | {"max_model_len": 10**7, "num_gpu_blocks": 10**7}
    ) as bench:
        stream = await connect(bench.port)
        body = {"prompt": "well then " * 30_000, "max_tokens": 5000}
        with trio.fail_after(PATIENCE_S):
            await stream.send_all(post("/v1/completions", body))
            await hang_up(stream, reset=reset)
            # Whatever happens to that one, this one is served.
            assert (await bench.chat(max_tokens=3)).status_code == 200
        await bench.wait_idle()
        left = [request for request in bench.engine.received if len(request.prompt_token_ids) > 1000]
        assert sorted(bench.engine.aborts) == sorted(request.request_id for request in left)


@pytest.mark.parametrize("lane", ["plain", "tls", "h2"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/batch"], ids=["hot", "cold"])
async def test_a_client_that_leaves_is_no_failure_of_the_gateway(tmp_path: Path, lane: str, path: str) -> None:
    authority = None if lane == "plain" else Authority(tmp_path / "tls")
    settings = authority.settings if authority else {}
    body = chat_body()
    if path.endswith("batch"):
        body["messages"] = [body["messages"]]
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, **settings) as bench:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as client:
                client.start_soon(_ask_over, lane, bench, authority, path, body)
                await bench.engine.wait_received(1)
                client.cancel_scope.cancel()
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 1)
            await bench.wait_idle()
            seen = [sample.labels for sample in (await scrape(bench)).samples() if sample.name == RESPONSES]
        assert [(labels["status_code"], labels["error_code"]) for labels in seen] == [("499", CLIENT_LEFT_CODE)]


async def _ask_over(lane: str, bench: Bench, authority: Authority | None, path: str, body: dict[str, Any]) -> None:
    """Post a request and wait; cancelled, the connection (or the stream of HTTP/2) is given up."""
    if lane == "h2":
        assert authority is not None
        async with httpx.AsyncClient(base_url=bench.base_url, verify=authority.trusting(), http2=True) as client:
            await client.post(path, json=body, timeout=PATIENCE_S)
        return
    stream = await connect_over(bench.port, authority)
    try:
        await stream.send_all(post(path, body))
        await stream.receive_some()
    finally:
        await trio.aclose_forcefully(stream)


async def test_a_normal_end_is_never_aborted(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS) as bench:
        for _ in range(10):
            await bench.chat(max_tokens=3)
            await bench.chat(max_tokens=3, stream=True)
        stream = await connect(bench.port)
        await stream.send_all(post("/v1/chat/completions", chat_body(stream=True, max_tokens=3)))
        await read_until(stream, b"[DONE]")
        await hang_up(stream, reset=True)
        await bench.wait_idle()
        assert (await bench.chat(max_tokens=3)).status_code == 200
        assert bench.engine.aborts == []


async def test_many_clients_that_leave_at_random_leave_nothing_behind(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:

        async def one(number: int) -> None:
            stream = await connect(bench.port)
            await stream.send_all(post("/v1/chat/completions", chat_body(stream=number % 2 == 0, n=1 + number % 3)))
            with trio.move_on_after(0.003 * (number % 17)):
                while await stream.receive_some():
                    pass
            await hang_up(stream, reset=number % 4 < 2)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(60):
                    nursery.start_soon(one, number)
            # A last request is behind all others in every queue.
            assert (await bench.chat(max_tokens=2)).status_code == 200
            await bench.wait_idle()
            received = [request.request_id for request in bench.engine.received[:-1]]
            await bench.engine.wait_until(lambda: bench.engine.in_flight == 0)
        assert len(bench.engine.aborts) == len(set(bench.engine.aborts))
        assert set(bench.engine.aborts) <= set(received)


async def test_a_client_that_never_reads_is_bounded_and_harms_nobody(tmp_path: Path) -> None:
    big = "x" * 2000
    says = f'E["{big}"|…]'
    async with open_gateway(tmp_path, says, engine={"step_time_s": 0.0005}) as bench:
        stuck = await connect(bench.port, receive_buffer=4096)
        await stuck.send_all(post("/v1/chat/completions", chat_body(stream=True)))
        with trio.fail_after(PATIENCE_S):
            [request] = await bench.engine.wait_received()
            # It runs into its own limit of tokens while nobody reads; meanwhile others are served.
            for _ in range(5):
                assert (await bench.chat(max_tokens=2)).status_code == 200
        assert bench.gateway.answers == 1
        await hang_up(stuck, reset=True)
        await bench.wait_idle()
        assert bench.engine.aborts in ([], [request.request_id])


async def test_a_client_too_slow_for_its_answer_is_ended_at_the_bound(tmp_path: Path) -> None:
    from smg_trio.worker.output_stream import PENDING_OUTPUTS_LIMIT

    limits = {"max_model_len": 10 * PENDING_OUTPUTS_LIMIT, "num_gpu_blocks": 10**6, "step_time_s": 0.0}
    async with open_gateway(tmp_path, 'E["' + "y" * 400 + '"|…]', engine=limits) as bench:
        stuck = await connect(bench.port, receive_buffer=4096)
        await stuck.send_all(post("/v1/chat/completions", chat_body(stream=True)))
        with trio.fail_after(3 * PATIENCE_S):
            [request] = await bench.engine.wait_received()
            await bench.engine.wait_aborted(request.request_id)
        assert bench.engine.record.tokens < 4 * PENDING_OUTPUTS_LIMIT
        assert bench.worker.in_flight == 0
        assert (await bench.chat(max_tokens=2)).status_code == 200
        await hang_up(stuck, reset=True)
        await bench.wait_idle()
