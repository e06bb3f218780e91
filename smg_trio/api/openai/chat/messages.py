"""Chat messages: is each one well formed? What templates make of them is `text.conversation`'s business.

Checked is what every endpoint with messages shares: roles, the shape of content, parts and replayed tool
calls. The messages come out as they came in, but for older and foreign forms (`message_variants`) and media parts,
which become `core.media.MediaPart`. Any role word is accepted, since models bring their own (``ipython``,
``observation``); which kinds of content parts the model can read is decided with the template.
"""

from __future__ import annotations

from typing import Any

from smg_trio.api.media import is_media, read_part
from smg_trio.api.openai.chat.message_variants import (
    VARIANT_KEYS,
    custom_call,
    in_common_form,
    result_of_function,
)
from smg_trio.api.parameters.fields import array, describe, filled_string, mapping, refuse, string, take
from smg_trio.core.errors import UnsupportedContent

Message = dict[str, Any]

_TEXT_KEYS = ("name", "tool_call_id", "reasoning", "reasoning_content")
_CHECKED_KEYS = frozenset({"tool_calls", *_TEXT_KEYS, *VARIANT_KEYS})


def parse_messages(value: Any, param: str = "messages") -> list[Message]:
    """Check a conversation.

    Args:
        value: the JSON value of ``messages``.
        param: how refusals name the array.

    Raises:
        InvalidRequest: naming the message, part or tool call.
        UnsupportedContent: for media of a kind that is not read.
    """
    if value is None:
        raise refuse(param, "is required")
    messages = array(value, param)
    if not messages:
        raise refuse(param, "must not be an empty array")
    done: list[Message] = []
    last_call_id: str | None = None
    for index, value in enumerate(messages):
        message = _read_message(value, param, index, last_call_id)
        if calls := message.get("tool_calls"):
            last_call_id = str(calls[-1].get("id") or "")
        done.append(message)
    return done


def _read_message(value: Any, array_param: str, index: int, last_call_id: str | None) -> Message:
    message = value if type(value) is dict else mapping(value, f"{array_param}[{index}]")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        _refuse_role(role, f"{array_param}[{index}].role")
    if type(message.get("content")) is str and _CHECKED_KEYS.isdisjoint(message):
        return message
    return _read_extras(message, f"{array_param}[{index}]", index, last_call_id)


def _refuse_role(role: Any, param: str) -> None:
    if role is None:
        raise refuse(param, "is required")
    filled_string(role, param)


def _read_extras(message: Message, param: str, index: int, last_call_id: str | None) -> Message:
    """A message with more than text; `last_call_id`: what a message of role ``function`` answers."""
    prefix = f"{param}."
    content = message.get("content")
    _check_content(content, f"{prefix}content")
    if isinstance(content, list) and any(_holds_media(part) for part in content):
        message = {**message, "content": _with_media(content, message["role"], f"{prefix}content")}
    for key in _TEXT_KEYS:
        take(message, key, string, prefix=prefix)
    calls = take(message, "tool_calls", array, prefix=prefix) or ()
    for place, call in enumerate(calls):
        _check_tool_call(call, f"{prefix}tool_calls[{place}]")
    if any(call.get("type") == "custom" for call in calls):
        message = {**message, "tool_calls": [_as_function(call, f"{prefix}tool_calls") for call in calls]}
    if message["role"] == "function":
        return result_of_function(message, param, last_call_id)
    return in_common_form(message, param, index) if message["role"] == "assistant" else message


def _as_function(call: Message, param: str) -> Message:
    return custom_call(call, param) if call.get("type") == "custom" else call


_TEXT_PARTS = ("text", "input_text", "output_text")


def _check_content(content: Any, param: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise refuse(param, f"expected a string or an array of parts, got {describe(content)}")
    for index, part in enumerate(content):
        if isinstance(part, str):
            continue
        path = f"{param}[{index}]"
        if mapping(part, path).get("type") is None:
            raise refuse(f"{path}.type", "is required")
        kind = string(part["type"], f"{path}.type")
        if kind in _TEXT_PARTS and take(part, "text", string, prefix=f"{path}.") is None:
            raise refuse(f"{path}.text", "is required")


def _holds_media(part: Any) -> bool:
    return not isinstance(part, str) and is_media(part["type"])


def _with_media(content: list[Any], role: str, param: str) -> list[Any]:
    parts = []
    for index, part in enumerate(content):
        path = f"{param}[{index}]"
        if _holds_media(part):
            part = read_part(part, path)
            if role == "assistant":
                problem = f"{path}: media in messages of role 'assistant' are not supported."
                raise UnsupportedContent(problem, param=path)
        parts.append(part)
    return parts


def _check_tool_call(value: Any, param: str) -> None:
    call = mapping(value, param)
    prefix = f"{param}."
    if (kind := take(call, "type", string, prefix=prefix)) not in (None, "function", "custom"):
        raise refuse(f"{param}.type", f"must be 'function' or 'custom', got {describe(kind)}")
    take(call, "id", string, prefix=prefix)
    if kind == "custom":
        custom_call(call, param)
        return
    function = take(call, "function", mapping, prefix=prefix)
    if function is None:
        raise refuse(f"{param}.function", "is required")
    if take(function, "name", string, prefix=f"{prefix}function.") is None:
        raise refuse(f"{param}.function.name", "is required")
