"""Items of tools that OpenAI's servers or clients define, in conversations that began on another server.

What the model wrote and what came of it is read as calls and results of ordinary tools. Items that hold nothing to read
(a search whose results only that server knew, a list of tools) are left out, which the log says. Items whose content
is hidden or media are not known here and are refused by name: without it the conversation would mean something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smg_trio.api.openai.responses.tools import flat_name
from smg_trio.api.parameters.fields import boolean, filled_string, mapping, refuse, take

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.messages import Message
    from smg_trio.core.conversations import Item

UNREADABLE_ITEMS: Final = frozenset(
    {"web_search_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}
)


@dataclass(frozen=True, slots=True)
class _Call:
    """How a call's item is read: the tool's name, its arguments, and its result if the item holds that too."""

    name: Callable[[Item], str]
    arguments: Callable[[Item], Any]
    result: Callable[[Item], Any] | None = None


def _named(name: str) -> Callable[[Item], str]:
    return lambda item: name


def _member(key: str) -> Callable[[Item], Any]:
    return lambda item: item.get(key)


def _code_outputs(item: Item) -> str:
    outputs = item.get("outputs") or []
    return "\n".join([str(output.get("logs", "")) for output in outputs if isinstance(output, dict)])


def _mcp_name(item: Item) -> str:
    """The name under which this gateway offers the tool."""
    label = item.get("server_label")
    return flat_name(label if isinstance(label, str) and label else None, str(item.get("name")))


def _mcp_result(item: Item) -> Any:
    error = item.get("error")
    if item.get("output") is not None or not isinstance(error, dict):
        return item.get("output") or error
    if error.get("message") is not None:
        return error["message"]
    content = error.get("content")
    texts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(text for text in texts if isinstance(text, str)) or error


_CALLS: Final[Mapping[str, _Call]] = {
    "local_shell_call": _Call(_named("local_shell"), _member("action")),
    "shell_call": _Call(_named("shell"), _member("action")),
    "apply_patch_call": _Call(_named("apply_patch"), _member("operation")),
    "code_interpreter_call": _Call(
        _named("code_interpreter"), lambda item: {"code": item.get("code") or ""}, _code_outputs
    ),
    "file_search_call": _Call(
        _named("file_search"), lambda item: {"queries": item.get("queries") or []}, _member("results")
    ),
    "mcp_call": _Call(_mcp_name, _member("arguments"), _mcp_result),
}
_OUTPUTS: Final = frozenset({"local_shell_call_output", "shell_call_output", "apply_patch_call_output"})

HOSTED_ITEMS: Final = frozenset({*_CALLS, *_OUTPUTS, *UNREADABLE_ITEMS})


def check_hosted_item(item: Item, param: str) -> None:
    """Whether the members that `hosted_messages` reads are there.

    Raises:
        InvalidRequest: naming the member.
    """
    kind, prefix = item["type"], f"{param}."
    for key in ("action", "operation"):
        take(item, key, mapping, prefix=prefix)
    if kind == "mcp_call" and take(item, "name", filled_string, prefix=prefix) is None:
        raise refuse(f"{param}.name", "is required")
    take(item, "approval_request_id", filled_string, prefix=prefix)
    take(item, "approve", boolean, prefix=prefix)
    take(item, "call_id", filled_string, prefix=prefix)
    if kind in _OUTPUTS and item.get("call_id") is None and item.get("id") is None:
        raise refuse(f"{param}.call_id", "is required")


def hosted_call(item: Item) -> Message | None:
    """The item as a call of a tool; None if it is none."""
    reader = _CALLS.get(item["type"])
    if reader is None:
        return None
    arguments = reader.arguments(item)
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return {
        "id": _call_id(item),
        "type": "function",
        "function": {"name": reader.name(item), "arguments": arguments},
    }


def hosted_result(item: Item) -> Message | None:
    """The result of a tool that the item holds, as a message; None if it holds none."""
    if item["type"] in _OUTPUTS:
        result = item.get("output")
    else:
        reader = _CALLS.get(item["type"])
        if reader is None or reader.result is None:
            return None
        result = reader.result(item)
    text = result if isinstance(result, str) else "" if result is None else json.dumps(result, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": _call_id(item), "content": text}


def declined_call(request: Item, response: Item) -> tuple[Message, Message]:
    """A call of an MCP tool that the client did not approve, and what the model gets for a result."""
    call: Message = {
        "id": request["id"],
        "type": "function",
        "function": {"name": _mcp_name(request), "arguments": str(request.get("arguments") or "{}")},
    }
    reason = response.get("reason")
    text = "The call was not approved." + (f" Reason: {reason}" if isinstance(reason, str) and reason else "")
    return call, {"role": "tool", "tool_call_id": request["id"], "content": text}


def left_out_notes(items: Iterable[Item], *, mcp: bool = False) -> list[str]:
    """What the log should say of items that are left out of the prompt; `mcp`: those of MCP servers have their use."""
    kinds = {item["type"] for item in items if item["type"] in UNREADABLE_ITEMS}
    if mcp:
        kinds = {kind for kind in kinds if not kind.startswith("mcp_")}
    notes = [f"items of type {kind} hold nothing that a model could read: left out" for kind in sorted(kinds)]
    if any(item["type"] == "reasoning" and not (item["content"] or item["summary"]) for item in items):
        notes.append("encrypted reasoning of another server cannot be read: left out")
    return notes


def _call_id(item: Item) -> str:
    return str(item.get("call_id") or item["id"])
