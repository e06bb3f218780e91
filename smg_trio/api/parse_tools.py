"""``POST /parse/function_call`` and ``/parse/reasoning``: text that was generated elsewhere, taken apart.

Shapes are the Rust gateways'. Each works under ``/v1`` too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from smg_trio.api.errors import error_view, load_json
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.chat.tools import Tool, parse_tools
from smg_trio.api.parameters.fields import filled_string, refuse, string, take
from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseRequest:
    """A text and the parser that is to read it; ``tools`` only where calls are looked for."""

    text: str
    parser: str
    tools: list[Tool] = field(default_factory=list)


def parse_function_call_request(body: bytes) -> ParseRequest:
    """Read a ``/parse/function_call`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    text, parser = _text_and_parser(obj, "tool_call_parser")
    return ParseRequest(text=text, parser=parser, tools=parse_tools(obj.get("tools") or None))


def parse_reasoning_request(body: bytes) -> ParseRequest:
    """Read a ``/parse/reasoning`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    text, parser = _text_and_parser(load_json(body), "reasoning_parser")
    return ParseRequest(text=text, parser=parser)


def function_call_body(events: Iterable[ParserEvent]) -> bytes:
    """The calls found in a text, and the text around them."""
    content: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, ContentDelta):
            content.append(event.text)
        elif isinstance(event, ToolCallStart):
            calls[event.index] = {"function": {"name": event.name, "arguments": ""}}
        elif isinstance(event, ToolCallArguments):
            calls[event.index]["function"]["arguments"] += event.delta
    found = [call for _, call in sorted(calls.items())]
    return encode_text(dump({"remaining_text": "".join(content), "tool_calls": found, "success": True}))


def reasoning_body(events: Iterable[ParserEvent]) -> bytes:
    """The reasoning found in a text, and the text around it."""
    content: list[str] = []
    reasoning: list[str] = []
    for event in events:
        if isinstance(event, ContentDelta):
            content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
    value = {"normal_text": "".join(content), "reasoning_text": "".join(reasoning), "success": True}
    return encode_text(dump(value))


def parse_failure_body(exc: BaseException) -> bytes:
    """The shape in which these two endpoints fail."""
    return json.dumps({"error": error_view(exc).message, "success": False}).encode("ascii")


def _text_and_parser(obj: dict[str, Any], parser: str) -> tuple[str, str]:
    if obj.get("text") is None:
        raise refuse("text", "is required")
    name = take(obj, parser, filled_string)
    if name is None:
        raise refuse(parser, "is required")
    return string(obj["text"], "text"), name
