"""Tool definitions that careless templates can print too."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.text.tool_forms import simplified_tools


def simplified(schema: Any) -> Any:
    parameters = {"type": "object", "properties": {"p": schema}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    return simplified_tools([tool])[0]["function"]["parameters"]["properties"]["p"]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["null", "integer"]}, "integer"),
        ({"enum": [None, "a"]}, "string"),
        ({"enum": [True]}, "boolean"),
        ({"const": 1.5}, "number"),
        ({"anyOf": [{"type": "null"}, {"type": "array"}]}, "array"),
        ({"oneOf": [{"enum": ["a"]}]}, "string"),
        ({"properties": {}}, "object"),
        ({}, "any"),
        ({"type": None}, "any"),
        (True, "any"),
    ],
)
def test_a_schema_has_one_type(schema: Any, kind: str) -> None:
    assert simplified(schema)["type"] == kind


def test_texts_are_texts_at_every_depth() -> None:
    found = simplified({"type": "array", "items": [{"type": "integer", "enum": [1, 2], "default": 1}, {}]})
    assert found["items"] == {"type": "integer", "enum": [1, 2], "default": "1", "description": ""}
    nested = simplified({"type": "object", "properties": {"a": {"description": None, "default": None}}})
    assert nested["properties"]["a"] == {"type": "any", "description": "", "default": ""}
    assert simplified({"anyOf": [{"type": "string", "default": False}]})["anyOf"][0]["default"] == "false"


def test_a_tool_without_anything_gets_empty_values() -> None:
    bare = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
    assert simplified_tools([bare])[0]["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "description": "", "properties": {}},
    }


def test_the_tools_are_not_changed() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"p": {"default": 1}}}}}
    simplified_tools([tool])
    assert tool["function"]["parameters"]["properties"]["p"] == {"default": 1}  # type: ignore[index]
