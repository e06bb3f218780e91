"""Tools and tool choice."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.api.openai.chat.tools import NO_TOOLS, ToolChoice, parse_tool_choice, parse_tools
from smg_trio.core.errors import InvalidRequest

F = {"type": "function", "function": {"name": "f"}}
G = {"type": "function", "function": {"name": "g"}}
TOOLS = parse_tools([F, G])


def test_tools_come_out_in_the_form_and_order_that_vllm_gives_templates() -> None:
    given = {"function": {"strict": True, "parameters": {"type": "object"}, "name": "f", "x": 1}, "y": 2}
    (tool,) = parse_tools([given])
    assert tool == {
        "type": "function",
        "function": {"name": "f", "description": None, "parameters": {"type": "object"}, "strict": True},
    }
    assert list(tool) == ["type", "function"]
    assert list(tool["function"]) == ["name", "description", "parameters", "strict"]
    assert parse_tools(None) == []


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([], "tools"),
        ({}, "tools"),
        (["f"], "tools[0]"),
        ([F, {}], "tools[1].function"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": None, "function": {"name": "f"}}], "tools[0].type"),
        ([{"function": "f"}], "tools[0].function"),
        ([{"function": {}}], "tools[0].function.name"),
        ([{"function": {"name": ""}}], "tools[0].function.name"),
        ([{"function": {"name": 1}}], "tools[0].function.name"),
        ([{"function": {"name": "f", "description": 1}}], "tools[0].function.description"),
        ([{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
    ],
)
def test_a_malformed_tool_is_refused_by_its_path(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tools(tools)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, ToolChoice("auto")),
        ("none", NO_TOOLS),
        ("auto", ToolChoice("auto")),
        ("required", ToolChoice("required")),
        (F, ToolChoice("named", name="f")),
        ({"function": {"name": "g"}}, ToolChoice("named", name="g")),
        ({"type": "function", "name": "g"}, ToolChoice("named", name="g")),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [F, F]}},
            ToolChoice("required", allowed=("f",)),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}, F]},
            ToolChoice("auto", allowed=("g", "f")),
        ),
    ],
)
def test_every_spelling_of_a_choice(value: Any, choice: ToolChoice) -> None:
    assert parse_tool_choice(value, TOOLS) == choice


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("any", "tool_choice"),
        (1, "tool_choice"),
        ([], "tool_choice"),
        ({}, "tool_choice.name"),
        ({"type": "custom"}, "tool_choice.type"),
        ({"function": {}}, "tool_choice.function.name"),
        ({"function": {"name": ["f"]}}, "tool_choice.function.name"),
        ({"function": {"name": "zzz"}}, "tool_choice"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": ["f"]}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "none", "tools": [F]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [{"name": "x"}]}}, "tool_choice.allowed_tools.tools"),
    ],
)
def test_a_wrong_choice_is_refused_by_its_path(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tool_choice(value, TOOLS)
    assert caught.value.param == param


def test_without_tools_only_none_can_be_chosen() -> None:
    assert parse_tool_choice(None, []) == NO_TOOLS
    assert parse_tool_choice("none", []) == NO_TOOLS
    for value in ("auto", "required", F):
        with pytest.raises(InvalidRequest) as caught:
            parse_tool_choice(value, [])
        assert caught.value.param == "tool_choice"


def test_parameters_of_forced_tools_must_be_a_schema_since_they_become_a_grammar() -> None:
    tools = parse_tools([F, {"function": {"name": "h", "parameters": {"properties": {"a": "b"}}}}])
    assert parse_tool_choice("auto", tools) == ToolChoice("auto")
    for value in ("required", F):
        with pytest.raises(InvalidRequest) as caught:
            parse_tool_choice(value, tools)
        assert caught.value.param == "tools[1].function.parameters.properties.a"
