"""The parsing endpoints: shapes of the Rust gateways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api import parse_tools as api
from smg_trio.core.errors import InvalidRequest
from smg_trio.core.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart


def test_requests_name_text_and_parser() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    body = json.dumps({"text": "", "tool_call_parser": "qwen", "tools": tools}).encode()
    request = api.parse_function_call_request(body)
    assert (request.text, request.parser, request.tools[0]["function"]["name"]) == ("", "qwen", "f")
    assert api.parse_function_call_request(b'{"text":"a","tool_call_parser":"qwen","tools":[]}').tools == []
    assert api.parse_reasoning_request(b'{"text":"a","reasoning_parser":"qwen3"}').parser == "qwen3"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_call_parser": "x"}, "text"),
        ({"text": 3, "tool_call_parser": "x"}, "text"),
        ({"text": "a"}, "tool_call_parser"),
        ({"text": "a", "tool_call_parser": "x", "tools": [{}]}, "tools[0].function"),
    ],
)
def test_refusals_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        api.parse_function_call_request(json.dumps(fields).encode())
    assert caught.value.param == param


def test_answers_hold_calls_thoughts_and_the_rest() -> None:
    events = [
        ReasoningDelta("hm"),
        ContentDelta("a"),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, '{"a":'),
        ToolCallArguments(0, "1}"),
        ContentDelta("b"),
    ]
    assert json.loads(api.function_call_body(events)) == {
        "remaining_text": "ab",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}],
        "success": True,
    }
    assert json.loads(api.reasoning_body(events)) == {"normal_text": "ab", "reasoning_text": "hm", "success": True}
    assert json.loads(api.parse_failure_body(InvalidRequest("Unknown tool parser: x"))) == {
        "error": "Unknown tool parser: x",
        "success": False,
    }
