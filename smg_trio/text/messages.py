"""Request messages into what chat templates are written for.

Follows vLLM 0.32 (``renderers/chat_utils.py``, ``renderers/hf.py``): content as text or as parts, whichever
the template wants, for every role; reasoning under both of its names; tool-call arguments as mappings;
``developer`` messages as ``system`` ones where the template does not know the role. One difference: broken
arguments in the history stay as the text they are, and become ``{}`` only if the template cannot use text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.core.heavy_json import MAX_DEPTH, decode_heavy
from smg_trio.text.content_format import ContentFormat

_TEXT_KEY_OF_PART: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_PARTS: Final = frozenset(
    {
        "audio_embeds",
        "audio_url",
        "file",
        "image_embeds",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "prompt_embeds",
        "video_embeds",
        "video_url",
    }
)


class TextParts(list[dict[str, Any]]):
    """Content as text parts, which prints as its joined text.

    Some templates loop over parts in one place and print the content as a whole in another; a plain list
    would put Python's notation of it into the prompt there.
    """

    def __str__(self) -> str:
        return "\n".join(part["text"] for part in self)


def normalise_messages(
    messages: Sequence[Mapping[str, Any]],
    content_format: ContentFormat,
    *,
    developer_role: bool = False,
) -> list[dict[str, Any]]:
    """What the template sees; the input is left alone.

    Args:
        messages: Chat Completions messages.
        content_format: ``string``: content is the parts' texts joined with newlines; ``openai``: a list of
            ``{"type": "text", "text": ...}``. Absent content is ``""`` or ``[]``.
        developer_role: whether the template knows the ``developer`` role; if not, such messages become
            ``system`` ones and all system messages are merged into one at the front.

    Raises:
        InvalidRequest: a malformed message; ``param`` says which.
        UnsupportedFeature: a content part that holds media.
    """
    seen = [_normalise(message, content_format, f"messages[{i}]") for i, message in enumerate(messages)]
    if developer_role or all(message["role"] != "developer" for message in seen):
        return seen
    return _merge_system_messages([_as_system(message) for message in seen])


def with_readable_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The messages with every tool-call argument that is still text as ``{}``; None if there is none."""
    if not any(isinstance(_arguments(call), str) for message in messages for call in _calls(message)):
        return None
    return [
        {**message, "tool_calls": [_with_mapping(call) for call in calls]}
        if (calls := _calls(message))
        else dict(message)
        for message in messages
    ]


def _with_mapping(call: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(_arguments(call), str):
        return dict(call)
    return {**call, "function": {**call["function"], "arguments": {}}}


def _calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else ()


def _arguments(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    return function.get("arguments") if isinstance(function, Mapping) else None


def _normalise(message: Mapping[str, Any], content_format: ContentFormat, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where} must be an object with a role.", param=where)
    role = message["role"]
    seen: dict[str, Any] = {"role": role, "content": _content(message, content_format, where)}
    if role == "assistant":
        seen |= _reasoning(message) | _tool_calls(message, where)
    elif role == "tool":
        seen |= _tool_result(message, seen["content"])
    elif role == "developer":
        seen["tools"] = message.get("tools")
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            seen[key] = message[key]
    return seen


def _content(message: Mapping[str, Any], content_format: ContentFormat, where: str) -> Any:
    content = message.get("content")
    if content is None:
        content = []
    elif isinstance(content, str):
        if content_format == "string":
            return content
        content = [content]
    elif not isinstance(content, list):
        raise InvalidRequest(f"{where}.content must be a string or a list of parts.", param=f"{where}.content")
    parts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    if content_format == "openai":
        return TextParts(part for part in parts if part is not None)
    return "\n".join(part["text"] for part in parts if part is not None and part["text"])


def _part(part: Any, where: str) -> dict[str, Any] | None:
    """One content part as a text part; None for one that holds nothing."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"{where} must be a string, or an object with a type.", param=where)
    if kind in _MEDIA_PARTS:
        raise UnsupportedFeature(f"{where}: content of type '{kind}' is not supported.", param=where)
    key = _TEXT_KEY_OF_PART.get(kind)
    if key is None:
        raise InvalidRequest(
            f"{where}: unsupported content part type {kind!r}; supported: {', '.join(_TEXT_KEY_OF_PART)}.",
            param=where,
        )
    text = part.get(key)
    if text is None and kind in ("text", "refusal"):
        return None
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{key} must be a string.", param=where)
    return {"type": "text", "text": text}


def _reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    return {} if reasoning is None else {"reasoning": reasoning, "reasoning_content": reasoning}


def _tool_result(message: Mapping[str, Any], content: Any) -> dict[str, Any]:
    """Results are text for every template: few of those that loop over user content do so here."""
    seen: dict[str, Any] = {"tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}
    return seen | {"content": str(content)}


def _tool_calls(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return {}
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}.tool_calls must be a list.", param=f"{where}.tool_calls")
    return {"tool_calls": [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]}


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise InvalidRequest(f"{where} must be an object of type 'function'.", param=where)
    return {**call, "function": {**function, "arguments": _as_mapping(function.get("arguments"))}}


_LONG_ARGUMENTS = 65_536
_decoder = json.JSONDecoder()


def _as_mapping(arguments: Any) -> Any:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    try:
        if len(arguments) > _LONG_ARGUMENTS:
            parsed = decode_heavy(arguments, _decoder, MAX_DEPTH)
        else:
            parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if parsed is None:
        return {}
    return parsed if isinstance(parsed, dict) else arguments


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "developer":
        return message
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _merge_system_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system texts in one message at the front: many templates take a system message only there."""
    system = [message for message in messages if message["role"] == "system"]
    if len(system) == 1 and messages[0] is system[0]:
        return messages
    texts = [text for message in system if (text := str(message["content"]))]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]
