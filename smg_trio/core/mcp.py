"""Servers of the Model Context Protocol (MCP): what a request says of one, its tools, and what a call came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smg_trio.core.errors import ClientFault


class McpServerNotAllowed(ClientFault):
    """The URL of a server is not one that this gateway connects to."""

    code = "mcp_server_not_allowed"


class McpFailure(Exception):
    """A server could not be asked, or did not do what was asked: shown in an item, never as an HTTP status.

    Attributes:
        message: for the client and the model; names no address.
        kind: of the error in the Responses API.
        code: an HTTP status, or a code of JSON-RPC, where `kind` has one.
    """

    def __init__(self, message: str, kind: str = "mcp_tool_execution_error", code: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.code = code

    def value(self) -> dict[str, Any]:
        """The error object of a call."""
        if self.kind == "mcp_tool_execution_error":
            return {"type": self.kind, "content": [{"type": "text", "text": self.message}]}
        return {"type": self.kind, "code": self.code, "message": self.message}


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server, as the server describes it."""

    name: str
    description: str | None = None
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Any] | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether the server says so; a hint, not a promise."""
        return bool((self.annotations or {}).get("readOnlyHint"))


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Some tools of a server: those of these names, if given, that are read-only or not, if given."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def takes(self, tool: McpTool) -> bool:
        """Whether the tool is one of them."""
        if self.names is not None and tool.name not in self.names:
            return False
        return self.read_only is None or tool.is_read_only == self.read_only


@dataclass(frozen=True, slots=True)
class McpServer:
    """What a request says of a server.

    Attributes:
        label: what items call it.
        url: as the client wrote it.
        headers: that go along with every request to it; secrets may be among them.
        param: where in the request it stands, for errors.
        allowed: the tools that are offered; None for all.
        approved: the tools that are called without asking first.
    """

    label: str
    url: str
    param: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    allowed: ToolFilter | None = None
    approved: ToolFilter | None = None

    def offers(self, tool: McpTool) -> bool:
        """Whether the model may call the tool."""
        return self.allowed is None or self.allowed.takes(tool)

    def needs_approval(self, tool: McpTool) -> bool:
        """Whether the client is asked before each call of the tool."""
        return self.approved is None or not self.approved.takes(tool)


@dataclass(frozen=True, slots=True)
class McpResult:
    """What a call came to: a text for the model, or a failure."""

    output: str | None = None
    failure: McpFailure | None = None
