"""Tools and tool choice of a chat request.

Tools come out in vLLM's form and key order, since templates print them as JSON and the prompt should be
the same as vLLM's own server would make: ``{"type", "function": {"name", "description", "parameters"}}``
with null for what is absent, plus ``strict`` where it was given; other keys are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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
from smg_trio.api.parameters.schemas import check_schema

if TYPE_CHECKING:
    from smg_trio.core.requests import StructuredOutput

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call.

    Attributes:
        mode: ``none``: text only, markup stays text; ``auto``; ``required``: at least one call;
            ``named``: exactly a call of ``name``.
        name: the tool of ``named``.
        allowed: names the choice is limited to (OpenAI's ``allowed_tools``), or None for all.
        text_format: what holds the text of a named tool that takes plain text; None for other tools.
    """

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None
    allowed: tuple[str, ...] | None = None
    text_format: StructuredOutput | None = None

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a tool call, so that a grammar has to hold it."""
        return self.mode in ("required", "named")


NO_TOOLS = ToolChoice("none")
_AUTO = ToolChoice("auto")


def parse_tools(value: Any, param: str = "tools") -> list[Tool]:
    """Check the tools of a request; absent tools are an empty list.

    Raises:
        InvalidRequest: naming the tool; also for an empty array, as OpenAI and vLLM do.
    """
    if value is None:
        return []
    if array(value, param) == []:
        raise refuse(param, "must not be an empty array; omit it instead")
    return [_tool(tool, f"{param}[{index}]") for index, tool in enumerate(value)]


def _tool(value: Any, param: str) -> Tool:
    tool = mapping(value, param)
    if tool.get("type", "function") != "function":
        raise refuse(f"{param}.type", f"must be 'function', got {describe(tool['type'])}")
    if tool.get("function") is None:
        raise refuse(f"{param}.function", "is required")
    return {"type": "function", "function": _function(tool["function"], f"{param}.function")}


def _function(value: Any, param: str) -> dict[str, Any]:
    function = mapping(value, param)
    if function.get("name") is None:
        raise refuse(f"{param}.name", "is required")
    prefix = f"{param}."
    done: dict[str, Any] = {
        "name": filled_string(function["name"], f"{param}.name"),
        "description": take(function, "description", string, prefix=prefix),
        "parameters": take(function, "parameters", mapping, prefix=prefix),
    }
    if (strict := take(function, "strict", boolean, prefix=prefix)) is not None:
        done["strict"] = strict
    return done


def parse_tool_choice(value: Any, tools: Sequence[Tool], param: str = "tool_choice") -> ToolChoice:
    """Read ``tool_choice``; where it is absent or null, ``auto`` with tools and ``none`` without.

    Raises:
        InvalidRequest: an unknown word or shape, a choice without tools, a name that is no tool's, or a
            forced or strict tool whose parameters are no JSON schema.
    """
    if value == "none" or (value is None and not tools):
        return NO_TOOLS
    if not tools:
        raise refuse(param, "is only allowed when 'tools' are specified")
    choice = _AUTO if value is None else _choice(value, {tool["function"]["name"] for tool in tools}, param)
    if choice.is_forced or any(tool["function"].get("strict") for tool in tools):
        _check_parameters(tools)
    return choice


def _choice(value: Any, names: set[str], param: str) -> ToolChoice:
    if value in ("auto", "required"):
        return ToolChoice(value)
    if not isinstance(value, dict):
        words = "'none', 'auto', 'required' or an object"
        raise refuse(param, f"must be {words}, got {describe(value)}")
    if value.get("type") == "allowed_tools":
        return _allowed_tools(value, names, param)
    if value.get("type", "function") != "function":
        raise refuse(f"{param}.type", f"must be 'function' or 'allowed_tools', got {describe(value['type'])}")
    return ToolChoice("named", name=_tool_name(value, names, param))


def _allowed_tools(value: Mapping[str, Any], names: set[str], param: str) -> ToolChoice:
    # OpenAI nests the list under its own name; the Responses API (and some gateways) keep it flat.
    inner = take(value, "allowed_tools", mapping, prefix=f"{param}.")
    if inner is not None:
        value, param = inner, f"{param}.allowed_tools"
    mode = take(value, "mode", one_of(("auto", "required")), prefix=f"{param}.") or "auto"
    listed = array(value.get("tools"), f"{param}.tools")
    if not listed:
        raise refuse(f"{param}.tools", "must not be an empty array")
    allowed = [_tool_name(mapping(tool, f"{param}.tools"), names, f"{param}.tools") for tool in listed]
    return ToolChoice("required" if mode == "required" else "auto", allowed=tuple(dict.fromkeys(allowed)))


def _tool_name(value: Mapping[str, Any], names: set[str], param: str) -> str:
    """The name in ``{"function": {"name"}}`` or in the flat ``{"name"}``."""
    function = take(value, "function", mapping, prefix=f"{param}.")
    holder, path = (value, param) if function is None else (function, f"{param}.function")
    if holder.get("name") is None:
        raise refuse(f"{path}.name", "is required")
    name = filled_string(holder["name"], f"{path}.name")
    if name not in names:
        raise refuse(param, f"function {describe(name)} not found in 'tools'")
    return name


def _check_parameters(tools: Sequence[Tool]) -> None:
    for index, tool in enumerate(tools):
        if (parameters := tool["function"]["parameters"]) is not None:
            check_schema(parameters, f"tools[{index}].function.parameters")
