"""Output items that tell of MCP servers, as far as they have come: a list of tools, a call, a request for approval.

Their members and their events are those of OpenAI's API (openai-python 3.57, ``types/responses``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smg_trio.api.openai.responses.mcp_items import tool_value

if TYPE_CHECKING:
    from smg_trio.api.openai.responses.tools import DeclaredTool
    from smg_trio.core.conversations import Item
    from smg_trio.core.mcp import McpFailure, McpTool

WorkKind = Literal["list", "call", "approval"]
_PREFIXES: dict[WorkKind, str] = {"list": "mcpl", "call": "mcp", "approval": "mcpr"}


@dataclass(slots=True)
class McpWork:
    """What an item is about, beside the name and the arguments of a call.

    Attributes:
        label: of the server.
        approved: the request for approval that a call was approved by.
        tools: of a list that has come.
        failure: of a list or call.
        output: of a call that has succeeded.
    """

    kind: WorkKind
    label: str
    approved: str | None = None
    tools: Sequence[McpTool] = ()
    failure: McpFailure | None = None
    output: str | None = None

    @property
    def prefix(self) -> str:
        """What the item's id begins with."""
        return _PREFIXES[self.kind]

    @property
    def events(self) -> str:
        """What the names of its events begin with."""
        return "response.mcp_list_tools" if self.kind == "list" else "response.mcp_call"

    def value(self, common: Item, name: str, arguments: str) -> Item:
        """The item; `common`: its id and status."""
        failure = self.failure
        if self.kind == "list":
            shown: dict[str, Any] = {"tools": [tool_value(tool) for tool in self.tools]}
            if failure is not None:
                shown["error"] = failure.message
            return {"type": "mcp_list_tools", "id": common["id"], "server_label": self.label, **shown}
        call = {"server_label": self.label, "name": name, "arguments": arguments}
        if self.kind == "approval":
            return {"type": "mcp_approval_request", "id": common["id"], **call}
        error = None if failure is None else failure.value()
        return {
            "type": "mcp_call",
            **common,
            **call,
            "approval_request_id": self.approved,
            "output": self.output,
            "error": error,
        }


def work_of(tool: DeclaredTool) -> McpWork | None:
    """What a call of the tool is about; None if it is none of an MCP server."""
    if tool.kind != "mcp":
        return None
    return McpWork("approval" if tool.needs_approval else "call", tool.namespace or "")
