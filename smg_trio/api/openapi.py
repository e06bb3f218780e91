"""The OpenAPI 3.1 document: made from the table of routes and the tables that request bodies are read with.

A field that is not required may be given as `null`, which is the same as leaving it out. Fields that are not described
are accepted and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from smg_trio.api.openapi_bodies import BODIES, PAGES, QUERIES, STREAMED, TEXTS

_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")

ERROR_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"], "description": "The field at fault."},
                    "code": {"type": "string", "description": "A stable word, also sent as x-smg-error-code."},
                },
            }
        },
    },
    "MessagesError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": ["string", "null"]},
        },
    },
    "WorkerError": {
        "type": "object",
        "required": ["error", "code"],
        "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
    },
    "ParseError": {
        "type": "object",
        "required": ["error", "success"],
        "properties": {"error": {"type": "string"}, "success": {"const": False}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One endpoint.

    Attributes:
        path: parameters are written ``<name>`` or ``<converter:name>``.
        public: served without a key.
        error: a key of `ERROR_SCHEMAS`.
    """

    method: str
    path: str
    summary: str
    public: bool = False
    error: str = "Error"


def openapi_document(operations: Iterable[Operation], *, version: str) -> dict[str, Any]:
    """The document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        methods = paths.setdefault(document_path(operation.path), {})
        methods[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "smg-trio", "version": version},
        "paths": paths,
        "components": {
            "schemas": dict(ERROR_SCHEMAS),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def document_path(path: str) -> str:
    """A route's path as OpenAPI writes it."""
    return _PARAMETER.sub(r"{\1}", path)


def _operation(operation: Operation) -> dict[str, Any]:
    name = f"{operation.method.lower()}{re.sub(r'[^a-z0-9]+', '_', document_path(operation.path).lower())}"
    value: dict[str, Any] = {"operationId": name.strip("_"), "summary": operation.summary}
    if parameters := _parameters(operation):
        value["parameters"] = parameters
    body = BODIES.get(f"{operation.method} {operation.path}")
    if body is None and operation.method == "POST":
        body = BODIES.get(operation.path)
    if body is not None:
        content = {"schema": body.schema, "examples": {str(i): {"value": one} for i, one in enumerate(body.examples)}}
        value["requestBody"] = {"required": body.required, "content": {"application/json": content}}
    value["responses"] = _responses(operation)
    if operation.public:
        value["security"] = []
    return value


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(operation.path)
    ]
    in_query = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in QUERIES.get((operation.method, operation.path), {}).items()
    ]
    return in_path + in_query


def _responses(operation: Operation) -> dict[str, Any]:
    if operation.path in TEXTS:
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    elif operation.path in PAGES:
        content = {"text/html": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {}}
        if operation.path in STREAMED:
            content["text/event-stream"] = {}
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{operation.error}"}}}
    responses = {"200": {"description": "Success", "content": content}}
    if operation.path.startswith("/workers") and operation.method != "GET":
        responses = {"202": {"description": "Accepted, done in the background", "content": content}}
    if operation.path in ("/readiness", "/ping"):
        responses["503"] = {"description": "Not ready", "content": content}
    if operation.path in ("/flush_cache", "/start_profile", "/stop_profile"):
        responses["206"] = {"description": "Some workers did not", "content": content}
    return {**responses, "default": {"description": "An error", "content": error}}
