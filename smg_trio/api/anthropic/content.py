"""Anthropic's turns to chat messages: content blocks become text, reasoning, tool calls and tool results.

The messages that come out are those that vLLM 0.32 (``entrypoints/anthropic/serving.py``) makes, so that both render
the same prompt. Besides, documents of plain text and search results are read as text, and so is what tools on
Anthropic's servers did. Images stay at their place, in tool results too (vLLM moves those behind the result).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from smg_trio.api.anthropic.server_blocks import SERVER_CALLS, SERVER_RESULTS, server_result_text
from smg_trio.api.anthropic.tools import ToolChange, parse_tool_change
from smg_trio.api.media import read_source
from smg_trio.api.parameters.fields import array, describe, filled_string, mapping, one_of, refuse, string, take
from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.media import MediaPart

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.messages import Message

_BILLING_HEADER: Final = "x-anthropic-billing-header"
"""How a coding agent's per-request header block begins; its hash would defeat every prefix cache."""

Block = Mapping[str, Any]


@dataclass(slots=True)
class Conversation:
    """A conversation as chat messages.

    Attributes:
        messages: system prompt first, if there is one.
        changes: changes of the tools, in order.
        named_tools: tools that are called, or that a search found.
    """

    messages: list[Message] = field(default_factory=list)
    changes: list[ToolChange] = field(default_factory=list)
    named_tools: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Turn:
    """What the blocks of one turn add up to; what stands before the result of a server's tool is in `done`."""

    conversation: Conversation
    role: str
    parts: list[Message] = field(default_factory=list)
    calls: list[Message] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)
    done: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """Tool results first: they answer the turn before, whatever the user says after them."""
        message: Message = {"role": self.role}
        if self.reasoning:
            message["reasoning"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.parts:
            is_text = len(self.parts) == 1 and type(self.parts[0]) is not MediaPart
            message["content"] = self.parts[0]["text"] if is_text else self.parts
        has_news = len(message) > 1 or (self.role == "assistant" and not self.results and not self.done)
        return [*self.done, *self.results, *([message] if has_news else ())]

    def end_with(self, result: Message) -> None:
        """End the message so far with the result of a tool that it called."""
        if self.parts or self.calls or self.reasoning:
            self.done = self.messages()
            self.parts, self.calls, self.reasoning = [], [], []
        self.done.append(result)


def parse_system(value: Any, param: str = "system") -> str | None:
    """The system prompt: a text, or blocks of text whose texts are joined.

    Raises:
        InvalidRequest: anything but text.
    """
    return _system_text(value, param, None)


def _system_text(value: Any, param: str, changes: list[ToolChange] | None) -> str | None:
    """The text; blocks that change tools go to `changes`, and are refused where that is None."""
    if value is None or isinstance(value, str):
        return value or None
    texts = []
    for index, block in enumerate(array(value, param)):
        path = f"{param}[{index}]"
        kind = _kind(block, path)
        if changes is not None and kind in _TOOL_CHANGES:
            changes.append(parse_tool_change(block, path))
        elif kind == "text":
            texts.append(_required(block, "text", string, path))
        else:
            words = ("text",) if changes is None else ("text", *_TOOL_CHANGES)
            raise refuse(f"{path}.type", f"must be {' or '.join(map(repr, words))}, got {describe(kind)}")
    return "".join([text for text in texts if not text.startswith(_BILLING_HEADER)]) or None


def parse_turns(value: Any, param: str = "messages") -> Conversation:
    """The conversation as chat messages.

    Raises:
        InvalidRequest: naming the message or block.
        UnsupportedFeature: for media other than images.
    """
    if value is None:
        raise refuse(param, "is required")
    turns = array(value, param)
    if not turns:
        raise refuse(param, "must not be an empty array")
    conversation = Conversation()
    for index, turn in enumerate(turns):
        conversation.messages += _parse_turn(mapping(turn, f"{param}[{index}]"), f"{param}[{index}]", conversation)
    return conversation


def _parse_turn(turn: Message, param: str, conversation: Conversation) -> list[Message]:
    role = _required(turn, "role", one_of(("user", "assistant", "system")), param)
    content = turn.get("content")
    if role == "system":
        text = _system_text(content, f"{param}.content", conversation.changes)
        return [] if text is None else [{"role": role, "content": text}]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if content is None:
        raise refuse(f"{param}.content", "is required")
    if not isinstance(content, list):
        raise refuse(f"{param}.content", f"expected a string or an array of blocks, got {describe(content)}")
    readers = _USER_BLOCKS if role == "user" else _ASSISTANT_BLOCKS
    parsed = _Turn(conversation, role)
    for index, block in enumerate(content):
        path = f"{param}.content[{index}]"
        _reader(readers, _kind(block, path), role, path)(block, path, parsed)
    return parsed.messages()


BlockReader = Callable[[Block, str, _Turn], None]


def _reader(readers: Mapping[str, BlockReader], kind: str, role: str, param: str) -> BlockReader:
    reader = readers.get(kind)
    if reader is not None:
        return reader
    if kind in _TEXT_BLOCKS or kind in _USER_BLOCKS or kind in _ASSISTANT_BLOCKS or kind in _TOOL_CHANGES:
        raise refuse(f"{param}.type", f"'{kind}' blocks are not allowed in messages of role '{role}'")
    raise UnsupportedFeature(f"{param}: content of type {describe(kind)} is not supported.", param=param)


def _kind(block: Any, param: str) -> str:
    return str(_required(mapping(block, param), "type", filled_string, param))


def _required(obj: Mapping[str, Any], key: str, reader: Callable[[Any, str], Any], param: str) -> Any:
    found = take(obj, key, reader, prefix=f"{param}.")
    if found is None:
        raise refuse(f"{param}.{key}", "is required")
    return found


def _read_text(block: Block, param: str, turn: _Turn) -> None:
    if text := _text_of(block, param):
        turn.parts.append({"type": "text", "text": text})


def _read_image(block: Block, param: str, turn: _Turn) -> None:
    turn.parts.append(read_source(block, param))


def _text_of(block: Block, param: str) -> str:
    kind = block["type"]
    if kind == "text":
        return cast("str", _required(block, "text", string, param))
    if kind == "document":
        return _document_text(block, param)
    if kind == "search_result":
        return _search_result_text(block, param)
    return cast("str", _required(block, "tool_name", string, param))


def _document_text(block: Block, param: str) -> str:
    source = _required(block, "source", mapping, param)
    kind = _kind(source, f"{param}.source")
    if kind == "text":
        text = _required(source, "data", string, f"{param}.source")
    elif kind == "content":
        text = _result_text(source.get("content"), f"{param}.source.content")
    else:
        raise UnsupportedFeature(f"{param}: documents of type {describe(kind)} are not supported.", param=param)
    title = take(block, "title", string, prefix=f"{param}.")
    return f"{title}\n{text}" if title else str(text)


def _search_result_text(block: Block, param: str) -> str:
    title = _required(block, "title", string, param)
    source = _required(block, "source", string, param)
    return f"{title}\n{source}\n{_result_text(block.get('content'), f'{param}.content')}"


def _read_thinking(block: Block, param: str, turn: _Turn) -> None:
    turn.reasoning.append(_required(block, "thinking", string, param))


def _skip_redacted(block: Block, param: str, turn: _Turn) -> None:
    """Opaque to every model but its maker's; clients send it back with the rest of a turn."""


def _read_tool_use(block: Block, param: str, turn: _Turn) -> None:
    arguments = _required(block, "input", mapping, param)
    name = _required(block, "name", filled_string, param)
    turn.conversation.named_tools.add(name)
    turn.calls.append(
        {
            "id": _required(block, "id", filled_string, param),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
    )


def _read_tool_result(block: Block, param: str, turn: _Turn) -> None:
    content = block.get("content")
    turn.results.append(
        {
            "role": "tool",
            "tool_call_id": _required(block, "tool_use_id", filled_string, param),
            "content": _result_content(content, f"{param}.content"),
        }
    )
    if isinstance(content, list):
        turn.conversation.named_tools |= {part["tool_name"] for part in content if part["type"] == "tool_reference"}


def _result_content(content: Any, param: str) -> str | list[Message]:
    """The content of a tool's result: text, or parts where there are images."""
    if not isinstance(content, list) or not any(isinstance(block, Mapping) and _is_image(block) for block in content):
        return _result_text(content, param)
    parts: list[Message] = []
    for index, block in enumerate(content):
        path = f"{param}[{index}]"
        if _kind(block, path) == "image":
            parts.append(read_source(block, path))
        else:
            parts.append({"type": "text", "text": _result_block(block, path)})
    return parts


def _is_image(block: Block) -> bool:
    return block.get("type") == "image"


def _read_server_result(block: Block, param: str, turn: _Turn) -> None:
    call_id = _required(block, "tool_use_id", filled_string, param)
    turn.end_with({"role": "tool", "tool_call_id": call_id, "content": server_result_text(block.get("content"))})


def _result_text(content: Any, param: str) -> str:
    """Nested content as text, block by block on lines of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [_result_block(block, f"{param}[{index}]") for index, block in enumerate(array(content, param))]
    return "\n".join(texts)


def _result_block(block: Any, param: str) -> str:
    if (kind := _kind(block, param)) not in _TEXT_BLOCKS:
        raise UnsupportedFeature(f"{param}: content of type {describe(kind)} is not supported.", param=param)
    return _text_of(block, param)


_TOOL_CHANGES: Final = ("tool_addition", "tool_removal")
_TEXT_BLOCKS: Final = frozenset({"text", "document", "search_result", "tool_reference"})
_USER_BLOCKS: Final[Mapping[str, BlockReader]] = {
    "text": _read_text,
    "image": _read_image,
    "document": _read_text,
    "search_result": _read_text,
    "tool_result": _read_tool_result,
}
_ASSISTANT_BLOCKS: Final[Mapping[str, BlockReader]] = {
    "text": _read_text,
    "thinking": _read_thinking,
    "redacted_thinking": _skip_redacted,
    "tool_use": _read_tool_use,
    **dict.fromkeys(SERVER_CALLS, _read_tool_use),
    **dict.fromkeys(SERVER_RESULTS, _read_server_result),
}
