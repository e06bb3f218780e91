"""Structured output: every spelling becomes one constraint; what would break an engine is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api.parameters.constraints import parse_structured_output
from smg_trio.api.parameters.schemas import MAX_SCHEMA_DEPTH
from smg_trio.core.errors import InvalidRequest

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],
    "triggers": ["<"],
}


MANY_PROPERTIES = {"type": "object", "properties": {f"p{index}": {} for index in range(4000)}}
DEEP_REGEX = "(" * 200 + "a" + ")" * 200


def tag_of(schema: dict[str, Any]) -> str:
    """A structural tag that holds this schema."""
    return json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json",
            SCHEMA,
        ),
        ({"response_format": TAG}, "structural_tag", json.dumps(TAG)),
        ({"response_format": OLD_TAG}, "structural_tag", json.dumps(OLD_TAG)),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json", json.dumps(SCHEMA)),
        ({"structured_outputs": {"json": {}}}, "json", {}),
        ({"structured_outputs": {"regex": r"\d+"}}, "regex", r"\d+"),
        ({"structured_outputs": {"regex": ""}}, "regex", ""),
        ({"structured_outputs": {"regex": r"\p{L}+(?<year>\d)"}}, "regex", r"\p{L}+(?<year>\d)"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "grammar", 'root ::= "a"'),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structural_tag", json.dumps(TAG)),
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["x"]}, "choice", ["x"]),
        ({"guided_grammar": "root ::= 'a'"}, "grammar", "root ::= 'a'"),
        ({"json_schema": json.dumps(SCHEMA)}, "json", json.dumps(SCHEMA)),
        ({"regex": "a"}, "regex", "a"),
        ({"ebnf": "root ::= 'a'"}, "grammar", "root ::= 'a'"),
        ({"response_format": {"type": "text"}, "regex": "a"}, "regex", "a"),
    ],
)
def test_every_spelling_is_one_constraint(body: dict[str, Any], kind: str, value: object) -> None:
    found = parse_structured_output(body)
    assert found is not None
    assert (found.kind, found.value) == (kind, value)


@pytest.mark.parametrize("body", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_no_constraint_is_none(body: dict[str, Any]) -> None:
    assert parse_structured_output(body) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
            "response_format.json_schema.schema.type",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"minimum": NaN}'}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"maxLength": 2**70}}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"json": {"properties": {"foo": "bar"}}}},
            "structured_outputs.json.properties.foo",
        ),
        ({"structured_outputs": {"json": nested(MAX_SCHEMA_DEPTH)}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "[a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "*a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a{3,2}"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a\x00"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "(" * 3000 + ")" * 3000}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "x" * 20_000 + "(" * 100}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": MANY_PROPERTIES}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(MANY_PROPERTIES)}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"pattern": DEEP_REGEX}}}, "structured_outputs.json.pattern"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": DEEP_REGEX}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": DEEP_REGEX}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": tag_of(MANY_PROPERTIES)}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"structural_tag": tag_of({"pattern": DEEP_REGEX})}},
            "structured_outputs.structural_tag",
        ),
        ({"response_format": json.loads(tag_of(MANY_PROPERTIES))}, "response_format"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"grammar": "  "}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"structural_tag": ""}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_what_no_engine_could_compile_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_structured_output(body)
    assert caught.value.param == param


def test_options_travel_with_the_constraint() -> None:
    options = {"disable_any_whitespace": True, "disable_additional_properties": 1, "whitespace_pattern": " ?"}
    found = parse_structured_output({"structured_outputs": {"json": SCHEMA, **options}})
    assert found is not None
    assert found.disable_any_whitespace
    assert found.disable_additional_properties
    assert found.whitespace_pattern == " ?"
    older = parse_structured_output({"guided_json": SCHEMA, "guided_whitespace_pattern": " *"})
    assert older is not None
    assert older.whitespace_pattern == " *"


def test_a_schema_of_the_greatest_depth_passes() -> None:
    assert parse_structured_output({"guided_json": nested(MAX_SCHEMA_DEPTH - 1)}) is not None
