"""Items to chat messages, as vLLM 0.32 (``entrypoints/openai/responses/utils.py``) renders them.

What one assistant turn said comes in several items (reasoning, a text, calls); they become one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from smg_trio.api.media import is_media, read_part
from smg_trio.api.openai.responses.custom_tools import custom_arguments
from smg_trio.api.openai.responses.hosted_items import HOSTED_ITEMS, declined_call, hosted_call, hosted_result
from smg_trio.api.openai.responses.tools import flat_name

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.messages import Message
    from smg_trio.core.conversations import Item


def item_name(item: Item) -> str:
    """What refusals call an item that is kept."""
    return f"item '{item.get('id')}'"


def messages_of(items: Iterable[Item], name: Callable[[Item], str] = item_name) -> list[Message]:
    """The conversation that complete items (see `items.parse_items`) without references make.

    Args:
        items: in their order.
        name: what refusals that come later, of media, call an item.
    """
    messages: list[Message] = []
    asked: dict[str, Item] = {}
    for item in items:
        kind = item["type"]
        if kind == "mcp_approval_request":
            asked[item["id"]] = item
        elif kind == "mcp_approval_response":
            _add_declined(messages, asked.get(item.get("approval_request_id", "")), item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            content = _content(item, "output", name) or _joined(item["output"], "\n")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind in ("function_call", "custom_tool_call"):
            _turn(messages).setdefault("tool_calls", []).append(_call(item))
        elif kind in HOSTED_ITEMS:
            _add_hosted(messages, item)
        elif kind == "reasoning":
            if text := _joined(item.get("content") or item["summary"]):
                _say(messages, "reasoning", text)
        elif kind == "agent_message":
            messages.append({"role": "user", "content": _content(item, "content", name) or _joined(item["content"])})
        elif item["role"] == "assistant":
            _say(messages, "content", _joined(item["content"]))
        else:
            content = _content(item, "content", name) or _user_content(item["content"])
            messages.append({"role": item["role"], "content": content})
    return messages


def _add_hosted(messages: list[Message], item: Item) -> None:
    if (call := hosted_call(item)) is not None:
        _turn(messages).setdefault("tool_calls", []).append(call)
    if (result := hosted_result(item)) is not None:
        messages.append(result)


def _add_declined(messages: list[Message], request: Item | None, response: Item) -> None:
    """A call that was approved comes as an item of its own."""
    if request is not None and response.get("approve") is False:
        call, result = declined_call(request, response)
        _turn(messages).setdefault("tool_calls", []).append(call)
        messages.append(result)


def _turn(messages: list[Message]) -> Message:
    """The assistant's message that is still going on, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _say(messages: list[Message], key: str, text: str) -> None:
    turn = _turn(messages)
    if key in turn:
        turn = {"role": "assistant"}
        messages.append(turn)
    turn[key] = text


def _call(item: Item) -> dict[str, Any]:
    is_custom = item["type"] == "custom_tool_call"
    arguments = custom_arguments(item["input"]) if is_custom else item["arguments"]
    function = {"name": flat_name(item.get("namespace"), item["name"]), "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _joined(content: str | list[Item], separator: str = "") -> str:
    if isinstance(content, str):
        return content
    return separator.join([part.get("text") or part.get("refusal") or "" for part in content])


def _content(item: Item, member: str, name: Callable[[Item], str]) -> list[Any] | None:
    """Content with media in it as parts; None where there is none."""
    parts = item[member]
    if not isinstance(parts, list) or not any(is_media(part["type"]) for part in parts):
        return None
    return [
        read_part(part, f"{name(item)}.{member}[{index}]")
        if is_media(part["type"])
        else {"type": "text", "text": part["text"]}
        for index, part in enumerate(parts)
    ]


def _user_content(parts: list[Item]) -> str | list[Message]:
    if len(parts) == 1:
        return str(parts[0]["text"])
    return [{"type": "text", "text": part["text"]} for part in parts]
