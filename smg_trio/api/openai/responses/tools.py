"""Tools of the Responses API, made into the chat API's functions.

A model is offered functions only. So a ``namespace`` offers each of its tools as ``NAMESPACE__NAME`` (vLLM's spelling),
a ``custom`` tool is a function of one string, and tools that a server of OpenAI's runs are left out. Those of MCP
servers become functions once the servers have listed them (`offered_by`). `OfferedTools` remembers what the client
declared, so that a call is shown as a call of that (`output`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from smg_trio.api.openai.responses.custom_tools import CustomFormat, custom_parameters, read_custom_format
from smg_trio.api.openai.responses.mcp_servers import parse_mcp_tool, shown_mcp_tool
from smg_trio.api.parameters.fields import array, boolean, describe, filled_string, mapping, refuse, string, take
from smg_trio.core.errors import UnsupportedFeature

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.tools import Tool
    from smg_trio.core.mcp import McpServer, McpTool

NAMESPACE_SEPARATOR: Final = "__"
_MAX_SERVERS: Final = 16
_HOSTED: Final = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview",
    }
)
_DATED: Final = re.compile(r"(\w+?)_\d{4}_\d{2}_\d{2}")


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """What a function that the model may call is to the client.

    Attributes:
        name: the tool's own name, without its namespace.
        kind: whether a call of it is a ``function_call``, a ``custom_tool_call`` or an ``mcp_call``.
        namespace: of a tool of an MCP server, the server's label.
        format: of a custom tool's input.
        needs_approval: the client is asked before this gateway calls it.
    """

    name: str
    kind: Literal["function", "custom", "mcp"] = "function"
    namespace: str | None = None
    format: CustomFormat | None = None
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request.

    Attributes:
        functions: what the model is offered, in the chat API's form.
        declared: the name of each function to what the client declared.
        left_out: types of hosted tools that were declared and cannot be offered.
        servers: MCP servers, whose tools are not among the functions before they are listed.
    """

    functions: tuple[Tool, ...] = ()
    declared: Mapping[str, DeclaredTool] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    servers: tuple[McpServer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.functions)

    def joined(self, later: OfferedTools) -> OfferedTools:
        """These and `later` ones; a later tool takes the place of one of the same name."""
        if not (later.functions or later.left_out or later.servers):
            return self
        by_name = {tool["function"]["name"]: tool for tool in (*self.functions, *later.functions)}
        return OfferedTools(
            tuple(by_name.values()),
            {**self.declared, **later.declared},
            self.left_out | later.left_out,
            self.servers + later.servers,
        )


NO_OFFER: Final = OfferedTools()


def flat_name(namespace: str | None, name: str) -> str:
    """The name under which the model knows a tool."""
    return name if namespace is None else f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def called_tool(name: str, declared: Mapping[str, DeclaredTool], labels: Iterable[str]) -> DeclaredTool | None:
    """What a function is that the model calls: as declared, or one that a server does not have; None if unknown."""
    if (tool := declared.get(name)) is not None:
        return tool
    for label in labels:
        if name.startswith(prefix := flat_name(label, "")):
            return DeclaredTool(name.removeprefix(prefix), "mcp", label)
    return None


def offered_by(server: McpServer, tools: Iterable[McpTool]) -> OfferedTools:
    """Those tools of a server that the request wants, as functions of the model."""
    functions: list[Tool] = []
    declared: dict[str, DeclaredTool] = {}
    for tool in tools:
        name = flat_name(server.label, tool.name)
        if server.offers(tool) and name not in declared:
            function = {"name": name, "description": tool.description, "parameters": dict(tool.input_schema)}
            functions.append({"type": "function", "function": function})
            approval = server.needs_approval(tool)
            declared[name] = DeclaredTool(tool.name, "mcp", server.label, needs_approval=approval)
    return OfferedTools(tuple(functions), declared)


def parse_response_tools(value: Any, param: str = "tools", *, mcp: bool = False) -> OfferedTools:
    """Read an array of tools; absent or empty is no tools. `mcp`: whether this gateway calls MCP servers.

    Raises:
        InvalidRequest: naming the tool; also where two tools have one name for the model.
        UnsupportedFeature: a type of tool that is not known.
    """
    if value is None:
        return NO_OFFER
    functions: dict[str, Tool] = {}
    declared: dict[str, DeclaredTool] = {}
    left_out: set[str] = set()
    servers: dict[str, McpServer] = {}
    for index, entry in enumerate(array(value, param)):
        path = f"{param}[{index}]"
        kind = _kind(mapping(entry, path), path)
        if mcp and kind == "mcp":
            server = parse_mcp_tool(entry, path)
            if len(servers) == _MAX_SERVERS:
                raise refuse(param, f"at most {_MAX_SERVERS} tools of type 'mcp' are allowed")
            if server.label in servers:
                raise refuse(f"{path}.server_label", f"more than one server is called {describe(server.label)}")
            servers[server.label] = server
            continue
        if is_hosted(kind):
            left_out.add(_undated(kind))
            continue
        for tool in _entry(entry, kind, path):
            if tool.name in functions:
                raise refuse(f"{tool.param}.name", f"more than one tool is called {describe(tool.name)}")
            functions[tool.name] = {"type": "function", "function": {"name": tool.name, **tool.function}}
            declared[tool.name] = tool.declared
    return OfferedTools(tuple(functions.values()), declared, frozenset(left_out), tuple(servers.values()))


def is_hosted(kind: str) -> bool:
    """Whether tools of this type run on a server of OpenAI's (or are built into its models)."""
    return _undated(kind) in _HOSTED


def _undated(kind: str) -> str:
    """A type without the date of its version."""
    dated = _DATED.fullmatch(kind)
    return dated[1] if dated else kind


def _kind(tool: Mapping[str, Any], param: str) -> str:
    kind = take(tool, "type", string, prefix=f"{param}.")
    if kind is None:
        raise refuse(f"{param}.type", "is required")
    return str(kind)


@dataclass(frozen=True, slots=True)
class _Tool:
    """One tool that can be offered: where it stands, and its function's members beside the name."""

    param: str
    declared: DeclaredTool
    function: dict[str, Any]

    @property
    def name(self) -> str:
        return flat_name(self.declared.namespace, self.declared.name)


def _entry(entry: dict[str, Any], kind: str, param: str) -> Iterator[_Tool]:
    """The tools that one entry declares."""
    if kind != "namespace":
        yield _tool(entry, kind, param)
        return
    namespace = _name(entry, param)
    for index, value in enumerate(array(entry.get("tools"), f"{param}.tools")):
        path = f"{param}.tools[{index}]"
        inner = mapping(value, path)
        yield _tool(inner, _kind(inner, path), path, namespace)


def _tool(tool: dict[str, Any], kind: str, param: str, namespace: str | None = None) -> _Tool:
    prefix = f"{param}."
    if kind not in ("function", "custom"):
        raise UnsupportedFeature(f"{param}: tools of type {describe(kind)} are not supported.", param=f"{param}.type")
    name = _name(tool, param)
    function: dict[str, Any] = {"description": take(tool, "description", string, prefix=prefix)}
    if kind == "custom":
        format_ = read_custom_format(tool.get("format"), f"{param}.format")
        function["parameters"] = custom_parameters(format_)
        return _Tool(param, DeclaredTool(name, "custom", namespace, format_), function)
    function["parameters"] = take(tool, "parameters", mapping, prefix=prefix)
    if (strict := take(tool, "strict", boolean, prefix=prefix)) is not None:
        function["strict"] = strict
    return _Tool(param, DeclaredTool(name, "function", namespace), function)


def _name(tool: Mapping[str, Any], param: str) -> str:
    if tool.get("name") is None:
        raise refuse(f"{param}.name", "is required")
    return filled_string(tool["name"], f"{param}.name")


def shown_tools(value: Any) -> list[dict[str, Any]]:
    """Tools as the response object repeats them: as they were declared, functions with all their members."""
    return [_shown(tool) for tool in value or ()]


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool["type"] == "mcp":
        return shown_mcp_tool(tool)
    if tool["type"] != "function":
        return dict(tool)
    members = ("name", "description", "parameters", "strict")
    return {"type": "function", **{name: tool.get(name) for name in members}}
