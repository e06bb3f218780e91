"""The OpenAPI document, as far as it can be judged without a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from smg_trio.api import admin, generate, pooling, tokenize, worker_specs
from smg_trio.api.openai import embeddings, pooled_prompts
from smg_trio.api.openai.chat import request as chat
from smg_trio.api.openai.completions import request as completions
from smg_trio.api.openai.responses import request as responses
from smg_trio.api.openapi import ERROR_SCHEMAS, Operation, document_path, openapi_document
from smg_trio.api.openapi_bodies import BODIES, QUERIES
from smg_trio.api.parameters import sampling
from smg_trio.api.parameters.fields import Reader, Schema, schema_of
from smg_trio.core.errors import SmgError

GET = Operation(method="GET", path="/things/<path:thing>/<part>", summary="One part.")
POST = Operation(method="POST", path="/generate", summary="Go on.", public=True, error="ParseError")


def test_paths_and_their_parameters_are_written_as_openapi_writes_them() -> None:
    assert document_path(GET.path) == "/things/{thing}/{part}"
    described = openapi_document([GET], version="1")["paths"]["/things/{thing}/{part}"]["get"]
    assert [one["name"] for one in described["parameters"]] == ["thing", "part"]
    assert all(one["required"] for one in described["parameters"])
    assert "requestBody" not in described


def test_an_operation_has_its_body_its_errors_and_its_rights() -> None:
    described = openapi_document([GET, POST], version="1")
    operation = described["paths"]["/generate"]["post"]
    assert operation["requestBody"]["required"]
    assert operation["security"] == []
    assert "text/event-stream" in operation["responses"]["200"]["content"]
    error = operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"]
    assert error == "#/components/schemas/ParseError"
    assert set(described["components"]["schemas"]) == set(ERROR_SCHEMAS)


@pytest.mark.parametrize("name", BODIES)
def test_examples_have_what_their_schema_requires_and_nothing_it_does_not_know(name: str) -> None:
    body = BODIES[name]
    properties: dict[str, Any] = body.schema["properties"]
    assert set(body.schema["required"]) <= set(properties)
    for example in body.examples:
        assert set(body.schema["required"]) <= set(example)
        assert set(example) <= set(properties)


TABLES: dict[str, Mapping[str, Reader]] = {
    "sampling": sampling.READERS,
    "chat": chat.READERS,
    "completions": completions.READERS,
    "responses": responses.READERS,
    "generate": generate.READERS,
    "embeddings": embeddings.READERS,
    "pooling": pooled_prompts.READERS,
    "pairs": pooling.PAIR_READERS,
    "tokenize": tokenize.READERS,
    "workers": worker_specs.BODY_READERS,
    "lora": admin.LORA_READERS,
    "profile": admin.PROFILE_READERS,
}
FIELDS = [(f"{table}.{name}", reader) for table, readers in TABLES.items() for name, reader in readers.items()]


@pytest.mark.parametrize(("name", "reader"), FIELDS, ids=[name for name, _ in FIELDS])
def test_a_field_s_schema_says_what_its_reader_takes(name: str, reader: Reader) -> None:
    schema = schema_of(reader)
    assert schema, "described"
    for value, fits in samples(schema):
        if fits:
            reader(value, "p")
        else:
            with pytest.raises(SmgError):
                reader(value, "p")


def samples(schema: Schema) -> Iterator[tuple[Any, bool]]:
    """Values at the schema's bounds, and whether it takes them."""
    yield from ((value, True) for value in schema.get("enum", ()))
    if "enum" in schema:
        yield "none of them", False
    if "minimum" in schema:
        yield from ((schema["minimum"], True), (schema["minimum"] - 1, False))
    if "maximum" in schema:
        yield from ((schema["maximum"], True), (schema["maximum"] + 1, False))
    if "exclusiveMinimum" in schema:
        yield schema["exclusiveMinimum"], False
    if "maxLength" in schema:
        yield from (("x" * schema["maxLength"], True), ("x" * (schema["maxLength"] + 1), False))
    if "minLength" in schema and "string" in schema["type"]:
        yield "", False
    if "maxItems" in schema and "minimum" in schema["items"]:
        yield from (([1] * schema["maxItems"], True), ([1] * (schema["maxItems"] + 1), False))
    if "type" in schema:
        kinds = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
        yield from ((value, False) for kind, value in OF_KIND.items() if kind not in kinds)


OF_KIND = {"string": "word", "object": {"a": {}}, "array": [{}]}


def test_no_table_speaks_of_a_path_with_a_typo() -> None:
    for method, path in QUERIES:
        assert method in ("GET", "POST")
        assert path.startswith("/")
