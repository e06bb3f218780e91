"""Structured output: the many ways to ask for it become one `core.requests.StructuredOutput`.

Ways in: ``response_format`` (OpenAI), ``structured_outputs`` (vLLM), and the older flat fields
``guided_json`` … (vLLM before 0.12) and ``json_schema``, ``regex``, ``ebnf`` (Rust gateways). Exactly one
constraint may be asked. A broken grammar can end a whole engine, so all that can be seen without a
grammar compiler is refused here: shape, depth, schemas that are no schemas, regexes that no dialect reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from smg_trio.api.errors import decode_json, nests_deeper
from smg_trio.api.parameters.fields import (
    array_of,
    boolean,
    describe,
    filled_string,
    mapping,
    refuse,
    string,
    take,
    wire_safe,
)
from smg_trio.api.parameters.regexes import check_regex, check_regex_depth
from smg_trio.api.parameters.schemas import MAX_SCHEMA_DEPTH, PropertyCount, check_schema
from smg_trio.core.errors import InvalidRequest
from smg_trio.core.heavy_json import weight
from smg_trio.core.requests import StructuredKind, StructuredOutput

_TAG_WRAPPER_DEPTH = 16
MAX_CONSTRAINT_WEIGHT = 262_144
"""Characters of a constraint, each value in it counted as eight more: engines compile it while their streams wait, and
OpenAI takes less than half of it."""

Constraint = tuple[StructuredKind, Any]

_FLAT_FIELDS: dict[str, StructuredKind] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}


def parse_structured_output(obj: Mapping[str, Any]) -> StructuredOutput | None:
    """The one constraint of a request body, or None.

    Raises:
        InvalidRequest: more than one constraint, or a constraint that no engine could compile.
    """
    if _FIELD_NAMES.isdisjoint(obj):
        return None
    found = list(_constraints(obj))
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(f"'{param}'" for param, _ in found)
        raise refuse(found[-1][0], f"only one structured output constraint is allowed, got {names}")
    kind, value = found[0][1]
    return StructuredOutput(kind=kind, value=value, **_options(obj))


def _constraints(obj: Mapping[str, Any]) -> Iterator[tuple[str, Constraint]]:
    if (format_ := take(obj, "response_format", mapping)) is not None:
        constraint = _response_format(format_)
        if constraint is not None:
            yield "response_format", constraint
    if (options := take(obj, "structured_outputs", mapping)) is not None:
        yield from _structured_outputs(options)
    for name, kind in _FLAT_FIELDS.items():
        if obj.get(name) is not None:
            yield name, (kind, _READERS[kind](obj[name], name))


def _structured_outputs(options: dict[str, Any]) -> Iterator[tuple[str, Constraint]]:
    named = [kind for kind in _READERS if options.get(kind) is not None]
    if not named:
        kinds = ", ".join(f"'{kind}'" for kind in _READERS)
        raise refuse("structured_outputs", f"must hold one of {kinds}")
    for kind in named:
        param = f"structured_outputs.{kind}"
        yield param, (kind, _READERS[kind](options[kind], param))


def _options(obj: Mapping[str, Any]) -> dict[str, Any]:
    options = obj.get("structured_outputs") or {}
    pattern = take(options, "whitespace_pattern", check_regex, prefix="structured_outputs.")
    return {
        "disable_any_whitespace": bool(take(options, "disable_any_whitespace", boolean, prefix="structured_outputs.")),
        "disable_additional_properties": bool(
            take(options, "disable_additional_properties", boolean, prefix="structured_outputs.")
        ),
        "whitespace_pattern": pattern or take(obj, "guided_whitespace_pattern", check_regex),
    }


def _response_format(format_: dict[str, Any]) -> Constraint | None:
    kind = format_.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_object", True
    if kind == "json_schema":
        return "json", _json_schema_format(format_)
    if kind == "structural_tag":
        return "structural_tag", _structural_tag_format(format_)
    words = "'text', 'json_object', 'json_schema' or 'structural_tag'"
    raise refuse("response_format.type", f"must be {words}, got {describe(kind)}")


def _json_schema_format(format_: dict[str, Any]) -> Any:
    wrapper = take(format_, "json_schema", mapping, prefix="response_format.")
    if wrapper is None:
        raise refuse("response_format.json_schema", "is required when the type is 'json_schema'")
    if wrapper.get("schema") is None:
        raise refuse("response_format.json_schema.schema", "is required")
    return read_schema(wrapper["schema"], "response_format.json_schema.schema")


def _structural_tag_format(format_: dict[str, Any]) -> str:
    if "format" not in format_ and not ("structures" in format_ and "triggers" in format_):
        raise refuse("response_format", "a structural tag needs 'format', or 'structures' and 'triggers'")
    check_weight(format_, "response_format")
    wire_safe(format_, "response_format")
    return _structural_tag(json.dumps(format_), "response_format")


def read_schema(value: Any, param: str) -> Any:
    """A JSON schema as an object or as JSON text (kept as it came)."""
    check_weight(value, param)
    loaded = _load_text(value, param) if isinstance(value, str) else value
    check_schema(mapping(loaded, param), param)
    wire_safe(loaded, param)
    return value


def check_weight(value: Any, param: str) -> None:
    """Refuse a constraint that is too large, before anything of it is read."""
    if weight(value, MAX_CONSTRAINT_WEIGHT) > MAX_CONSTRAINT_WEIGHT:
        raise refuse(param, f"a constraint may have at most {MAX_CONSTRAINT_WEIGHT} characters")


def _load_text(value: str, param: str) -> Any:
    try:
        return decode_json(value)
    except (ValueError, RecursionError, InvalidRequest) as exc:
        raise refuse(param, "is not valid JSON") from exc


def _choice(value: Any, param: str) -> list[str]:
    check_weight(value, param)
    options = array_of(string)(value, param)
    if not options:
        raise refuse(param, "must not be an empty array")
    return options


def _json_object(value: Any, param: str) -> bool:
    if not boolean(value, param):
        raise refuse(param, "must be true if set")
    return True


def _grammar(value: Any, param: str) -> str:
    check_weight(value, param)
    if not string(value, param).strip():
        raise refuse(param, "must not be an empty grammar")
    return cast("str", value)


def _structural_tag(value: Any, param: str) -> str:
    check_weight(value, param)
    tag = _load_text(filled_string(value, param), param)
    if nests_deeper(mapping(tag, param), MAX_SCHEMA_DEPTH + _TAG_WRAPPER_DEPTH):
        raise refuse(param, "the structural tag is nested too deeply")
    _check_parts(tag, param)
    return cast("str", value)


def _check_parts(tag: Any, param: str) -> None:
    """What a structural tag holds, wherever it stands in it: properties of schemas, and regexes."""
    properties, pending = PropertyCount(param), [tag]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            properties.add(node)
            if isinstance(pattern := node.get("pattern"), str):
                check_regex_depth(pattern, param)
            if isinstance(keyed := node.get("patternProperties"), dict):
                for pattern in keyed:
                    check_regex_depth(pattern, param)
        if isinstance(node, (dict, list)):
            pending.extend(node.values() if isinstance(node, dict) else node)


_READERS: dict[StructuredKind, Callable[[Any, str], Any]] = {
    "json": read_schema,
    "regex": check_regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}
_FIELD_NAMES = frozenset({"response_format", "structured_outputs", *_FLAT_FIELDS})
