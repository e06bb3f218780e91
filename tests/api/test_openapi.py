"""The OpenAPI document, as far as it can be judged without a server."""

from __future__ import annotations

from typing import Any

import pytest

from smg_trio.api.openapi import ERROR_SCHEMAS, Operation, document_path, openapi_document
from smg_trio.api.openapi_bodies import BODIES, QUERIES

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


def test_no_table_speaks_of_a_path_with_a_typo() -> None:
    for method, path in QUERIES:
        assert method in ("GET", "POST")
        assert path.startswith("/")
