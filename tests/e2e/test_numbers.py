"""Numbers that no double holds: every body is JSON by a strict parser, and says the same whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .answers import ok, spelt
from .harness import HI, MODEL, Bench, open_gateway

NUMBERS = ["1e999", "-1e999", "9" * 5000]
FORMATS = {
    "hermes": '<tool_call>\n{"name": "put", "arguments": {"v": NUMBER}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=put>\n<parameter=v>\nNUMBER\n</parameter>\n</function>\n</tool_call>",
    "pythonic": "[put(v=NUMBER)]",
    "glm45": "<tool_call>put\n<arg_key>v</arg_key>\n<arg_value>NUMBER</arg_value>\n</tool_call>",
}
V = {"type": "object", "properties": {"v": {"type": "number"}}}
WINDOW = 16384


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def strict(text: str) -> Any:
    """A body as a strict client reads it; numbers as they are written."""
    return json.loads(text, parse_constant=_refuse, parse_int=str, parse_float=str)


async def post(bench: Bench, path: str, **body: Any) -> Any:
    return strict(ok(await bench.http.post(path, json={"model": MODEL} | body)).text)


async def stream(bench: Bench, path: str, **body: Any) -> list[Any]:
    answer = ok(await bench.http.post(path, json={"model": MODEL, "stream": True} | body))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [strict(line) for line in lines if line != "[DONE]"]


async def messages(bench: Bench) -> list[Any]:
    body = {"max_tokens": 9000, "messages": HI, "tools": [{"name": "put", "input_schema": V}]}
    [block] = (await post(bench, "/v1/messages", **body))["content"]
    events = await stream(bench, "/v1/messages", **body)
    pieces = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("partial_json")]
    return [block["input"], strict("".join(pieces))]


async def chat(bench: Bench) -> list[Any]:
    body = {"messages": HI, "tools": [{"type": "function", "function": {"name": "put", "parameters": V}}]}
    choice = (await post(bench, "/v1/chat/completions", **body))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    deltas = [chunk["choices"][0]["delta"] for chunk in await stream(bench, "/v1/chat/completions", **body)]
    pieces = [piece["function"].get("arguments", "") for delta in deltas for piece in delta.get("tool_calls", ())]
    return [strict(call["function"]["arguments"]), strict("".join(pieces))]


async def responses(bench: Bench) -> list[Any]:
    body = {"input": "hi", "tools": [{"type": "function", "name": "put", "parameters": V}]}
    [item] = (await post(bench, "/v1/responses", **body))["output"]
    assert item["status"] == "completed"
    *_, last = await stream(bench, "/v1/responses", **body)
    return [strict(item["arguments"]), strict(last["response"]["output"][0]["arguments"])]


@pytest.mark.parametrize("parser", FORMATS)
async def test_a_calls_number_is_the_same_in_every_api(tmp_path: Path, parser: str) -> None:
    engine, config = {"max_model_len": WINDOW}, {"max_position_embeddings": WINDOW}
    async with open_gateway(tmp_path, 'E["x"]', tool_call_parser=parser, engine=engine, model_config=config) as bench:
        for number in NUMBERS:
            text = FORMATS[parser].replace("NUMBER", number)
            bench.say(spelt(bench, text, 7))
            for api in (messages, chat, responses):
                for value in await api(bench):
                    assert value == {"v": number}, api.__name__
            parsed = {
                "text": text,
                "tool_call_parser": parser,
                "tools": [{"type": "function", "function": {"name": "put", "parameters": V}}],
            }
            [call] = strict(ok(await bench.http.post("/parse/function_call", json=parsed)).text)["tool_calls"]
            assert strict(call["function"]["arguments"]) == {"v": number}


async def test_what_repeats_the_request_is_json_too(tmp_path: Path) -> None:
    body = (
        '{"model": "m", "input": [{"type": "additional_tools", "role": "developer", "tools": [TOOL]}, '
        '{"role": "user", "content": "hi"}], "tools": [TOOL]}'
    ).replace("TOOL", '{"type": "function", "name": "f", "parameters": {"maximum": 1e999}}')
    async with open_gateway(tmp_path) as bench:
        headers = {"content-type": "application/json"}
        shown = strict(ok(await bench.http.post("/v1/responses", content=body, headers=headers)).text)
        assert shown["tools"][0]["parameters"] == {"maximum": None}
        assert strict(ok(await bench.http.get(f"/v1/responses/{shown['id']}")).text) == shown
        items = strict(ok(await bench.http.get(f"/v1/responses/{shown['id']}/input_items")).text)
        assert len(items["data"]) == 2
