"""Items that tell of MCP servers: what this gateway needs to know of those in a conversation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smg_trio.api.parameters.fields import describe, refuse
from smg_trio.core.mcp import McpTool

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A call that waited for the client's approval and has it now."""

    request_id: str
    label: str
    name: str
    arguments: str


def approved_calls(
    history: Sequence[Item], own: Sequence[Item], labels: Collection[str], param: str = "input"
) -> list[ApprovedCall]:
    """The calls that a request's items approve, and that have not been made yet.

    Args:
        history: items from before the request.
        own: the request's items, references resolved.
        labels: of the servers that the request names.

    Raises:
        InvalidRequest: an approval of what was not asked for, or of a call to a server that the request does not name.
    """
    items = [*history, *own]
    asked = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
    made = {item.get("approval_request_id") for item in items if item["type"] == "mcp_call"}
    calls: dict[str, ApprovedCall] = {}
    for index, item in enumerate(own):
        if item["type"] != "mcp_approval_response" or item.get("approval_request_id") in made:
            continue
        path = f"{param}[{index}]"
        for member in ("approval_request_id", "approve"):
            if item.get(member) is None:
                raise refuse(f"{path}.{member}", "is required")
        request_id = item["approval_request_id"]
        request = asked.get(request_id)
        if request is None:
            raise refuse(f"{path}.approval_request_id", f"no approval request has the id {describe(request_id)}")
        if not item["approve"]:
            continue
        label = request.get("server_label")
        if label not in labels:
            problem = f"approves a call to {describe(label)}, but no tool of type 'mcp' in 'tools' has that label"
            raise refuse(f"{path}.approval_request_id", problem)
        calls[request_id] = ApprovedCall(
            request_id, str(label), str(request.get("name")), str(request.get("arguments") or "{}")
        )
    return list(calls.values())


def listed_tools(items: Sequence[Item], label: str) -> list[McpTool] | None:
    """The tools of a server as the conversation's last list has them; None if they are to be listed."""
    for item in reversed(items):
        if item["type"] == "mcp_list_tools" and item.get("server_label") == label:
            tools = item.get("tools")
            if item.get("error") is not None or not isinstance(tools, list):
                return None
            read = [_listed(tool) for tool in tools]
            return [tool for tool in read if tool is not None] if all(read) else None
    return None


def _listed(value: Any) -> McpTool | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    description, schema, annotations = (value.get(key) for key in ("description", "input_schema", "annotations"))
    return McpTool(
        value["name"],
        description if isinstance(description, str) else None,
        schema if isinstance(schema, dict) else {},
        annotations if isinstance(annotations, dict) else None,
    )


def tool_value(tool: McpTool) -> Item:
    """A tool as a list shows it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": dict(tool.input_schema),
        "annotations": None if tool.annotations is None else dict(tool.annotations),
    }
