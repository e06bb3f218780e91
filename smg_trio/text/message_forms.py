"""One message of a request in the form that a template reads: content, reasoning, tool calls.

Follows vLLM 0.32 (``renderers/chat_utils.py``, ``renderers/hf.py``): content as text or as parts, whichever the
template wants, for every role; tool-call arguments as mappings where the template does not ask for text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import InvalidRequest, UnsupportedContent
from smg_trio.core.heavy_json import MAX_DEPTH, decode_heavy
from smg_trio.core.media import MediaPart

if TYPE_CHECKING:
    from smg_trio.text.media_marks import MediaMarks
    from smg_trio.text.template_traits import TemplateTraits

Message = dict[str, Any]

_TEXT_KEY_OF_PART: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


class TextParts(list[dict[str, Any]]):
    """Content as parts, which prints as its joined text.

    Some templates loop over parts in one place and print the content as a whole in another; a plain list
    would put Python's notation of it into the prompt there.

    A part may be media (`core.media.MediaPart`), which has no text.
    """

    def __str__(self) -> str:
        return "\n".join([part["text"] for part in self if "text" in part])


def as_content(text: str | TextParts | None, role: str, traits: TemplateTraits) -> str | TextParts:
    """A text as content of a message of that role; None is ``""`` or no parts. Parts (with media) stay parts."""
    if isinstance(text, TextParts):
        return text
    if traits.content == "string" or role in traits.text_roles or role == "tool":
        return text or ""
    return TextParts(() if text is None else [{"type": "text", "text": text}])


Content = str | TextParts


def has_media(content: Any) -> bool:
    """Whether content that `normalise` made holds media."""
    return isinstance(content, TextParts) and any(type(part) is MediaPart for part in content)


def join_contents(contents: Sequence[Any], separator: str) -> Content:
    """Contents as one: a text, or parts where there is media in them; empty ones are left out."""
    if not any(has_media(content) for content in contents):
        return separator.join([text for content in contents if (text := str(content))])
    parts = TextParts()
    for content in contents:
        added = content if isinstance(content, TextParts) else [{"type": "text", "text": content}] if content else []
        if parts and added:
            parts.append({"type": "text", "text": separator})
        parts += added
    return parts


def empty_turn(role: str, traits: TemplateTraits) -> Message:
    """A turn in which nothing is said, between two that the template does not let stand side by side."""
    return {"role": role, "content": as_content(traits.empty_turn, role, traits)}


def normalise(
    message: Mapping[str, Any], traits: TemplateTraits, where: str, marks: MediaMarks | None = None
) -> Message:
    """A message of a request as the template reads it; the input is left alone.

    Args:
        message: checked by ``api.openai.chat.messages.parse_messages``.
        traits: the template's.
        where: what refusals call the message.
        marks: for media that has to be in a text; None where media cannot be in the prompt.

    Raises:
        InvalidRequest: a content part of a kind that is not known; ``param`` says which.
        UnsupportedContent: media without `marks`.
    """
    role = message["role"]
    if role == "developer" and not traits.developer:
        role = "system"
    seen: Message = {"role": role, "content": _content(message.get("content"), role, traits, where, marks)}
    if role == "assistant":
        _add_what_was_said(seen, message, traits)
    elif role == "tool":
        if "tool_call_id" in message:
            seen["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        seen["tools"] = message.get("tools")
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            seen[key] = message[key]
    return seen


# --- content -------------------------------------------------------------------------------------


def _content(content: Any, role: str, traits: TemplateTraits, where: str, marks: MediaMarks | None) -> str | TextParts:
    if content is None or isinstance(content, str):
        return as_content(content, role, traits)
    if any(type(part) is MediaPart for part in content):
        if marks is None:
            source = next(part.source for part in content if type(part) is MediaPart)
            problem = f"{source.where}: this model's conversations cannot hold media."
            raise UnsupportedContent(problem, param=source.where)
        if marks.in_parts and _reads_parts(role, traits):
            return _parts(content, where)
        content = [marks.mark(part.source) if type(part) is MediaPart else part for part in content]
    parts = [_text_of_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    if traits.content == "string" or role in traits.text_roles or role == "tool":
        return "\n".join([text for text in parts if text])
    if role in traits.one_part_roles:
        return as_content("\n".join([text for text in parts if text]), role, traits)
    return TextParts({"type": "text", "text": text} for text in parts if text is not None)


def _reads_parts(role: str, traits: TemplateTraits) -> bool:
    return traits.content == "openai" and role not in traits.text_roles and role not in traits.one_part_roles


def _parts(content: Sequence[Any], where: str) -> TextParts:
    """Texts and media in their order."""
    parts = TextParts()
    for index, part in enumerate(content):
        if type(part) is MediaPart:
            parts.append(part)
        elif (text := _text_of_part(part, f"{where}.content[{index}]")) is not None:
            parts.append({"type": "text", "text": text})
    return parts


def _text_of_part(part: Any, where: str) -> str | None:
    """The text of a content part; None for one that holds nothing."""
    if isinstance(part, str):
        return part
    kind = part["type"]
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
    return text


# --- what an assistant said beside its content ------------------------------------------------------


def _add_what_was_said(seen: Message, message: Mapping[str, Any], traits: TemplateTraits) -> None:
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        seen["reasoning"] = reasoning
    if calls := message.get("tool_calls"):
        seen["tool_calls"] = [_call(call, traits) for call in calls]


def _call(call: Mapping[str, Any], traits: TemplateTraits) -> Message:
    function = call["function"]
    arguments = _as_text(function) if traits.arguments == "text" else _as_mapping(function, traits)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


_LONG_ARGUMENTS: Final = 65_536
_decoder = json.JSONDecoder()


def _as_text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _as_mapping(function: Mapping[str, Any], traits: TemplateTraits) -> Any:
    """Arguments as a mapping; those that are no JSON object are what the model wrote, one way or the other."""
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        parsed = decode_heavy(text, _decoder, MAX_DEPTH) if len(text) > _LONG_ARGUMENTS else json.loads(text)
    except (ValueError, RecursionError):
        parsed = text
    if parsed is None:
        return {}
    if isinstance(parsed, dict):
        return parsed
    return text if traits.raw_arguments else {"arguments": text}
