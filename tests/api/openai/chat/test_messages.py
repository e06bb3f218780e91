"""Messages: what is well formed passes untouched, what is not is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from smg_trio.api.openai.chat.messages import parse_messages
from smg_trio.core.errors import InvalidRequest

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": [{"type": "text", "text": "A"}, "B"]},
        {"role": "developer", "content": "x", "name": "dev"},
        {"role": "ipython", "content": None},
        {"role": "user"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "tool_calls": None, "reasoning": None},
        {"role": "assistant", "content": "x", "reasoning": "hm"},
        {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"cut'}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]},
        {"role": "user", "content": "x", "vendor": {"anything": 1}},
    ],
)
def test_well_formed_messages_pass_untouched(message: dict[str, Any]) -> None:
    before = copy.deepcopy(message)
    assert parse_messages([message]) == [before]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[1]"),
        (None, "messages[1]"),
        ({}, "messages[1].role"),
        ({"role": None}, "messages[1].role"),
        ({"role": 1}, "messages[1].role"),
        ({"role": ""}, "messages[1].role"),
        ({"role": "user", "content": 1}, "messages[1].content"),
        ({"role": "user", "content": {}}, "messages[1].content"),
        ({"role": "user", "content": [1]}, "messages[1].content[0]"),
        ({"role": "user", "content": ["a", {"text": "x"}]}, "messages[1].content[1].type"),
        ({"role": "user", "content": [{"type": 1}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": "x", "name": 1}, "messages[1].name"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[1].tool_call_id"),
        ({"role": "assistant", "reasoning": ["x"]}, "messages[1].reasoning"),
        ({"role": "assistant", "reasoning_content": 1}, "messages[1].reasoning_content"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[1].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"function": []}]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}, "messages[1].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 1}]}, "messages[1].tool_calls[0].id"),
    ],
)
def test_what_is_malformed_is_refused_by_its_path(message: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages([{"role": "user", "content": "hi"}, message])
    assert caught.value.param == param


@pytest.mark.parametrize("value", [None, [], "hi", {}])
def test_there_must_be_messages(value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages(value)
    assert caught.value.param == "messages"
