"""Requests that are wrong: each gets an OpenAI-shaped JSON error, none a 5xx, and none harms the next one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.waiting import read_to_end

from .harness import (
    HELLO,
    HI,
    MODEL,
    PATIENCE_S,
    chat_body,
    connect,
    error_of,
    events,
    join_chat,
    open_gateway,
    post,
)

POSTS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/v1/detokenize",
]
BODIES: dict[str, bytes] = {
    "array": b"[]",
    "text": b'"x"',
    "number": b"7",
    "null": b"null",
    "cut": b"{",
    "empty": b"",
    "not_utf8": b'{"model": "\xff\xfe"}',
    "nan": b'{"model": "m", "temperature": NaN, "messages": [], "prompt": "x", "tokens": [1]}',
    "infinity": b'{"model": "m", "x": -Infinity}',
    "deep_arrays": b"[" * 5000 + b"]" * 5000,
    "deep_objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep_inside": b'{"model": "m", "messages": ' + b"[" * 900 + b"]" * 900 + b"}",
    "huge_number": b'{"model": "m", "max_tokens": ' + b"9" * 5000 + b"}",
    "huge_float": b'{"model": "m", "temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
    "lone_surrogate": b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}], "prompt": "\\ud800"}',
    "trailing": b'{"model": "m"} x',
    "control": b'{"model": "m\n"}',
    "comment": b'{"model": "m" /* hello */}',
    "single_quotes": b"{'model': 'm'}",
    "utf16": '{"model": "m"}'.encode("utf-16"),
}


async def test_bodies_that_are_no_json_object_are_refused_as_json(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for path, (name, body) in itertools.product(POSTS, BODIES.items()):
            if name.startswith("huge") and "completions" not in path:
                continue  # of fields it does not know it reads nothing
            with trio.fail_after(2):
                answer = await bench.http.post(path, content=body, headers={"content-type": "application/json"})
            error = error_of(answer, 400)
            assert error["type"] == "invalid_request_error", name
        assert bench.engine.received == []
        assert (await bench.chat()).status_code == 200


async def test_of_duplicate_keys_the_last_wins_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        body = b'{"messages": 7, "max_tokens": 1, "max_tokens": 3, "x": {}, "messages": [{"role": "user"}]}'
        answer = await bench.http.post("/v1/chat/completions", content=body)
        assert answer.status_code == 200
        assert bench.engine.received[-1].max_tokens == 3


VALUES: list[Any] = [None, True, -1, 1.5, 10**30, "", "x", [], {}, [None], [[]], [{}], {"a": None}, "\u0000"]
GENERATING = [
    "model", "stream", "stream_options", "n", "stop", "logit_bias", "logprobs", "seed", "user", "echo", "max_tokens",
    "temperature", "structured_outputs", "priority", "vllm_xargs", "kv_transfer_params", "bad_words",
    "prompt_logprobs", "truncate_prompt_tokens", "add_special_tokens", "request_id", "rid", "cache_salt",
    "repetition_detection", "return_token_ids", "logprob_token_ids", "response_format", "metadata",
]  # fmt: skip
CHATTING = ["messages", "tools", "tool_choice", "top_logprobs", "chat_template_kwargs", "documents",
            "reasoning_effort", "parallel_tool_calls"]  # fmt: skip
FIELDS: dict[str, list[str]] = {
    "/v1/chat/completions": GENERATING + CHATTING,
    "/v1/completions": [*GENERATING, "prompt", "suffix", "best_of"],
    "/tokenize": ["model", "prompt", "messages", "tools", "chat_template_kwargs", "add_special_tokens"],
    "/detokenize": ["model", "tokens"],
    "/v1/tokenize": ["model", "prompt"],
    "/v1/detokenize": ["model", "tokens"],
}


@pytest.mark.parametrize("path", POSTS)
async def test_a_field_of_the_wrong_type_is_never_a_5xx(tmp_path: Path, path: str) -> None:
    base: dict[str, Any] = {"model": MODEL, "max_tokens": 2}
    base |= {"messages": HI} if "chat" in path else {"tokens": [1]} if "detok" in path else {"prompt": "hi"}
    async with open_gateway(tmp_path, HELLO) as bench:
        for field in FIELDS[path]:
            for value in VALUES:
                answer = await bench.http.post(path, json=base | {field: value})
                assert answer.status_code in (200, 400, 404), (field, value, answer.text)
                if answer.status_code != 200:
                    error_of(answer, answer.status_code)
                elif "text/event-stream" in answer.headers["content-type"]:
                    assert events(answer.text)[-1] == "[DONE]"
        await bench.wait_idle()
        assert bench.engine.exit_reason is None
        assert (await bench.chat()).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_unknown_model_is_a_404(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.http.post(path, json={"model": "other", "messages": HI, "prompt": "x"})
        error = error_of(answer, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "other" in error["message"]


ROUTES = [
    ("GET", "/", 404),
    ("GET", "/nope", 404),
    ("POST", "/v1/chat", 404),
    ("POST", "/v1/chat/completions/", 404),
    ("POST", "/V1/chat/completions", 404),
    ("GET", "/v1/chat/completions", 405),
    ("PUT", "/v1/chat/completions", 405),
    ("DELETE", "/v1/completions", 405),
    ("POST", "/health", 405),
    ("POST", "/v1/models", 405),
    ("GET", "/metrics", 404),
]


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_unknown_routes_and_methods_are_json_errors(tmp_path: Path, http2: bool) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, http2=http2) as bench:
        for method, path, status in ROUTES:
            answer = await bench.http.request(method, bench.base_url + path, json={})
            error_of(answer, status)
            assert answer.headers["x-request-id"]
            if status == 405:
                assert answer.headers["allow"]


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_a_body_over_the_limit_is_a_413(tmp_path: Path, http2: bool) -> None:
    async with open_gateway(tmp_path, HELLO, max_payload_size=1000, http2=http2) as bench:
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * 2000}]}).encode()

        async def pieces() -> Any:
            for start in range(0, len(body), 300):
                yield body[start : start + 300]

        for path in ("/v1/chat/completions", "/tokenize"):
            for content in (body, pieces()):
                error_of(await bench.http.post(path, content=content), 413)
        assert (await bench.chat()).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_content_type_that_is_not_json_is_a_415(tmp_path: Path, path: str) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            error_of(await bench.http.post(path, content=b"{}", headers={"content-type": content_type}), 415)
        for content_type in ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", ""):
            body = json.dumps({"messages": HI, "max_tokens": 1} if "chat" in path else {"prompt": "x"}).encode()
            answer = await bench.http.post(path, content=body, headers={"content-type": content_type})
            assert answer.status_code == 200, (content_type, answer.text)


async def test_nothing_at_all_stands_in_for_a_missing_engine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        for answer in (await bench.chat(), await bench.chat(stream=True), await bench.completion()):
            assert error_of(answer, 503)["code"] == "no_available_workers"
        assert error_of(await bench.chat(model="other"), 404)["code"] == "model_not_found"
        assert error_of(await bench.chat(messages=7), 400)["param"] == "messages"


async def test_a_head_request_has_no_body(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for path in ("/health", "/v1/models", "/readiness"):
            answer = await bench.http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")


async def test_a_large_body_is_answered_soon_and_others_go_on_meanwhile(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, trio.open_nursery() as nursery:

        async def large() -> None:
            answer = await bench.chat(messages=[{"role": "user", "content": "x y " * 100_000}])
            assert error_of(answer, 400)["code"] == "context_length_exceeded"

        nursery.start_soon(large)
        for _ in range(5):
            with trio.fail_after(PATIENCE_S):
                assert (await bench.chat()).status_code == 200


BROKEN = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


async def test_broken_http_ends_its_own_connection_only(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for text in BROKEN:
            async with await connect(bench.port) as stream:
                await stream.send_all(text)
                answer = await read_to_end(stream)
            if answer:
                assert b" 4" in answer.split(b"\r\n")[0]
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
            assert (await bench.chat()).status_code == 200


async def test_a_null_byte_or_a_control_character_in_text_is_text(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.chat(messages=[{"role": "user", "content": "a\u0000\u0007\u2028b"}], stop=["\u0000"])
        assert answer.status_code == 200


ASKED_TO_CLOSE = [
    post("/v1/chat/completions", chat_body(), "Connection: close"),
    post("/v1/chat/completions", chat_body(stream=True), "Connection: close"),
    post("/v1/chat/completions", chat_body(temperature=-1), "Connection: close"),
    post("/tokenize", {"prompt": "x"}, "Connection: close"),
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
]


async def test_a_connection_that_was_asked_to_close_is_closed(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        for asked in ASKED_TO_CLOSE * 3:
            async with await connect(bench.port) as stream:
                await stream.send_all(asked)
                assert (await read_to_end(stream)).startswith(b"HTTP/1.1 "), asked


async def test_an_http_1_0_client_gets_its_stream_without_framing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, await connect(bench.port) as stream:
        body = json.dumps(chat_body(stream=True)).encode()
        await stream.send_all(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, text = (await read_to_end(stream)).decode().partition("\r\n\r\n")
        assert "transfer-encoding" not in head.lower()
        assert join_chat(text)["content"] == "Hello world"


async def test_unknown_stream_options_harm_nothing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        answer = await bench.chat(stream=True, stream_options={"include_usage": True, "x": 1})
        assert join_chat(answer.text)["usage"]["completion_tokens"] == 5
        assert (await bench.chat(stream=False, stream_options=None)).status_code == 200
