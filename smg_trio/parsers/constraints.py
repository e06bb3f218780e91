"""Constraints that make an engine write tool calls, and the family's own form for them where it has one.

`constrain_calls` is the one way in. Where the family's calls can be framed in a structural tag, the model writes what
it was trained to write and the family's parser reads it. Elsewhere the calls are plain JSON: a list of
``{"name", "parameters"}``, each closed, or the arguments alone where the function is named; `tool.forced` reads those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from smg_trio.core.requests import StructuredOutput
from smg_trio.parsers.call_frames import (
    CHANNEL_ANSWERS,
    CHANNEL_CALLS,
    FRAMES,
    MISTRAL_LIST,
    CallFrame,
    hunyuan_frame,
)
from smg_trio.parsers.tag_formats import Format, json_schema

NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schema of a tool that declares no parameters."""

_VALUE_KEYS: Final = frozenset({"const", "default", "enum", "example", "examples"})


class ToolChoice(Protocol):
    """What `api` makes of ``tool_choice``."""

    @property
    def mode(self) -> Literal["none", "auto", "required", "named"]:
        """Whether calls are read at all, may be made, or must be made."""

    @property
    def name(self) -> str | None:
        """The tool of ``named``."""

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """The tools that may be called; None for all."""

    @property
    def text_format(self) -> StructuredOutput | None:
        """What holds the text of a tool of ``named`` that takes plain text; None for tools that take JSON."""


@dataclass(frozen=True, slots=True)
class CallConstraint:
    """What holds an answer to tool calls.

    Attributes:
        structured: what the engine is told.
        native: the calls come in the family's own form; otherwise as plain JSON.
    """

    structured: StructuredOutput
    native: bool


def callable_tools(tools: Sequence[Mapping[str, Any]], choice: ToolChoice) -> dict[str, Mapping[str, Any]]:
    """The functions that `choice` lets the model call, by name, as declared; the first of a name counts."""
    functions: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        functions.setdefault(tool["function"]["name"], tool["function"])
    if choice.mode == "named":
        return {choice.name: functions[choice.name]} if choice.name in functions else {}
    if choice.allowed is not None:
        return {name: function for name, function in functions.items() if name in choice.allowed}
    return functions


def parameter_schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments."""
    return function.get("parameters") or NO_PARAMETERS


def constrain_calls(
    functions: Mapping[str, Mapping[str, Any]],
    choice: ToolChoice,
    *,
    parser: str | None,
    single: bool,
    template_source: str = "",
    structural_tags: bool = True,
) -> CallConstraint | None:
    """The constraint of a request with tools, or None where the model is free.

    Args:
        functions: what may be called, as `callable_tools` gives it; not empty.
        parser: name of the family's tool-call parser, None if there is none.
        single: at most one call (``parallel_tool_calls: false``).
        template_source: tells apart the forms of Mistral and of Hunyuan.
        structural_tags: the engine's grammar backend takes xgrammar's structural tags.
    """
    schemas = {name: parameter_schema(function) for name, function in functions.items()}
    frame = _frame(parser, template_source) if structural_tags else None
    if choice.mode == "auto":
        strict = any(function.get("strict") is True for function in functions.values())
        if strict and frame is not None and frame.marked:
            return CallConstraint(_tag(frame.triggered(schemas, single)), native=True)
        return None
    single = single or choice.mode == "named"
    if structural_tags and parser in CHANNEL_CALLS:
        return CallConstraint(_tag(CHANNEL_CALLS[parser](schemas, single)), native=True)
    if frame is not None:
        return CallConstraint(_tag(frame.calls(schemas, single)), native=True)
    schema = schemas[next(iter(schemas))] if choice.mode == "named" else call_list_schema(schemas, single)
    return CallConstraint(StructuredOutput(kind="json", value=schema), native=False)


def constrain_answer(reasoning_parser: str | None, asked: StructuredOutput) -> StructuredOutput:
    """The client's own constraint, moved into the channel that the family writes its visible text in."""
    frame = CHANNEL_ANSWERS.get(reasoning_parser or "")
    inner = _as_format(asked) if frame else None
    if frame is None or inner is None:
        return asked
    return _tag(frame(inner))


def call_list_schema(schemas: Mapping[str, Mapping[str, Any]], single: bool) -> dict[str, Any]:
    """Schema of ``[{"name": …, "parameters": {…}}, …]``: no other keys in a call, at least one call."""
    shared: dict[str, Any] = {}
    calls = [
        _call_schema(name, _shareable(schema, f"tool_{number}", shared)) for number, (name, schema) in _each(schemas)
    ]
    listed: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"type": "object", "anyOf": calls},
    }
    if single:
        listed["maxItems"] = 1
    return listed | ({"$defs": shared} if shared else {})


def _each(schemas: Mapping[str, Mapping[str, Any]]) -> Sequence[tuple[int, tuple[str, Mapping[str, Any]]]]:
    return list(enumerate(schemas.items()))


def _call_schema(name: str, parameters: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _shareable(schema: Mapping[str, Any], key: str, shared: dict[str, Any]) -> Any:
    """`schema` for use inside another one: with references of its own it moves to ``$defs``, where they hold."""
    moved, changed = _rebased(schema, f"#/$defs/{key}")
    if not changed:
        return schema
    shared[key] = moved
    return {"$ref": f"#/$defs/{key}"}


def _rebased(node: Any, root: str) -> tuple[Any, bool]:
    """A schema with its local references pointing below `root`, and whether it had any."""
    if isinstance(node, list):
        items = [_rebased(item, root) for item in node]
        return [item for item, _ in items], any(changed for _, changed in items)
    if not isinstance(node, Mapping):
        return node, False
    out: dict[str, Any] = {}
    any_changed = False
    for key, value in node.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            out[key], changed = root + value[1:], True
        elif key in _VALUE_KEYS:
            out[key], changed = value, False
        else:
            out[key], changed = _rebased(value, root)
        any_changed = any_changed or changed
    return out, any_changed


def _frame(parser: str | None, template_source: str) -> CallFrame | None:
    if parser == "mistral" and template_source and "[ARGS]" not in template_source:
        return MISTRAL_LIST
    if parser == "hunyuan_xml":
        return hunyuan_frame(template_source)
    return FRAMES.get(parser or "")


def _tag(form: Format) -> StructuredOutput:
    value = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    return StructuredOutput(kind="structural_tag", value=value)


def _as_format(asked: StructuredOutput) -> Format | None:
    """A client's constraint as a node of a structural tag; None where that cannot say it."""
    value = asked.value
    if asked.kind == "json":
        return json_schema(json.loads(value) if isinstance(value, str) else value)
    if asked.kind == "json_object":
        return json_schema({"type": "object"})
    if asked.kind == "regex":
        return {"type": "regex", "pattern": value}
    if asked.kind == "choice":
        return {"type": "or", "elements": [{"type": "const_string", "value": word} for word in value]}
    # A grammar may be Lark's, which a structural tag cannot hold.
    return None
