"""Chat messages: is each one well formed? What templates make of them is `text.messages`' business.

Checked is what every endpoint with messages shares: roles, the shape of content, parts and replayed tool
calls. The messages come out as they came in. Any role word is accepted, since models bring their own
(``ipython``, ``observation``); which kinds of content parts the model can read is decided with the template.
"""

from __future__ import annotations

from typing import Any

from smg_trio.api.parameters.fields import array, describe, filled_string, mapping, refuse, string, take

Message = dict[str, Any]

_TEXT_KEYS = ("name", "tool_call_id", "reasoning", "reasoning_content")
_CHECKED_KEYS = frozenset({"tool_calls", *_TEXT_KEYS})


def parse_messages(value: Any, param: str = "messages") -> list[Message]:
    """Check a conversation.

    Args:
        value: the JSON value of ``messages``.
        param: how refusals name the array.

    Raises:
        InvalidRequest: naming the message, part or tool call.
    """
    if value is None:
        raise refuse(param, "is required")
    messages = array(value, param)
    if not messages:
        raise refuse(param, "must not be an empty array")
    for index, message in enumerate(messages):
        _check_message(message, param, index)
    return messages


def _check_message(value: Any, array_param: str, index: int) -> None:
    message = value if type(value) is dict else mapping(value, f"{array_param}[{index}]")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        _refuse_role(role, f"{array_param}[{index}].role")
    if type(message.get("content")) is str and _CHECKED_KEYS.isdisjoint(message):
        return
    _check_extras(message, f"{array_param}[{index}].")


def _refuse_role(role: Any, param: str) -> None:
    if role is None:
        raise refuse(param, "is required")
    filled_string(role, param)


def _check_extras(message: Message, prefix: str) -> None:
    _check_content(message.get("content"), f"{prefix}content")
    for key in _TEXT_KEYS:
        take(message, key, string, prefix=prefix)
    for index, call in enumerate(take(message, "tool_calls", array, prefix=prefix) or ()):
        _check_tool_call(call, f"{prefix}tool_calls[{index}]")


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


def _check_tool_call(value: Any, param: str) -> None:
    call = mapping(value, param)
    prefix = f"{param}."
    if (kind := take(call, "type", string, prefix=prefix)) not in (None, "function"):
        raise refuse(f"{param}.type", f"must be 'function', got {describe(kind)}")
    take(call, "id", string, prefix=prefix)
    function = take(call, "function", mapping, prefix=prefix)
    if function is None:
        raise refuse(f"{param}.function", "is required")
    if take(function, "name", string, prefix=f"{prefix}function.") is None:
        raise refuse(f"{param}.function.name", "is required")
