"""Messages as templates see them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.text.content_format import ContentFormat
from smg_trio.text.messages import normalise_messages, with_readable_arguments

PARTS = [{"type": "text", "text": "A"}, {"type": "input_text", "text": "B"}, "C"]


def one(message: dict[str, Any], content_format: ContentFormat = "string") -> dict[str, Any]:
    (seen,) = normalise_messages([message], content_format)
    return seen


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_string_templates_get_the_joined_text_of_parts_for_every_role(role: str) -> None:
    assert one({"role": role, "content": PARTS})["content"] == "A\nB\nC"


def test_parts_templates_get_text_parts_except_for_tool_results() -> None:
    texts = [{"type": "text", "text": text} for text in "ABC"]
    assert one({"role": "user", "content": PARTS}, "openai")["content"] == texts
    assert one({"role": "user", "content": "A"}, "openai")["content"] == texts[:1]
    assert one({"role": "tool", "content": PARTS}, "openai")["content"] == "A\nB\nC"


@pytest.mark.parametrize(("content_format", "nothing"), [("string", ""), ("openai", [])])
@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
def test_absent_content_is_empty(message: dict[str, Any], content_format: ContentFormat, nothing: Any) -> None:
    assert one(message, content_format)["content"] == nothing


def test_refusals_and_thinking_are_text_and_null_text_is_nothing() -> None:
    parts = [
        {"type": "refusal", "refusal": "no"},
        {"type": "text", "text": None},
        {"type": "thinking", "thinking": "t"},
    ]
    assert one({"role": "assistant", "content": parts})["content"] == "no\nt"


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
        ([1], "[1]"),
    ],
)
def test_arguments_become_a_mapping_or_stay_text(arguments: Any, seen: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = one({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": seen}


@pytest.mark.parametrize("calls", [[], None])
def test_no_tool_calls_are_absent_tool_calls(calls: Any) -> None:
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": calls})


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_offered_under_both_names(key: str) -> None:
    message = one({"role": "assistant", "content": "x", key: "why"})
    assert (message["reasoning"], message["reasoning_content"]) == ("why", "why")


def test_names_and_tool_call_ids_are_kept_and_the_input_is_not_changed() -> None:
    messages = [
        {"role": "user", "name": "eva", "content": PARTS},
        {"role": "tool", "tool_call_id": "7", "content": "ok"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    ]
    before = copy.deepcopy(messages)
    seen = normalise_messages(messages, "string")
    assert (seen[0]["name"], seen[1]["tool_call_id"]) == ("eva", "7")
    assert messages == before


def test_developer_messages_become_one_leading_system_message_where_the_role_is_unknown() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "developer", "content": "D", "tools": []},
    ]
    merged = [{"role": "system", "content": "S\n\nD"}, {"role": "user", "content": "U"}]
    assert normalise_messages(messages, "string") == merged
    kept = normalise_messages(messages, "string", developer_role=True)
    assert [message["role"] for message in kept] == ["system", "user", "developer"]
    alone = normalise_messages(messages[2:] + messages[1:2], "string")
    assert alone == [{"role": "system", "content": "D"}, {"role": "user", "content": "U"}]


def test_system_messages_are_left_where_they_are_without_a_developer_message() -> None:
    messages = [{"role": "user", "content": "U"}, {"role": "system", "content": "S"}]
    assert normalise_messages(messages, "string") == messages


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "hologram"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": ["ok", 5]}, "messages[1].content[1]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[1].content[0]"),
        ({"role": "user", "content": {"text": "x"}}, "messages[1].content"),
        ({"content": "x"}, "messages[1]"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": {"f": 1}}, "messages[1].tool_calls"),
    ],
)
def test_what_cannot_be_shown_to_a_template_is_refused_by_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise_messages([{"role": "user", "content": "ok"}, message], "string")
    assert caught.value.param == param
    assert param in caught.value.message


def test_media_parts_are_an_unsupported_feature() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        one({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
    assert caught.value.param == "messages[0].content[0]"


def test_readable_arguments_replace_only_text() -> None:
    calls = [{"function": {"name": name, "arguments": value}} for name, value in [("f", "broken"), ("g", {"a": 1})]]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
    readable = with_readable_arguments(messages)
    assert readable is not None
    assert [call["function"]["arguments"] for call in readable[1]["tool_calls"]] == [{}, {"a": 1}]
    assert with_readable_arguments(readable) is None
