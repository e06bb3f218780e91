"""Anthropic's tools and tool choice to the chat form. Only the client's own tools: there are no server tools here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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

_SERVER_TOOLS: Final = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset", "advisor")
"""How the types of tools begin that Anthropic's servers run."""


@dataclass(slots=True)
class DeclaredTools:
    """The tools of a request by name, in order.

    Attributes:
        tools: in the chat API's form.
        deferred: names of those that are offered only once something names them (``defer_loading``).
        left_out: types of tools that only Anthropic's servers can run.
    """

    tools: dict[str, Tool] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def add(self, tool: Tool, *, deferred: bool = False) -> None:
        """Declare one more; one of the same name is replaced."""
        name = tool["function"]["name"]
        self.tools[name] = tool
        self.deferred.discard(name)
        if deferred:
            self.deferred.add(name)


@dataclass(frozen=True, slots=True)
class ToolChange:
    """A ``tool_addition`` or ``tool_removal`` block.

    Attributes:
        name: of the tool that is meant.
        tool: the definition of one that is added by value.
        removes: the tool is taken away.
        param: how refusals name the block's tool.
    """

    name: str
    param: str
    tool: Tool | None = None
    removes: bool = False


def parse_tools(value: Any, param: str = "tools") -> DeclaredTools:
    """The tools; absent or empty is no tools.

    Raises:
        InvalidRequest: naming the tool.
        UnsupportedFeature: for tools whose definition only Anthropic's models know (``bash_20250124``, ...).
    """
    declared = DeclaredTools()
    for index, entry in enumerate(array(value, param) if value is not None else ()):
        path = f"{param}[{index}]"
        kind = take(mapping(entry, path), "type", string, prefix=f"{path}.") or "custom"
        if kind.startswith(_SERVER_TOOLS):
            declared.left_out.append(kind)
            continue
        tool = _tool(entry, kind, path)
        if tool["function"]["name"] in declared.tools:
            raise refuse(f"{path}.name", "tool names must be unique")
        declared.add(tool, deferred=bool(take(entry, "defer_loading", boolean, prefix=f"{path}.")))
    return declared


def parse_tool_change(block: Mapping[str, Any], param: str) -> ToolChange:
    """A block that changes the tools in the middle of a conversation.

    Raises:
        InvalidRequest: naming the member.
    """
    removes = block["type"] == "tool_removal"
    change = take(block, "tool", mapping, prefix=f"{param}.")
    if change is None:
        raise refuse(f"{param}.tool", "is required")
    path = f"{param}.tool"
    kinds = ("tool_reference",) if removes else ("tool_reference", "tool_definition")
    if one_of(kinds)(change.get("type"), f"{path}.type") == "tool_reference":
        name = take(change, "name", filled_string, prefix=f"{path}.")
        if name is None:
            raise refuse(f"{path}.name", "is required")
        return ToolChange(name, path, removes=removes)
    definition = take(change, "definition", mapping, prefix=f"{path}.")
    if definition is None:
        raise refuse(f"{path}.definition", "is required")
    kind = take(definition, "type", string, prefix=f"{path}.definition.") or "custom"
    tool = _tool(definition, kind, f"{path}.definition")
    return ToolChange(tool["function"]["name"], path, tool=tool)


def offered_tools(declared: DeclaredTools, changes: Iterable[ToolChange], named: Iterable[str]) -> list[Tool]:
    """The tools in effect at the end of the conversation: templates have one list, at the front.

    Args:
        declared: the request's; changed.
        changes: in the conversation's order.
        named: tools that the conversation names otherwise (found by a search, called): they are not deferred.

    Raises:
        InvalidRequest: a change of a tool that is not declared.
    """
    removed: set[str] = set()
    for change in changes:
        if change.tool is not None:
            declared.add(change.tool)
        elif change.name not in declared.tools:
            raise refuse(f"{change.param}.name", f"tool {describe(change.name)} is not declared in 'tools'")
        declared.deferred.discard(change.name)
        if change.removes:
            removed.add(change.name)
        else:
            removed.discard(change.name)
    kept = {name: tool for name, tool in declared.tools.items() if name not in removed}
    hidden = declared.deferred.difference(named)
    if any(kind.startswith("tool_search_tool") for kind in declared.left_out) or hidden.issuperset(kept):
        hidden = set()  # nothing could find them
    return [tool for name, tool in kept.items() if name not in hidden]


def _tool(tool: Mapping[str, Any], kind: str, param: str) -> Tool:
    prefix = f"{param}."
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
