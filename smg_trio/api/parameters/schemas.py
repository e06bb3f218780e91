"""Is this object a JSON schema at all? A structural check, far short of the meta-schema.

Engines compile schemas inside their step loop, where a schema such as ``{"properties": {"a": "b"}}`` has
ended the whole process. Only what is wrong in every draft is refused; unknown keywords pass.
"""

from __future__ import annotations

from typing import Any

from smg_trio.api.errors import nests_deeper
from smg_trio.api.parameters.fields import describe, refuse
from smg_trio.api.parameters.regexes import check_regex

MAX_SCHEMA_DEPTH = 64
"""vLLM's own bound on the nesting of a schema (0.32, ``sampling_params.py``)."""
MAX_PROPERTIES = 5_000
"""Properties of a whole schema; OpenAI's bound."""
MAX_OPTIONAL_PROPERTIES = 1_000
"""Properties of one object that may be absent: xgrammar 0.2 needs 1 to 20 s for so many, and eight times as long for
twice as many. Required ones cost it next to nothing."""
MAX_ALL_OPTIONAL_PROPERTIES = 2_000
"""The same over all objects of a schema."""

_TYPE_WORDS = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_ONE_SCHEMA = frozenset({"additionalProperties", "unevaluatedProperties", "contains", "propertyNames"})
_ONE_SCHEMA |= {"not", "if", "then", "else"}
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_NUMBERS = frozenset({"minimum", "maximum", "multipleOf"})
_STRINGS = frozenset({"$ref", "format"})

_Pending = list[tuple[Any, str]]


def check_schema(schema: Any, param: str) -> None:
    """Refuse what cannot be a JSON schema.

    Args:
        schema: a JSON value.
        param: its path in the request; the refusal names the part below it.

    Raises:
        InvalidRequest: naming the first wrong part, or that the schema is nested too deeply or has too many
            properties for the compilers of engines.
    """
    if nests_deeper(schema, MAX_SCHEMA_DEPTH):
        raise refuse(param, f"the schema may nest at most {MAX_SCHEMA_DEPTH} levels")
    properties = PropertyCount(param)
    pending: _Pending = [(schema, param)]
    while pending:
        node, path = pending.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise refuse(path, f"a JSON schema must be an object, got {describe(node)}")
        properties.add(node)
        for keyword, value in node.items():
            _check_keyword(keyword, value, f"{path}.{keyword}", pending)


class PropertyCount:
    """Counts the properties of one schema, object by object.

    Args:
        param: the path of the schema in the request.
    """

    def __init__(self, param: str) -> None:
        self._param = param
        self._all = self._optional = 0

    def add(self, node: dict[str, Any]) -> None:
        """Count the properties of one object schema. Raises InvalidRequest beyond the bounds."""
        named, patterns, required = (node.get(key) for key in ("properties", "patternProperties", "required"))
        names = set(named) if isinstance(named, dict) else set()
        more = len(patterns) if isinstance(patterns, dict) else 0
        if not names and not more:
            return
        must = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        optional = len(names - must) + more
        self._all += len(names) + more
        self._optional += optional
        if self._all > MAX_PROPERTIES:
            raise refuse(self._param, f"a schema may have at most {MAX_PROPERTIES} properties")
        if optional > MAX_OPTIONAL_PROPERTIES or self._optional > MAX_ALL_OPTIONAL_PROPERTIES:
            raise refuse(
                self._param,
                f"at most {MAX_OPTIONAL_PROPERTIES} properties of an object, and {MAX_ALL_OPTIONAL_PROPERTIES} of a "
                "schema, may be left out of 'required'",
            )


def _check_keyword(keyword: str, value: Any, path: str, pending: _Pending) -> None:
    if keyword in _NAMED_SCHEMAS:
        if keyword == "patternProperties":
            for pattern in _object(value, path):
                check_regex(pattern, path)
        pending.extend((child, f"{path}.{name}") for name, child in _object(value, path).items())
    elif keyword in _ONE_SCHEMA:
        pending.append((value, path))
    elif keyword in _SCHEMA_LISTS:
        pending.extend((child, f"{path}[{i}]") for i, child in enumerate(_filled_array(value, path)))
    elif keyword == "items":
        children = value if isinstance(value, list) else [value]
        pending.extend((child, path) for child in children)
    else:
        _check_value(keyword, value, path)


def _check_value(keyword: str, value: Any, path: str) -> None:
    if keyword == "type":
        _check_type(value, path)
    elif keyword == "required":
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise refuse(path, "must be an array of strings")
    elif keyword == "enum":
        _filled_array(value, path)
    elif keyword in _COUNTS:
        if not _is_number(value) or value < 0 or value != int(value):
            raise refuse(path, f"must be an integer of at least 0, got {describe(value)}")
    elif keyword in _NUMBERS:
        if not _is_number(value):
            raise refuse(path, f"must be a number, got {describe(value)}")
    elif keyword == "pattern":
        check_regex(value, path)
    elif keyword in _STRINGS and not isinstance(value, str):
        raise refuse(path, f"must be a string, got {describe(value)}")


def _check_type(value: Any, path: str) -> None:
    words = value if isinstance(value, list) else [value]
    if not words:
        raise refuse(path, "must not be an empty array")
    for word in words:
        if not isinstance(word, str) or word not in _TYPE_WORDS:
            raise refuse(path, f"{describe(word)} is not a JSON schema type")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def _object(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise refuse(path, f"must be an object, got {describe(value)}")


def _filled_array(value: Any, path: str) -> list[Any]:
    if isinstance(value, list) and value:
        return value
    raise refuse(path, "must be an array that is not empty")
