"""Requests beyond each bound: refused by name, over real HTTP, while another client's stream goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.api.parameters.constraints import MAX_CONSTRAINT_WEIGHT
from smg_trio.api.parameters.fields import MAX_PASSED_THROUGH
from smg_trio.api.parameters.sampling import MAX_BAD_WORD_CHARS, MAX_STOP_CHARS, MAX_TOKEN_IDS
from smg_trio.core.heavy_json import MAX_CONTAINERS, MAX_TEXTS, MAX_VALUES
from smg_trio.pipeline.rendering import MAX_TOOLS_WEIGHT

from .harness import ENDLESS, HELLO, HI, MODEL, PATIENCE_S, Bench, chat_body, error_of, open_gateway

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def tool(parameters: dict[str, Any], name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(count)}}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}


SCHEMA = "response_format.json_schema.schema"
BEYOND: dict[str, tuple[str, Callable[[], dict[str, Any]], int, str | None]] = {
    "containers": (CHAT, lambda: {"x": [[]] * (MAX_CONTAINERS + 1)}, 413, None),
    "texts": (CHAT, lambda: {"x": [""] * (MAX_TEXTS + 1)}, 413, None),
    "values": (CHAT, lambda: {"x": [1] * (MAX_VALUES + 2)}, 413, None),
    "stop_length": (CHAT, lambda: {"stop": ["ab" * MAX_STOP_CHARS]}, 400, "stop[0]"),
    "stop_alone": (COMPLETIONS, lambda: {"stop": "x" * (MAX_STOP_CHARS + 1)}, 400, "stop"),
    "stop_count": (CHAT, lambda: {"stop": ["a"] * 5}, 400, "stop"),
    "stop_token_ids": (CHAT, lambda: {"stop_token_ids": [1] * (MAX_TOKEN_IDS + 1)}, 400, "stop_token_ids"),
    "allowed_token_ids": (CHAT, lambda: {"allowed_token_ids": [1] * (MAX_TOKEN_IDS + 1)}, 400, "allowed_token_ids"),
    "logit_bias": (CHAT, lambda: {"logit_bias": dict.fromkeys(range(MAX_TOKEN_IDS + 1), 1)}, 400, "logit_bias"),
    "bad_words": (CHAT, lambda: {"bad_words": ["x" * (MAX_BAD_WORD_CHARS + 1)]}, 400, "bad_words[0]"),
    "bad_words_count": (CHAT, lambda: {"bad_words": ["x"] * 129}, 400, "bad_words"),
    "n": (CHAT, lambda: {"n": 129}, 400, "n"),
    "choices": (COMPLETIONS, lambda: {"prompt": ["a"] * 1024, "n": 5}, 400, "n"),
    "prompts": (COMPLETIONS, lambda: {"prompt": ["a"] * 1025}, 400, "prompt"),
    "generate_choices": ("/generate", lambda: {"text": ["a"] * 1024, "sampling_params": {"n": 5}}, 400, "n"),
    "prompt_ids": (COMPLETIONS, lambda: {"prompt": [1] * 200_000}, 400, "prompt"),
    "prompt_text": (COMPLETIONS, lambda: {"prompt": "a b " * 300_000}, 400, "prompt"),
    "prompt_chars": (COMPLETIONS, lambda: {"prompt": "a" * 16_000_001, "truncate_prompt_tokens": 9}, 400, "prompt"),
    "prompt_cut": (COMPLETIONS, lambda: {"prompt": "a b " * 1_500_000, "truncate_prompt_tokens": 9}, 400, "prompt"),
    "message": (CHAT, lambda: {"messages": [{"role": "user", "content": "a b " * 300_000}]}, 400, "messages"),
    "message_chars": (CHAT, lambda: {"messages": [{"role": "user", "content": "a" * 16_000_001}]}, 400, "messages"),
    "messages": (CHAT, lambda: {"messages": [{"role": "user", "content": "a b c d"}] * 30_000}, 400, "messages"),
    "tokenize": ("/tokenize", lambda: {"prompt": "a b " * 1_500_000}, 400, "prompt"),
    "tokenize_texts": ("/v1/tokenize", lambda: {"prompt": ["a"] * 1025}, 400, "prompt"),
    "tools": (CHAT, lambda: {"tools": [tool({"description": "x" * MAX_TOOLS_WEIGHT})]}, 400, "tools"),
    "tools_forced": (
        CHAT,
        lambda: {"tools": [tool({"description": "word " * 60_000})], "tool_choice": "required"},
        400,
        "tools",
    ),
    "template_arguments": (
        CHAT,
        lambda: {"chat_template_kwargs": {"a": [1] * (MAX_TOOLS_WEIGHT // 8)}},
        400,
        "chat_template_kwargs",
    ),
    "template": (CHAT, lambda: {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"}, 400, "chat_template"),
    "template_inside": (
        CHAT,
        lambda: {"chat_template_kwargs": {"chat_template": "x"}},
        400,
        "chat_template_kwargs.chat_template",
    ),
    "schema_text": (CHAT, lambda: {"response_format": schema({"description": "x" * 300_000})}, 400, SCHEMA),
    "schema_enum": (
        CHAT,
        lambda: {"response_format": schema({"enum": [f"v{i}" for i in range(100_000)]})},
        400,
        SCHEMA,
    ),
    "schema_wide": (CHAT, lambda: {"response_format": schema(wide(20_000))}, 400, SCHEMA),
    "regex": (
        CHAT,
        lambda: {"structured_outputs": {"regex": "a" * (MAX_CONSTRAINT_WEIGHT + 1)}},
        400,
        "structured_outputs.regex",
    ),
    "grammar": (
        CHAT,
        lambda: {"structured_outputs": {"grammar": "root ::= " + '"a" | ' * 50_000 + '"b"'}},
        400,
        "structured_outputs.grammar",
    ),
    "choice": (
        CHAT,
        lambda: {"structured_outputs": {"choice": [f"c{i}" for i in range(40_000)]}},
        400,
        "structured_outputs.choice",
    ),
    "structural_tag": (
        CHAT,
        lambda: {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": f"<{i}>", "schema": {}, "end": "</>"} for i in range(20_000)],
                "triggers": ["<"],
            }
        },
        400,
        "response_format",
    ),
    "xargs": (CHAT, lambda: {"vllm_xargs": {"a": [1] * (MAX_PASSED_THROUGH // 8)}}, 400, "vllm_xargs"),
    "transfer": (CHAT, lambda: {"kv_transfer_params": {"a": "x" * MAX_PASSED_THROUGH}}, 400, "kv_transfer_params"),
}


@pytest.fixture(scope="module")
def bodies() -> dict[str, bytes]:
    """Made once, as some are large."""
    made = {}
    for name, (path, fields, _, _) in BEYOND.items():
        base = {CHAT: chat_body(), COMPLETIONS: {"prompt": "hi"}}.get(path, {})
        made[name] = json.dumps({"model": MODEL, **base, **fields()}).encode()
    return made


async def test_what_is_beyond_a_bound_is_refused_by_name(tmp_path: Path, bodies: dict[str, bytes]) -> None:
    async with open_gateway(tmp_path, HELLO, engine={"max_model_len": 130_000}) as bench:
        for name, (path, _, status, param) in BEYOND.items():
            answer = await bench.http.post(path, content=bodies[name], headers={"content-type": "application/json"})
            assert answer.status_code == status, name
            error = error_of(answer, status)
            assert error["param"] == param, (name, error)
            assert len(answer.content) < 10_000, name
        assert bench.engine.received == []
        await bench.wait_idle()
        assert (await bench.chat()).status_code == 200


async def read_tokens(bench: Bench, seen: list[str], started: trio.Event) -> None:
    async with bench.http.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=5000)) as answer:
        async for line in answer.aiter_lines():
            if '"content"' in line:
                seen.append(line)
                started.set()


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": [' + b",".join([b"1234"] * 1_000_000) + b"]}",
        b'{"x": [' + b",".join([b'"a"'] * 500_000) + b"]}",
        b'{"x": {' + b",".join(b'"k%d": [%d]' % (index, index) for index in range(200_000)) + b"}}",
        b'{"x": "' + b"\\n" * 8_000_000 + b'"}',
    ],
    ids=["numbers", "texts", "keys", "escapes"],
)
async def test_a_stream_goes_on_while_a_heavy_body_is_read(
    tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway(tmp_path, ENDLESS, engine={"step_time_s": 0.002}) as bench, trio.open_nursery() as nursery:
        seen: list[str] = []
        started = trio.Event()
        in_thread: list[Any] = []
        run = bench.gateway.preparer.in_thread

        async def watched(work: Callable[[], Any]) -> Any:
            in_thread.append(work)
            return await run(work)

        # How many tokens come while a thread reads is up to the machine; that a thread reads is not.
        monkeypatch.setattr(bench.gateway.preparer, "in_thread", watched)
        nursery.start_soon(read_tokens, bench, seen, started)
        with trio.fail_after(PATIENCE_S):
            await started.wait()
            before = len(seen)
            error_of(await bench.http.post(CHAT, content=body, timeout=60), 400)
        assert in_thread, "the body was read on the loop"
        assert len(seen) > before
        nursery.cancel_scope.cancel()


async def test_a_long_word_of_a_client_comes_back_short(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    async with open_gateway(tmp_path, HELLO) as bench:
        answers: list[httpx.Response] = [
            await bench.chat(model=long),
            await bench.chat(logit_bias={long: 1}),
            await bench.chat(tool_choice={"type": "function", "function": {"name": long}}, tools=[tool({})]),
            await bench.http.post("/v1/messages", json={"model": long, "messages": HI, "max_tokens": 1}),
            await bench.http.post("/parse/reasoning", json={"text": "a", "reasoning_parser": long}),
            await bench.chat(response_format=schema({long: 1, "properties": {long[:200_000]: 7}})),
        ]
        for answer in answers:
            assert 400 <= answer.status_code < 500
            assert len(answer.content) < 10_000
