"""Chat messages as older versions of the API and other servers write them, in today's form.

Clients send back histories that other servers made: OpenAI's deprecated ``function_call`` and role ``function``, calls
of custom tools, a top-level ``refusal``; reasoning under Ollama's name (``thinking``), OpenRouter's
(``reasoning_details``), LiteLLM's (``thinking_blocks``), or as parts of the content (Mistral).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from smg_trio.api.parameters.fields import array, filled_string, mapping, refuse, string, take
from smg_trio.core.errors import UnsupportedFeature

Message = dict[str, Any]

VARIANT_KEYS: Final = frozenset(
    {"audio", "function_call", "reasoning_details", "refusal", "thinking", "thinking_blocks"}
)
_REASONING_PARTS: Final = ("thinking", "reasoning", "redacted_thinking")


def in_common_form(message: Message, param: str, index: int) -> Message:
    """An assistant's message, checked but for the variants, in today's form; any other stays itself.

    Args:
        message: of role ``assistant``.
        param: how refusals name it.
        index: its place, which calls without an id are named by.

    Raises:
        InvalidRequest: naming the member.
        UnsupportedFeature: it refers to audio that another server keeps.
    """
    if message.get("audio") is not None:
        raise UnsupportedFeature(f"{param}: earlier audio of another server is not supported.", param=f"{param}.audio")
    done = _with_reasoning(message, param)
    if message.get("function_call") is not None and not message.get("tool_calls"):
        done = {**done, "tool_calls": [_call_of_function(message["function_call"], f"{param}.function_call", index)]}
    refusal = take(message, "refusal", string, prefix=f"{param}.")
    return {**done, "content": refusal} if refusal and not done.get("content") else done


def result_of_function(message: Message, param: str, call_id: str | None) -> Message:
    """A message of role ``function`` as the result of the call before it.

    Raises:
        InvalidRequest: there is no such call, so what was asked is unknown.
    """
    if call_id is None:
        raise refuse(param, "a message of role 'function' needs a 'function_call' before it")
    return {**message, "role": "tool", "tool_call_id": call_id}


def custom_call(call: Mapping[str, Any], param: str) -> Message:
    """A call of a custom tool, as a call of a function with the one parameter ``input``."""
    custom = take(call, "custom", mapping, prefix=f"{param}.")
    if custom is None:
        raise refuse(f"{param}.custom", "is required")
    name = take(custom, "name", filled_string, prefix=f"{param}.custom.")
    text = take(custom, "input", string, prefix=f"{param}.custom.")
    if name is None or text is None:
        raise refuse(f"{param}.custom.{'name' if name is None else 'input'}", "is required")
    arguments = json.dumps({"input": text}, ensure_ascii=False)
    return {"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_of_function(value: Any, param: str, index: int) -> Message:
    function = mapping(value, param)
    name = take(function, "name", filled_string, prefix=f"{param}.")
    if name is None:
        raise refuse(f"{param}.name", "is required")
    arguments = take(function, "arguments", string, prefix=f"{param}.")
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _with_reasoning(message: Message, param: str) -> Message:
    """With all reasoning as ``reasoning``; what has the common names already counts, whatever stands beside it."""
    content, text = message.get("content"), ""
    done = message
    if isinstance(content, list) and any(_is_reasoning(part) for part in content):
        text = _joined(_text_of_part(part) for part in content if _is_reasoning(part))
        done = {**message, "content": [part for part in content if not _is_reasoning(part)]}
    if message.get("reasoning") is not None or message.get("reasoning_content") is not None:
        return done
    text = text or _joined(_members_of(message, param))
    return {**done, "reasoning": text} if text else done


def _joined(texts: Iterable[str]) -> str:
    return "\n".join([text for text in texts if text])


def _members_of(message: Message, param: str) -> Iterable[str]:
    if (thinking := take(message, "thinking", string, prefix=f"{param}.")) is not None:
        return [thinking]
    for key in ("thinking_blocks", "reasoning_details"):
        if entries := take(message, key, array, prefix=f"{param}."):
            return [_text_of_part(entry) for entry in entries if isinstance(entry, dict)]
    return []


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _REASONING_PARTS


def _text_of_part(part: Mapping[str, Any]) -> str:
    """The readable text of a part; encrypted ones have none."""
    for key in ("thinking", "text", "summary", "reasoning"):
        value = part.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):  # Mistral's: a list of text parts
            return "".join([_text_of_part(inner) for inner in value if isinstance(inner, dict)])
    return ""
