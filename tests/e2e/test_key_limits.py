"""What each key may use: requests in flight and tokens per minute, in every API and however an answer ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from smg_trio.gateway.security.key_limits import KeyMeters

from .harness import (
    ENDLESS,
    HELLO,
    PATIENCE_S,
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

EMBEDS = {"supported_tasks": ("embed",)}
ALICE, BOB = {"authorization": "Bearer a-key"}, {"authorization": "Bearer b-key"}


@asynccontextmanager
async def limited_gateway(
    tmp_path: Path, says: str = HELLO, *, alice: str = "", **options: Any
) -> AsyncIterator[tuple[Bench, list[float]]]:
    """A gateway with keys for Alice, who has these limits, and Bob, who has none; and its limits' clock."""
    file = tmp_path / "keys.toml"
    file.write_text(f'[keys.alice]\nkey = "a-key"\n{alice}\n[keys.bob]\nkey = "b-key"\n')
    file.chmod(0o600)
    async with open_gateway(tmp_path, says, api_key_file=str(file), **options) as bench:
        clock = [0.0]
        bench.gateway.meters = KeyMeters(lambda: clock[0])
        yield bench, clock


async def chat(bench: Bench, headers: dict[str, str], **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/chat/completions", json=chat_body(**fields), headers=headers)


def remaining(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-tokens"])


async def begin_stream(bench: Bench, key: str = "a-key", path: str = "/v1/chat/completions", **fields: Any) -> Any:
    stream = await connect(bench.port)
    await stream.send_all(post(path, chat_body(stream=True) | fields, f"Authorization: Bearer {key}"))
    await read_until(stream, b"b")
    return stream


# ---- requests in flight --------------------------------------------------------------------------------------


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_one_request_too_many_is_refused_and_a_departure_makes_room(tmp_path: Path, http2: bool) -> None:
    async with limited_gateway(tmp_path, ENDLESS, alice="max_concurrent_requests = 2", engine=SLOW, http2=http2) as (
        bench,
        _,
    ):
        streams = [await begin_stream(bench) for _ in range(2)]
        await bench.engine.wait_received(2)
        answer = await chat(bench, ALICE)
        error = error_of(answer, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert error["message"] == (
            "Rate limit reached for key alice on concurrent requests: limit 2, in flight 2. Try again in 1s."
        )
        assert answer.headers["retry-after"] == "1"
        assert len(bench.engine.received) == 2
        streams.append(await begin_stream(bench, "b-key"))
        await hang_up(streams[0], reset=False)
        with trio.fail_after(PATIENCE_S):
            await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 1)
        streams.append(await begin_stream(bench))
        error_of(await chat(bench, ALICE), 429)
        for stream in streams[1:]:
            await hang_up(stream, reset=True)
        await bench.wait_idle()
        assert bench.gateway.meters.of(next(h for h in bench.gateway.keys.holders if h.name == "alice")).in_flight == 0


async def test_answers_that_end_make_room_however_they_end(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, HELLO, alice="max_concurrent_requests = 1") as (bench, _):
        for _ in range(2):
            assert (await chat(bench, ALICE)).status_code == 200
            assert (await chat(bench, ALICE, stream=True)).status_code == 200
            assert (await chat(bench, ALICE, n=3)).status_code == 200
            assert (await chat(bench, ALICE, temperature=-1)).status_code == 400
            assert (await chat(bench, ALICE, model="other")).status_code == 404
        bench.kill(bench.engine)
        assert (await chat(bench, ALICE)).status_code == 503
        bench.start_engine(HELLO)
        await bench.wait_ready()
        assert (await chat(bench, ALICE)).status_code == 200


REFUSED_BODIES = [
    ("/v1/chat/completions", {}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/generate", {"text": "hi"}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
]


async def test_every_api_refuses_in_its_own_shape(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, ENDLESS, alice="max_concurrent_requests = 1", engine=SLOW) as (bench, _):
        stream = await begin_stream(bench)
        for path, body in REFUSED_BODIES:
            error = error_of(await bench.http.post(path, json=chat_body() | body, headers=ALICE), 429)
            assert error["code"] == "rate_limit_exceeded"
        answer = await bench.http.post("/v1/messages", json=chat_body(max_tokens=9), headers={"x-api-key": "a-key"})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert "concurrent requests: limit 1" in answer.json()["error"]["message"]
        for path in ("/v1/models", "/workers"):
            assert (await bench.http.get(path, headers=ALICE)).status_code == 200
        assert len(bench.engine.received) == 1
        await hang_up(stream, reset=False)


COSTLY = [
    ("/v1/messages/count_tokens", chat_body()),
    ("/tokenize", {"prompt": "hi"}),
    ("/detokenize", {"tokens": [1]}),
    ("/v1/tokenize", {"model": "m", "prompt": "hi"}),
    ("/v1/detokenize", {"model": "m", "tokens": [1]}),
    ("/parse/function_call", {"text": "x", "tool_call_parser": "json", "tools": []}),
    ("/v1/parse/reasoning", {"text": "x", "reasoning_parser": "qwen3"}),
    ("/v1/conversations", {}),
    ("/v1/conversations/c", {"metadata": {}}),
    ("/v1/conversations/c/items", {"items": []}),
]


async def test_what_costs_the_gateway_alone_needs_room_too_and_what_ends_it_does_not(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, ENDLESS, alice="max_concurrent_requests = 1", engine=SLOW) as (bench, _):
        stream = await begin_stream(bench)
        for path, body in COSTLY:
            answer = await bench.http.post(path, json=body, headers=ALICE)
            assert answer.status_code == 429, (path, answer.text)
            assert "concurrent requests: limit 1, in flight 1" in answer.text
            assert answer.headers["x-smg-error-code"] == "rate_limit_exceeded"
            assert (await bench.http.post(path, json=body, headers=BOB)).status_code != 429
        for method, path in [("GET", "/v1/responses/x"), ("DELETE", "/v1/responses/x"), ("GET", "/v1/conversations/x")]:
            error_of(await bench.http.request(method, path, headers=ALICE), 404)
        error_of(await bench.http.post("/v1/responses/x/cancel", headers=ALICE), 404)
        await hang_up(stream, reset=False)
        await bench.wait_idle()
        for path, body in COSTLY:
            assert (await bench.http.post(path, json=body, headers=ALICE)).status_code != 429, path


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_request_counts_while_its_body_arrives(tmp_path: Path, path: str) -> None:
    async with limited_gateway(tmp_path, HELLO, alice="max_concurrent_requests = 1") as (bench, _):
        body = chat_body() if "chat" in path else {"prompt": "hi"}
        whole = post(path, body, "Authorization: Bearer a-key")
        meter = bench.gateway.meters.of(next(h for h in bench.gateway.keys.holders if h.name == "alice"))
        async with await connect(bench.port) as slow:
            with trio.fail_after(PATIENCE_S):
                await slow.send_all(whole[:-1])
                while not meter.in_flight:
                    await trio.lowlevel.checkpoint()
                answer = await bench.http.post(path, json=body, headers=ALICE)
                assert "in flight 1" in error_of(answer, 429)["message"]
                await slow.send_all(whole[-1:])
                await read_until(slow, b" 200 ")
                while meter.in_flight:
                    await trio.lowlevel.checkpoint()
        async with await connect(bench.port) as leaver:
            with trio.fail_after(PATIENCE_S):
                await leaver.send_all(whole[:-1])
                while not meter.in_flight:
                    await trio.lowlevel.checkpoint()
                await hang_up(leaver, reset=True)
                while meter.in_flight:
                    await trio.lowlevel.checkpoint()
        assert (await bench.http.post(path, json=body, headers=ALICE)).status_code == 200


async def test_an_answer_in_the_background_holds_its_place_until_it_is_cancelled(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, ENDLESS, alice="max_concurrent_requests = 1", engine=SLOW) as (bench, _):
        body = {"model": "m", "input": "hi", "background": True}
        answer = await bench.http.post("/v1/responses", json=body, headers=ALICE)
        assert answer.json()["status"] == "queued"
        error_of(await chat(bench, ALICE), 429)
        await bench.engine.wait_received(1)
        error_of(await chat(bench, ALICE), 429)
        cancel = await bench.http.post(f"/v1/responses/{answer.json()['id']}/cancel", headers=ALICE)
        assert cancel.status_code == 200
        await bench.wait_idle()
        await hang_up(await begin_stream(bench), reset=False)


async def test_each_turn_on_a_websocket_is_a_request(tmp_path: Path) -> None:
    turn = json.dumps({"type": "response.create", "model": "m", "input": "hi", "store": False})
    async with limited_gateway(tmp_path, ENDLESS, alice="max_concurrent_requests = 1", engine=SLOW) as (bench, _):
        url = bench.base_url.replace("http", "ws") + "/v1/responses"
        headers = [(name, value.encode()) for name, value in ALICE.items()]
        async with open_websocket_url(url, extra_headers=headers) as one:
            await one.send_message(turn)
            await bench.engine.wait_received(1)
            error_of(await chat(bench, ALICE), 429)
            async with open_websocket_url(url, extra_headers=headers) as other:
                await other.send_message(turn)
                with trio.fail_after(PATIENCE_S):
                    assert "rate_limit_exceeded" in await other.get_message()
            await one.send_message('{"type": "response.cancel"}')
            with trio.fail_after(PATIENCE_S):
                while "cancelled" not in await one.get_message():
                    pass
            await bench.wait_idle()
            await one.send_message(turn)
            await bench.engine.wait_received(2)


# ---- tokens per minute ---------------------------------------------------------------------------------------


async def test_what_is_read_and_written_counts_and_the_wait_is_true(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, HELLO, alice="tokens_per_minute = 30") as (bench, clock):
        first = await chat(bench, ALICE)
        used = first.json()["usage"]["total_tokens"]
        assert first.headers["x-ratelimit-limit-tokens"] == "30"
        left = 30 - used
        assert remaining(first) == left
        assert first.headers["x-ratelimit-reset-tokens"] == f"{used * 2}s"
        while left > 0:
            assert (await chat(bench, ALICE)).status_code == 200
            left -= used
        refused = await chat(bench, ALICE)
        wait_s = int(refused.headers["retry-after"])
        assert wait_s == 2 * (1 - left)
        error = error_of(refused, 429)
        assert error["message"] == (
            f"Rate limit reached for key alice on tokens per minute: limit 30, overdrawn by {-left}. "
            f"Try again in {wait_s}s."
        )
        assert remaining(refused) == 0
        assert (await chat(bench, BOB)).status_code == 200
        assert "x-ratelimit-limit-tokens" not in (await chat(bench, BOB)).headers
        clock[0] += wait_s - 2
        error_of(await chat(bench, ALICE), 429)
        clock[0] += 2
        assert (await chat(bench, ALICE)).status_code == 200


COSTS: list[tuple[str, dict[str, Any], Any]] = [
    ("/v1/chat/completions", {"n": 3}, lambda body: body["usage"]["total_tokens"]),
    ("/v1/completions", {"prompt": ["hi", "a"], "n": 2}, lambda body: body["usage"]["total_tokens"]),
    ("/v1/messages", {"max_tokens": 9}, lambda body: sum(body["usage"][f"{way}put_tokens"] for way in ("in", "out"))),
    ("/v1/responses", {"input": "hi"}, lambda body: body["usage"]["total_tokens"]),
]


@pytest.mark.parametrize(("path", "fields", "cost"), COSTS, ids=[path for path, _, _ in COSTS])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_every_api_counts_what_it_reports(
    tmp_path: Path, path: str, fields: dict[str, Any], cost: Any, stream: bool
) -> None:
    async with limited_gateway(tmp_path, HELLO, alice="tokens_per_minute = 1000") as (bench, _):
        expected = cost((await bench.http.post(path, json=chat_body() | fields, headers=BOB)).json())
        body = chat_body(stream=stream) | fields
        assert (await bench.http.post(path, json=body, headers=ALICE)).status_code == 200
        await bench.wait_idle()
        # What the next answer's headers say includes its own prompt, so ask for something that fails.
        assert remaining(await chat(bench, ALICE, model="other")) == 1000 - expected
        assert expected > 5


async def test_a_client_that_leaves_pays_for_what_was_made_for_it(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, ENDLESS, alice="tokens_per_minute = 1000", engine=SLOW) as (bench, _):
        await hang_up(await begin_stream(bench), reset=True)
        await bench.wait_idle()
        prompt = len(bench.engine.received[0].prompt_token_ids)
        assert 1000 - 100 < remaining(await chat(bench, ALICE, model="other")) < 1000 - prompt


async def test_a_prompt_that_no_engine_got_costs_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_concurrent_requests": 1, "queue_size": 0, "engine": SLOW}
    async with limited_gateway(tmp_path, ENDLESS, alice="tokens_per_minute = 1000", **options) as (bench, _):
        stream = await begin_stream(bench, "b-key")
        answer = await chat(bench, ALICE)
        assert error_of(answer, 429)["code"] == "admission_queue_full"
        assert remaining(answer) == 1000
        await hang_up(stream, reset=False)


TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"max_tokens": 1000}),
    ("/v1/chat/completions", {"max_completion_tokens": 10, "n": 100, "stream": True}),
    ("/v1/completions", {"prompt": ["hi"] * 32, "max_tokens": 2, "n": 16}),
    ("/v1/completions", {"prompt": "hi " * 1001}),
    ("/v1/messages", {"max_tokens": 1000}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 1000}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 1000, "background": True}),
    ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 1000}}),
]


async def test_what_asks_for_more_than_a_whole_minutes_tokens_is_refused_beforehand(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, HELLO, alice="tokens_per_minute = 1000") as (bench, _):
        for path, fields in TOO_LARGE:
            answer = await bench.http.post(path, json=chat_body() | fields, headers=ALICE)
            assert answer.status_code == 429, (path, answer.text)
            error = answer.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "tokens per minute: limit 1000, requested " in error["message"]
            assert answer.headers["x-smg-error-code"] == "rate_limit_exceeded"
            assert answer.headers["x-should-retry"] == "false"
            assert "retry-after" not in answer.headers
            assert remaining(answer) == 1000
        assert bench.engine.received == []
        for fields in ({}, {"max_tokens": 900}, {"max_tokens": 9, "n": 100}):
            assert (await chat(bench, ALICE, **fields)).status_code == 200
            await bench.wait_idle()


async def test_texts_to_be_embedded_count_too(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, HELLO, alice="tokens_per_minute = 5", engine=EMBEDS) as (bench, _):
        many = {"model": "m", "input": ["hi", "a", "hi", "a"]}
        refused = await bench.http.post("/v1/embeddings", json=many, headers=ALICE)
        assert "limit 5, requested 6 " in error_of(refused, 429)["message"]
        body = {"model": "m", "input": ["hi", "a", "hi"]}
        answer = await bench.http.post("/v1/embeddings", json=body, headers=ALICE)
        assert answer.json()["usage"]["total_tokens"] == 5
        assert remaining(answer) == 0
        error_of(await bench.http.post("/v1/embeddings", json=body, headers=ALICE), 429)


# ---- where limits come from ----------------------------------------------------------------------------------


async def test_the_flags_limits_hold_for_every_key_without_its_own(tmp_path: Path) -> None:
    defaults = {"key_max_concurrent_requests": 1, "key_tokens_per_minute": 100}
    own = "max_concurrent_requests = 0\ntokens_per_minute = 1000"
    async with limited_gateway(tmp_path, ENDLESS, alice=own, engine=SLOW, **defaults) as (bench, _):
        streams = [await begin_stream(bench), await begin_stream(bench), await begin_stream(bench, "b-key")]
        assert "concurrent requests: limit 1" in error_of(await chat(bench, BOB), 429)["message"]
        assert (await chat(bench, BOB)).headers["x-ratelimit-limit-tokens"] == "100"
        assert (await chat(bench, ALICE, model="other")).headers["x-ratelimit-limit-tokens"] == "1000"
        for stream in streams:
            await hang_up(stream, reset=False)


async def test_where_no_key_is_needed_everybody_shares_the_flags_limits(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW, key_max_concurrent_requests=1) as bench:
        stream = await begin_stream(bench)
        message = error_of(await bench.chat(), 429)["message"]
        assert message.startswith("Rate limit reached on concurrent requests: limit 1, in flight 1.")
        await hang_up(stream, reset=False)
        await bench.wait_idle()


async def test_limits_change_with_the_file_and_what_was_used_stays_used(tmp_path: Path) -> None:
    async with limited_gateway(tmp_path, ENDLESS, alice="max_concurrent_requests = 1", engine=SLOW) as (bench, _):
        streams = [await begin_stream(bench)]
        error_of(await chat(bench, ALICE), 429)
        file = tmp_path / "keys.toml"
        text = file.read_text()
        file.write_text(text.replace("= 1", "= 2"))
        await bench.files.read_all()
        streams.append(await begin_stream(bench))
        assert "limit 2, in flight 2" in error_of(await chat(bench, ALICE), 429)["message"]
        file.write_text(text.replace("max_concurrent_requests = 1", ""))
        await bench.files.read_all()
        streams.append(await begin_stream(bench))
        for stream in streams:
            await hang_up(stream, reset=False)
        await bench.wait_idle()
        file.write_text(text)
        await bench.files.read_all()
        streams = [await begin_stream(bench)]
        assert "limit 1, in flight 1" in error_of(await chat(bench, ALICE), 429)["message"]
        await hang_up(streams[0], reset=False)


async def test_admission_at_a_rate_refuses_who_finds_the_queue_full(tmp_path: Path) -> None:
    options = {"rate_limit_tokens_per_second": 0.01, "max_concurrent_requests": 2, "queue_size": 0}
    async with open_gateway(tmp_path, HELLO, **options) as bench:
        assert [(await bench.chat()).status_code for _ in range(2)] == [200, 200]
        answer = await bench.chat()
        assert error_of(answer, 429)["code"] == "admission_queue_full"
        assert 90 <= int(answer.headers["retry-after"]) <= 100
        assert len(bench.engine.received) == 2


async def test_admission_at_a_rate_has_others_wait_their_turn(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, rate_limit_tokens_per_second=5.0, max_concurrent_requests=1) as bench:
        began = trio.current_time()
        assert [(await bench.chat()).status_code for _ in range(3)] == [200, 200, 200]
        assert trio.current_time() - began >= 0.4
