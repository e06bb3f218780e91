"""The structural check of JSON schemas."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.api.parameters.schemas import (
    MAX_ALL_OPTIONAL_PROPERTIES,
    MAX_OPTIONAL_PROPERTIES,
    MAX_PROPERTIES,
    MAX_SCHEMA_DEPTH,
    check_schema,
)
from smg_trio.core.errors import InvalidRequest


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": ["string", "null"]},
        {"properties": {"type": {"type": "string"}, "required": True}, "required": ["type"]},
        {"$defs": {"a": {"type": "integer", "minimum": 0}}, "$ref": "#/$defs/a"},
        {"items": [{"type": "string"}, False]},
        {"items": {"anyOf": [{"const": None}, {"enum": [1, "x"]}]}},
        {"patternProperties": {"^a": {"type": "string", "maxLength": 3, "pattern": "a+"}}},
        {"additionalProperties": False, "x-vendor": {"type": "anything goes"}, "default": "bar"},
        {"if": {"const": 1}, "then": {"const": 2}, "else": {"const": 3}, "not": {}},
    ],
)
def test_schemas_pass(schema: Any) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ("x", "s"),
        (None, "s"),
        ([], "s"),
        ({"type": "int"}, "s.type"),
        ({"type": 1}, "s.type"),
        ({"type": []}, "s.type"),
        ({"type": [["string"]]}, "s.type"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": {"type": {}}}}, "s.properties.a.type"),
        ({"properties": {"a": None}}, "s.properties.a"),
        ({"required": "a"}, "s.required"),
        ({"required": [1]}, "s.required"),
        ({"enum": []}, "s.enum"),
        ({"anyOf": []}, "s.anyOf"),
        ({"anyOf": {}}, "s.anyOf"),
        ({"oneOf": [{"type": "x"}]}, "s.oneOf[0].type"),
        ({"items": "string"}, "s.items"),
        ({"additionalProperties": "no"}, "s.additionalProperties"),
        ({"minLength": -1}, "s.minLength"),
        ({"maxItems": 1.5}, "s.maxItems"),
        ({"maxItems": float("inf")}, "s.maxItems"),
        ({"minimum": "0"}, "s.minimum"),
        ({"minimum": True}, "s.minimum"),
        ({"$ref": 1}, "s.$ref"),
        ({"pattern": "("}, "s.pattern"),
        ({"pattern": 1}, "s.pattern"),
        ({"patternProperties": {"(": {}}}, "s.patternProperties"),
        ({"patternProperties": {"(" * 100_000 + "a" + ")" * 100_000: {}}}, "s.patternProperties"),
    ],
)
def test_what_is_no_schema_is_refused_by_its_path(schema: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "s")
    assert caught.value.param == param


def _object(count: int, required: int = 0, keyword: str = "properties") -> dict[str, Any]:
    names = [f"p{index}" for index in range(count)]
    return {"type": "object", keyword: {name: {"type": "string"} for name in names}, "required": names[:required]}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def _objects(count: int, each: dict[str, Any]) -> dict[str, Any]:
    return {"prefixItems": [each] * count}


@pytest.mark.parametrize(
    "schema",
    [
        _object(MAX_OPTIONAL_PROPERTIES),
        _object(MAX_PROPERTIES, MAX_PROPERTIES),
        _object(MAX_PROPERTIES, MAX_PROPERTIES - MAX_OPTIONAL_PROPERTIES),
        _objects(2, _object(MAX_ALL_OPTIONAL_PROPERTIES // 2)),
        _nested(MAX_SCHEMA_DEPTH - 1),
    ],
)
def test_a_schema_at_the_bounds_passes(schema: dict[str, Any]) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (_object(4000), "required"),
        (_object(MAX_OPTIONAL_PROPERTIES + 1), "required"),
        (_object(MAX_OPTIONAL_PROPERTIES + 1, keyword="patternProperties"), "required"),
        (_object(MAX_PROPERTIES, 10), "required"),
        ({"$defs": {"a": _object(4000)}, "$ref": "#/$defs/a"}, "required"),
        ({"anyOf": [{"type": "null"}, {"items": _object(4000)}]}, "required"),
        (_objects(30, _object(100)), "required"),
        (_object(MAX_PROPERTIES + 1, MAX_PROPERTIES + 1), f"at most {MAX_PROPERTIES} properties"),
        ({**_object(4000), "required": [1, None]}, "required"),
        (_nested(MAX_SCHEMA_DEPTH + 1), f"nest at most {MAX_SCHEMA_DEPTH}"),
        (_nested(20_000), f"nest at most {MAX_SCHEMA_DEPTH}"),
    ],
)
def test_a_schema_that_engines_compile_for_ever_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        check_schema(schema, "s")
    assert caught.value.param.startswith("s")
