"""Items that say nothing but change what holds from there on: further tools, and the configuration of responses.

They are kept in a conversation like other items and never reach the prompt as turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from smg_trio.api.openai.chat.request import EFFORTS
from smg_trio.api.openai.responses.text_format import read_text_format
from smg_trio.api.openai.responses.tools import NO_OFFER, OfferedTools, parse_response_tools
from smg_trio.api.parameters.fields import mapping, one_of, take

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item
    from smg_trio.core.requests import StructuredOutput

SETTING_ITEMS: Final = frozenset({"additional_tools", "configuration_update", "tool_search_call", "tool_search_output"})
"""A tool search itself cannot run here; one that ran elsewhere has found tools."""

_TOOL_ITEMS: Final = frozenset({"additional_tools", "tool_search_output"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the setting items of a conversation come to.

    Attributes:
        tools: those they add.
        effort: the reasoning effort; None where none of them sets one.
        sets_format: one of them sets the format of the text.
        text_format: that format; None for plain text.
    """

    tools: OfferedTools = NO_OFFER
    effort: str | None = None
    sets_format: bool = False
    text_format: StructuredOutput | None = None


def read_tool_item(item: Mapping[str, Any], kind: str, param: str) -> Item:
    """The members of an item that adds tools, checked.

    Raises:
        InvalidRequest: naming the tool.
        UnsupportedFeature: see `parse_response_tools`.
    """
    parse_response_tools(item.get("tools"), f"{param}.tools")
    members: Item = {"type": kind, "tools": item.get("tools") or []}
    if kind == "additional_tools":
        return {**members, "role": "developer"}
    return {**members, **_tool_search_members(item, param)}


def read_tool_search_call(item: Mapping[str, Any], param: str) -> Item:
    """The members of a tool search that ran elsewhere."""
    return {"type": "tool_search_call", "arguments": item.get("arguments"), **_tool_search_members(item, param)}


def _tool_search_members(item: Mapping[str, Any], param: str) -> Item:
    execution = take(item, "execution", one_of(("server", "client")), prefix=f"{param}.")
    return {"call_id": item.get("call_id"), "execution": execution or "server", "status": "completed"}


def read_configuration_update(item: Mapping[str, Any], param: str) -> Item:
    """The members of a configuration update, checked.

    Raises:
        InvalidRequest: naming the member.
    """
    members: Item = {"type": "configuration_update"}
    reasoning = take(item, "reasoning", mapping, prefix=f"{param}.")
    if reasoning is not None:
        effort = take(reasoning, "effort", one_of(EFFORTS), prefix=f"{param}.reasoning.")
        members["reasoning"] = {"effort": effort}
    text = take(item, "text", mapping, prefix=f"{param}.")
    if text is not None:
        read_text_format(text, f"{param}.text")
        members["text"] = {"format": text.get("format")}
    return members


def configuration_of(items: Iterable[Item]) -> Configuration:
    """What the setting items among `items` come to: each setting holds until a later one of its kind."""
    found = Configuration()
    for item in items:
        if item["type"] in _TOOL_ITEMS:
            found = replace(found, tools=found.tools.joined(parse_response_tools(item["tools"])))
        elif item["type"] == "configuration_update":
            found = _updated(found, item)
    return found


def _updated(found: Configuration, item: Item) -> Configuration:
    effort = (item.get("reasoning") or {}).get("effort")
    if effort is not None:
        found = replace(found, effort=effort)
    if item.get("text") is not None:
        found = replace(found, sets_format=True, text_format=read_text_format(item["text"], "text"))
    return found
