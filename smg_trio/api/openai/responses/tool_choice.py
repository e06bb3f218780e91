"""``tool_choice`` of the Responses API: the chat API's, flat, over tools of every type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smg_trio.api.openai.chat.tools import NO_TOOLS, ToolChoice, parse_tool_choice
from smg_trio.api.openai.responses.tools import OfferedTools, flat_name, is_hosted
from smg_trio.api.parameters.fields import array, describe, filled_string, mapping, refuse, string, take
from smg_trio.core.errors import UnsupportedFeature


def parse_response_choice(value: Any, offered: OfferedTools, param: str = "tool_choice") -> ToolChoice:
    """Read the tool choice; ``auto`` needs no tools, as with OpenAI.

    Raises:
        InvalidRequest: see `tools.parse_tool_choice`; also for a name that several namespaces have.
        UnsupportedFeature: a choice of a hosted tool.
    """
    if value == "auto" and not offered:
        return NO_TOOLS
    if isinstance(value, dict):
        value = _with_flat_names(value, offered, param)
        if value is None:
            return parse_response_choice("auto", offered, param)
    elif value == "required" and offered.servers and not offered:
        return NO_TOOLS  # no server could list its tools, which an item says
    elif value == "required" and offered.left_out and not offered:
        raise refuse(param, "all of 'tools' are hosted tools, which cannot run on this server")
    choice = parse_tool_choice(value, offered.functions, param)
    if choice.mode != "named" or choice.name is None:
        return choice
    format_ = offered.declared[choice.name].format
    return choice if format_ is None else ToolChoice("named", choice.name, text_format=format_.constraint)


def choice_after_call(value: Any) -> Any:
    """The choice that holds once this gateway has called a tool: what was to be forced has been done."""
    if isinstance(value, dict):
        return {**value, "mode": "auto"} if value.get("type") == "allowed_tools" else "auto"
    return "auto" if value == "required" else value


def _with_flat_names(value: dict[str, Any], offered: OfferedTools, param: str) -> dict[str, Any] | None:
    """The choice with the names under which the model knows the tools; None if it wants an MCP server without tools."""
    kind = take(value, "type", string, prefix=f"{param}.") or "function"
    if kind == "mcp" and offered.servers:
        tools = _of_server(value, offered, param)
        if len(tools) == 1 and value.get("name") is not None:
            return tools[0]
        return {"type": "allowed_tools", "mode": "required", "tools": tools} if tools else None
    if kind == "allowed_tools":
        inner = take(value, "allowed_tools", mapping, prefix=f"{param}.") or value
        allowed = _allowed(inner, offered, param)
        return {"type": kind, "mode": inner.get("mode"), "tools": allowed} if allowed or not offered.servers else None
    return _named(value, kind, offered, param)


def _allowed(value: Mapping[str, Any], offered: OfferedTools, param: str) -> list[dict[str, Any]]:
    """The allowed tools, without hosted ones as long as others are left."""
    listed = array(value.get("tools"), f"{param}.tools")
    found: list[dict[str, Any]] = []
    hosted = ""
    for index, tool in enumerate(listed):
        path = f"{param}.tools[{index}]"
        kind = take(mapping(tool, path), "type", string, prefix=f"{path}.") or "function"
        if kind == "mcp" and offered.servers:
            found += _of_server(tool, offered, path)
        elif is_hosted(kind):
            hosted = kind
        elif kind == "namespace":
            found += _all_of(filled_string(tool.get("name"), f"{path}.name"), offered, path)
        else:
            found.append(_named(tool, kind, offered, path))
    if hosted and not found:
        raise _hosted_choice(hosted, f"{param}.tools")
    return found


def _of_server(value: Mapping[str, Any], offered: OfferedTools, param: str) -> list[dict[str, Any]]:
    """The tools of an MCP server that are meant: one by its name, or all; none if the server lists none."""
    label = take(value, "server_label", string, prefix=f"{param}.")
    if label not in [server.label for server in offered.servers]:
        raise refuse(f"{param}.server_label", f"no tool of type 'mcp' in 'tools' has the label {describe(label)}")
    names = [flat for flat, tool in offered.declared.items() if tool.kind == "mcp" and tool.namespace == label]
    name = take(value, "name", string, prefix=f"{param}.")
    if name is not None and names:
        if flat_name(label, name) not in names:
            raise refuse(f"{param}.name", f"server {describe(label)} offers no tool called {describe(name)}")
        names = [flat_name(label, name)]
    return [{"type": "function", "name": flat} for flat in names]


def _all_of(namespace: str, offered: OfferedTools, param: str) -> list[dict[str, Any]]:
    names = [name for name, tool in offered.declared.items() if tool.namespace == namespace]
    if not names:
        raise refuse(f"{param}.name", f"namespace {describe(namespace)} not found in 'tools'")
    return [{"type": "function", "name": name} for name in names]


def _named(value: dict[str, Any], kind: str, offered: OfferedTools, param: str) -> dict[str, Any]:
    """A choice of one tool, which may be named by its flat name, with its namespace, or alone if only one has it."""
    if is_hosted(kind):
        raise _hosted_choice(kind, param)
    if kind not in ("function", "custom"):
        raise UnsupportedFeature(f"Tools of type {describe(kind)} are not supported.", param=f"{param}.type")
    holder = take(value, "function", mapping, prefix=f"{param}.") or value
    name = take(holder, "name", string, prefix=f"{param}.")
    namespace = take(value, "namespace", string, prefix=f"{param}.")
    if not name:
        return {**value, "type": "function"}
    flat = flat_name(namespace, name)
    if namespace is None and flat not in offered.declared:
        flat = _found_in_namespace(name, offered, param)
    declared = offered.declared.get(flat)
    if declared is None or (kind == "custom" and declared.kind != "custom"):
        raise refuse(param, f"{kind} {describe(name)} not found in 'tools'")
    return {"type": "function", "name": flat}


def _found_in_namespace(name: str, offered: OfferedTools, param: str) -> str:
    names = [flat for flat, tool in offered.declared.items() if tool.name == name]
    if len(names) > 1:
        found = ", ".join(f"'{flat}'" for flat in names)
        raise refuse(param, f"{describe(name)} is in more than one namespace; name one of {found}")
    return names[0] if names else name


def _hosted_choice(kind: str, param: str) -> UnsupportedFeature:
    problem = f"'{param}': tools of type {describe(kind)} cannot run on this server, so they cannot be chosen."
    return UnsupportedFeature(problem, param=f"{param}.type")
