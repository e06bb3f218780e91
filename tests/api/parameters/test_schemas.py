"""The structural check of JSON schemas."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.api.parameters.schemas import check_schema
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
    ],
)
def test_what_is_no_schema_is_refused_by_its_path(schema: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "s")
    assert caught.value.param == param
