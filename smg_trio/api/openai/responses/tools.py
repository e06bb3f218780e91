"""Tools and tool choice of the Responses API: the chat API's, but flat. Hosted tools are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smg_trio.api.openai.chat.tools import NO_TOOLS, Tool, ToolChoice, parse_tool_choice
from smg_trio.api.parameters.fields import array, boolean, describe, filled_string, mapping, refuse, string, take
from smg_trio.core.errors import UnsupportedFeature


def parse_flat_tools(value: Any, param: str = "tools") -> list[Tool]:
    """The tools in the chat API's form; absent or empty is no tools.

    Raises:
        InvalidRequest: naming the tool.
        UnsupportedFeature: for any type but ``function``.
    """
    if value is None:
        return []
    return [_tool(mapping(tool, f"{param}[{i}]"), f"{param}[{i}]") for i, tool in enumerate(array(value, param))]


def _tool(tool: dict[str, Any], param: str) -> Tool:
    prefix = f"{param}."
    kind = take(tool, "type", string, prefix=prefix)
    if kind is None:
        raise refuse(f"{param}.type", "is required")
    if kind != "function":
        raise UnsupportedFeature(f"{param}: tools of type {describe(kind)} are not supported.", param=f"{param}.type")
    if tool.get("name") is None:
        raise refuse(f"{param}.name", "is required")
    function: dict[str, Any] = {
        "name": filled_string(tool["name"], f"{param}.name"),
        "description": take(tool, "description", string, prefix=prefix),
        "parameters": take(tool, "parameters", mapping, prefix=prefix),
    }
    if (strict := take(tool, "strict", boolean, prefix=prefix)) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def flat_tool(tool: Tool) -> dict[str, Any]:
    """A tool as the response object shows it."""
    return {"type": "function", "strict": None, **tool["function"]}


def parse_flat_choice(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    """The tool choice; ``auto`` needs no tools, as with OpenAI.

    Raises:
        InvalidRequest: see `parse_tool_choice`.
        UnsupportedFeature: a choice of a hosted tool.
    """
    if value == "auto" and not tools:
        return NO_TOOLS
    kind = value.get("type") if isinstance(value, dict) else "function"
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        raise UnsupportedFeature(f"Tools of type {describe(kind)} are not supported.", param="tool_choice.type")
    return parse_tool_choice(value, tools)
