"""Tool definitions in the form that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from smg_trio.text.template_traits import TemplateTraits

Tools = Sequence[Mapping[str, Any]]

_JSON_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def fit_tools(tools: Tools, traits: TemplateTraits) -> Tools | None:
    """The tools of a request, in `api.openai.chat.tools`' form, as the template reads them."""
    if not tools:
        return [] if traits.empty_tools else None
    if traits.tool_form == "kept":
        return tools
    if traits.tool_form == "plain":
        return simplified_tools(tools)
    if traits.tool_form == "omitted":
        return [{**tool, "function": _without_nulls(tool["function"])} for tool in tools]
    filled = [{**tool, "function": _with_empty_values(tool["function"])} for tool in tools]
    return filled if traits.tool_form == "filled" else [{"type": "function", **tool["function"]} for tool in filled]


def simplified_tools(tools: Tools) -> list[Mapping[str, Any]]:
    """The tools with schemas that careless templates can print too: every description and default a text, one type.

    Names, properties and descriptions stay. For templates that fail on the schemas as they are.
    """
    done: list[Mapping[str, Any]] = []
    for tool in tools:
        function = _with_empty_values(tool["function"])
        parameters = _simplified(function["parameters"])
        done.append({**tool, "function": {**function, "parameters": {"properties": {}, **parameters}}})
    return done


def _without_nulls(function: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in function.items() if value is not None}


def _with_empty_values(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    return {**function, "description": function.get("description") or "", "parameters": parameters}


def _simplified(schema: Any) -> dict[str, Any]:
    """A schema whose type is one word, whose texts are texts, and so on for the schemas in it."""
    if not isinstance(schema, dict):  # true and false are schemas too
        schema = {}
    done = {**schema, "type": _type_of(schema), "description": _as_text(schema.get("description", ""))}
    if "default" in schema:
        done["default"] = _as_text(schema["default"])
    if isinstance(schema.get("properties"), dict):
        done["properties"] = {name: _simplified(inner) for name, inner in schema["properties"].items()}
    if isinstance(items := schema.get("items"), list):
        items = items[0] if items else {}
    if "items" in schema:
        done["items"] = _simplified(items)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            done[key] = [_simplified(inner) for inner in schema[key]]
    return done


def _type_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    named = next((kind for kind in kinds if isinstance(kind, str) and kind != "null"), None)
    if named is not None:
        return named
    for value in [*_listed(schema, "enum"), *([schema["const"]] if "const" in schema else ())]:
        if type(value) in _JSON_TYPES:
            return _JSON_TYPES[type(value)]
    for inner in (inner for key in ("anyOf", "oneOf", "allOf") for inner in _listed(schema, key)):
        if isinstance(inner, dict) and inner.get("type") != "null":
            return _type_of(inner)
    return "object" if "properties" in schema else "any"


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
