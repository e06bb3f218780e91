"""Anthropic's tools and tool choice to the chat form. Only the client's own tools: there are no server tools here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smg_trio.api.openai.chat.tools import Tool, ToolChoice, parse_tool_choice
from smg_trio.api.parameters.fields import (
    array,
    boolean,
    describe,
    filled_string,
    mapping,
    one_of,
    refuse,
    string,
    take,
)
from smg_trio.core.errors import UnsupportedFeature


def parse_tools(value: Any, param: str = "tools") -> list[Tool]:
    """The tools in the chat API's form; absent or empty is no tools.

    Raises:
        InvalidRequest: naming the tool.
        UnsupportedFeature: for tools that Anthropic's servers or clients define (``web_search_20250305``, ...).
    """
    if value is None:
        return []
    return [_tool(tool, f"{param}[{index}]") for index, tool in enumerate(array(value, param))]


def _tool(value: Any, param: str) -> Tool:
    tool, prefix = mapping(value, param), f"{param}."
    kind = take(tool, "type", string, prefix=prefix) or "custom"
    if kind != "custom":
        raise UnsupportedFeature(f"{param}: tools of type {describe(kind)} are not supported.", param=f"{param}.type")
    if tool.get("name") is None:
        raise refuse(f"{param}.name", "is required")
    schema = take(tool, "input_schema", mapping, prefix=prefix)
    if schema is None:
        raise refuse(f"{param}.input_schema", "is required")
    function: dict[str, Any] = {
        "name": filled_string(tool["name"], f"{param}.name"),
        "description": take(tool, "description", string, prefix=prefix),
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
    }
    if (strict := take(tool, "strict", boolean, prefix=prefix)) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def parse_choice(value: Any, tools: Sequence[Tool], param: str = "tool_choice") -> tuple[ToolChoice, bool]:
    """The tool choice, and whether several calls are allowed.

    Raises:
        InvalidRequest: an unknown type, a choice without tools, a name that is no tool's.
    """
    if value is None:
        return parse_tool_choice(None, tools, param), True
    choice = mapping(value, param)
    kind = take(choice, "type", one_of(("auto", "any", "tool", "none")), prefix=f"{param}.")
    if kind is None:
        raise refuse(f"{param}.type", "is required")
    alone = take(choice, "disable_parallel_tool_use", boolean, prefix=f"{param}.") or False
    # Agents send "auto" also where they have no tools to offer.
    if kind == "auto" and not tools:
        return parse_tool_choice(None, tools, param), not alone
    return parse_tool_choice(_chat_choice(kind, choice, param), tools, param), not alone


def _chat_choice(kind: str, choice: Mapping[str, Any], param: str) -> Any:
    if kind != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[kind]
    if choice.get("name") is None:
        raise refuse(f"{param}.name", "is required")
    return {"type": "function", "function": {"name": filled_string(choice["name"], f"{param}.name")}}
