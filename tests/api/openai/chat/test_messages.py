"""Messages: what is well formed passes untouched, what is not is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from smg_trio.api.openai.chat.messages import parse_messages
from smg_trio.core.errors import InvalidRequest, UnsupportedFeature

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


def test_the_deprecated_function_call_is_a_tool_call_and_its_answer_a_result() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "function", "name": "f", "content": "R"}
    _, first, second = parse_messages([{"role": "user", "content": "hi"}, called, answer])
    assert first["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]
    assert second == {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "R"}


def test_a_call_of_a_custom_tool_is_a_call_with_one_text() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "f", "input": 'a "b"\n'}}
    (message,) = parse_messages([{"role": "assistant", "tool_calls": [call, CALL]}])
    function = {"name": "f", "arguments": '{"input": "a \\"b\\"\\n"}'}
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": function}, CALL]


def test_a_refusal_is_what_was_said() -> None:
    refusing = {"role": "assistant", "content": None, "refusal": "No."}
    assert parse_messages([refusing])[0]["content"] == "No."
    assert parse_messages([{**refusing, "content": "x", "refusal": None}])[0]["content"] == "x"


X = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    "said",
    [
        {"thinking": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted", "data": "x"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, X]},
        {"content": [{"type": "redacted_thinking", "data": "z"}, {"type": "text", "text": "x"}], "thinking": "hm"},
    ],
)
def test_reasoning_of_other_servers_is_reasoning(said: dict[str, Any]) -> None:
    (message,) = parse_messages([{"role": "assistant", "content": "x", **said}])
    assert message["reasoning"] == "hm"
    assert message["content"] in ("x", [{"type": "text", "text": "x"}])


def test_reasoning_under_its_common_names_counts_alone() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "a", "reasoning_details": [{"text": "a"}]}
    assert "reasoning" not in parse_messages([said])[0]
    parts = [{"type": "thinking", "thinking": "b"}, {"type": "text", "text": "x"}]
    (message,) = parse_messages([{"role": "assistant", "content": parts, "reasoning": "a"}])
    assert (message["reasoning"], message["content"]) == ("a", parts[1:])


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "function_call": 1}, "messages[1].function_call"),
        ({"role": "assistant", "function_call": {}}, "messages[1].function_call.name"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": {}}}, "messages[1].function_call.arguments"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[1]"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[1].tool_calls[0].custom"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
            "messages[1].tool_calls[0].custom.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f"}}]},
            "messages[1].tool_calls[0].custom.input",
        ),
        ({"role": "assistant", "refusal": 1}, "messages[1].refusal"),
        ({"role": "assistant", "thinking": 1}, "messages[1].thinking"),
        ({"role": "assistant", "reasoning_details": "x"}, "messages[1].reasoning_details"),
    ],
)
def test_what_is_malformed_in_other_forms_is_refused_by_its_path(message: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages([{"role": "user", "content": "hi"}, message])
    assert caught.value.param == param


def test_audio_of_another_server_is_refused() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse_messages([{"role": "assistant", "audio": {"id": "audio_1"}}])
    assert caught.value.param == "messages[0].audio"
