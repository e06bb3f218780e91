"""Items of the Responses API: what clients send, in the form in which it is kept and listed.

An item comes out complete (id, type, status), so that it can be stored, shown again and rendered without another look
at the request. Items of tools that OpenAI's servers or clients define are read as far as they hold text
(`hosted_items`); the others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from smg_trio.api.media import is_media, read_part
from smg_trio.api.openai.responses.hosted_items import HOSTED_ITEMS, check_hosted_item
from smg_trio.api.openai.responses.setting_items import read_configuration_update, read_tool_item, read_tool_search_call
from smg_trio.api.parameters.fields import (
    Reader,
    array,
    array_of,
    describe,
    described,
    filled_string,
    mapping,
    one_of,
    read_fields,
    refuse,
    string,
    take,
)
from smg_trio.core.errors import UnsupportedFeature

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item

MakeId = Callable[[str], str]
_STATUS: Final = one_of(("in_progress", "completed", "incomplete"))
_MAX_METADATA: Final = 16
_SHOWN_ID_CHARS: Final = 256


def make_item_id(prefix: str) -> str:
    """A new id: ``msg_``, ``rs_``, ``fc_`` ... and 48 hex digits."""
    return f"{prefix}_{token_hex(24)}"


def parse_input(value: Any, make_id: MakeId, param: str = "input") -> list[Item]:
    """``input``: one text of the user's, or items.

    Raises:
        InvalidRequest: naming the item or part.
        UnsupportedFeature: for media other than images, and for items that hide their content.
    """
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, param, make_id)]
    if not isinstance(value, list):
        raise refuse(param, f"expected a string or an array of items, got {describe(value)}")
    return parse_items(value, make_id, param)


def parse_items(value: Any, make_id: MakeId, param: str = "items", *, maximum: int | None = None) -> list[Item]:
    """An array of items; see `parse_input`."""

    def read(item: Any, path: str) -> Item:
        return _item(mapping(item, path), path, make_id)

    return array_of(read, maximum=maximum)(value, param)


def resolve_references(items: Sequence[Item], known: Mapping[str, Item], param: str = "input") -> list[Item]:
    """The items with every ``item_reference`` replaced by the item it names.

    Raises:
        InvalidRequest: a reference to an item that is not known.
    """
    resolved = []
    for index, item in enumerate(items):
        if item["type"] != "item_reference":
            resolved.append(item)
        elif (found := known.get(item["id"])) is not None:
            resolved.append(found)
        else:
            # In full: 40 characters, as elsewhere, do not tell ids apart.
            raise refuse(
                f"{param}[{index}].id",
                f"no item with the id '{item['id'][:_SHOWN_ID_CHARS]}' is kept; send the item itself",
            )
    return resolved


@described({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": _MAX_METADATA})
def read_metadata(value: Any, param: str) -> dict[str, str]:
    """OpenAI's metadata: at most 16 texts of at most 512 characters, under keys of at most 64."""
    pairs = mapping(value, param)
    if len(pairs) > _MAX_METADATA:
        raise refuse(param, f"at most {_MAX_METADATA} pairs are allowed, got {len(pairs)}")
    for key, text in pairs.items():
        if len(key) > 64 or len(string(text, f"{param}.{key}")) > 512:
            raise refuse(f"{param}.{key}", "keys may have 64 characters at most, values 512")
    return pairs


def required(obj: Mapping[str, Any], key: str, reader: Reader, param: str) -> Any:
    """A key that must be there."""
    if obj.get(key) is None:
        raise refuse(f"{param}.{key}", "is required")
    return reader(obj[key], f"{param}.{key}")


def _item(item: Item, param: str, make_id: MakeId) -> Item:
    kind = take(item, "type", string, prefix=f"{param}.")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    reader = _ITEM_READERS.get(kind)
    if reader is None:
        raise UnsupportedFeature(f"{param}: items of type {describe(kind)} are not supported.", param=f"{param}.type")
    return reader(item, param, make_id)


def _message(item: Item, param: str, make_id: MakeId) -> Item:
    role = required(item, "role", one_of(("user", "assistant", "system", "developer")), param)
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "id": _id(item, param, make_id, "msg"),
        "type": "message",
        "role": role,
        "status": take(item, "status", _STATUS, prefix=f"{param}.") or "completed",
        "content": _content(item.get("content"), f"{param}.content", kind),
    }


def _content(value: Any, param: str, kind: str) -> list[Item]:
    if value is None:
        raise refuse(param, "is required")
    if isinstance(value, str):
        return [_text_part(value, kind)]
    if not isinstance(value, list):
        raise refuse(param, f"expected a string or an array of parts, got {describe(value)}")
    return [_part(mapping(part, f"{param}[{i}]"), f"{param}[{i}]", kind) for i, part in enumerate(value)]


def _part(part: Item, param: str, kind: str) -> Item:
    found = required(part, "type", string, param)
    if found == "refusal" and kind == "output_text":
        return {"type": "refusal", "refusal": required(part, "refusal", string, param)}
    if is_media(found) and kind == "input_text":
        read_part(part, param)
        return {"detail": "auto", **{key: part[key] for key in _IMAGE_MEMBERS if part.get(key) is not None}}
    if found not in _TEXT_PARTS:
        raise UnsupportedFeature(f"{param}: content of type {describe(found)} is not supported.", param=param)
    return _text_part(required(part, "text", string, param), kind)


def _text_part(text: str, kind: str) -> Item:
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": []}
    return {"type": kind, "text": text}


def _function_call(item: Item, param: str, make_id: MakeId) -> Item:
    return _call(item, "function_call", "arguments", param, _id(item, param, make_id, "fc"))


def _custom_tool_call(item: Item, param: str, make_id: MakeId) -> Item:
    return _call(item, "custom_tool_call", "input", param, _id(item, param, make_id, "ctc"))


def _call(item: Item, kind: str, said: str, param: str, item_id: str) -> Item:
    """A call; the member `said` holds what the model said to the tool."""
    namespace = take(item, "namespace", filled_string, prefix=f"{param}.")
    return {
        "id": item_id,
        "type": kind,
        "call_id": required(item, "call_id", filled_string, param),
        **({} if namespace is None else {"namespace": namespace}),
        "name": required(item, "name", filled_string, param),
        said: required(item, said, string, param),
        "status": take(item, "status", _STATUS, prefix=f"{param}.") or "completed",
    }


def _function_call_output(item: Item, param: str, make_id: MakeId) -> Item:
    return _call_output(item, "function_call_output", param, _id(item, param, make_id, "fco"))


def _custom_tool_call_output(item: Item, param: str, make_id: MakeId) -> Item:
    return _call_output(item, "custom_tool_call_output", param, _id(item, param, make_id, "ctco"))


def _call_output(item: Item, kind: str, param: str, item_id: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = _content(output, f"{param}.output", "input_text")
    return {
        "id": item_id,
        "type": kind,
        "call_id": required(item, "call_id", filled_string, param),
        "output": output,
        "status": take(item, "status", _STATUS, prefix=f"{param}.") or "completed",
    }


def _reasoning(item: Item, param: str, make_id: MakeId) -> Item:
    summary = _reasoning_parts(item.get("summary"), f"{param}.summary", "summary_text")
    content = _reasoning_parts(item.get("content"), f"{param}.content", "reasoning_text")
    return {
        "id": _id(item, param, make_id, "rs"),
        "type": "reasoning",
        "summary": summary,
        "content": content,
        "status": take(item, "status", _STATUS, prefix=f"{param}.") or "completed",
    }


def _reasoning_parts(value: Any, param: str, kind: str) -> list[Item]:
    parts = []
    for index, part in enumerate(() if value is None else array(value, param)):
        path = f"{param}[{index}]"
        read_fields(mapping(part, path), {"type": one_of((kind,))}, prefix=f"{path}.")
        parts.append({"type": kind, "text": required(part, "text", string, path)})
    return parts


def _additional_tools(item: Item, param: str, make_id: MakeId) -> Item:
    return {"id": _id(item, param, make_id, "at"), **read_tool_item(item, "additional_tools", param)}


def _tool_search_output(item: Item, param: str, make_id: MakeId) -> Item:
    return {"id": _id(item, param, make_id, "tso"), **read_tool_item(item, "tool_search_output", param)}


def _tool_search_call(item: Item, param: str, make_id: MakeId) -> Item:
    return {"id": _id(item, param, make_id, "tsc"), **read_tool_search_call(item, param)}


def _configuration_update(item: Item, param: str, make_id: MakeId) -> Item:
    return {"id": _id(item, param, make_id, "cu"), **read_configuration_update(item, param)}


def _agent_message(item: Item, param: str, make_id: MakeId) -> Item:
    parts = []
    for index, part in enumerate(array(item.get("content"), f"{param}.content")):
        path = f"{param}.content[{index}]"
        if mapping(part, path).get("type") == "encrypted_content":
            part = {"type": "input_text", "text": required(part, "encrypted_content", string, path)}
        parts.append(_part(part, path, "input_text"))
    return {
        "id": _id(item, param, make_id, "amsg"),
        "type": "agent_message",
        "author": take(item, "author", string, prefix=f"{param}."),
        "recipient": take(item, "recipient", string, prefix=f"{param}."),
        "content": parts,
    }


def _hosted(item: Item, param: str, make_id: MakeId) -> Item:
    check_hosted_item(item, param)
    status = take(item, "status", string, prefix=f"{param}.") or "completed"
    return {**item, "id": _id(item, param, make_id, _HOSTED_PREFIX), "status": status}


def _item_reference(item: Item, param: str, make_id: MakeId) -> Item:  # noqa: ARG001 - a reader like the others
    return {"type": "item_reference", "id": required(item, "id", filled_string, param)}


def _id(item: Item, param: str, make_id: MakeId, prefix: str) -> str:
    return take(item, "id", filled_string, prefix=f"{param}.") or make_id(prefix)


_HOSTED_PREFIX: Final = "item"
_IMAGE_MEMBERS: Final = ("type", "detail", "image_url", "video_url")
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
_ITEM_READERS: Final[Mapping[str, Callable[[Item, str, MakeId], Item]]] = {
    **dict.fromkeys(HOSTED_ITEMS, _hosted),
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "custom_tool_call": _custom_tool_call,
    "custom_tool_call_output": _custom_tool_call_output,
    "reasoning": _reasoning,
    "item_reference": _item_reference,
    "agent_message": _agent_message,
    "additional_tools": _additional_tools,
    "tool_search_call": _tool_search_call,
    "tool_search_output": _tool_search_output,
    "configuration_update": _configuration_update,
}
