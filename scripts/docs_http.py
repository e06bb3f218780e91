"""The text of `docs/http-api.md`, made from the table of routes, the OpenAPI document's bodies and the error tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from smg_trio import __version__
from smg_trio.api.errors import error_view
from smg_trio.api.openapi import ERROR_SCHEMAS, document_path, openapi_document
from smg_trio.core import errors
from smg_trio.gateway import routes, run

INTRODUCTION = """\
# HTTP API

This page is made by `scripts/make_docs.py` from the code. A running gateway serves the same as an OpenAPI 3.1 document
at `GET /openapi.json`.

Fields that are not listed are accepted and ignored. `null` is the same as leaving a field
out. Where keys are set, everything but the endpoints marked *public* needs one: `Authorization: Bearer KEY`, or
`x-api-key: KEY`. Every answer carries `x-request-id`, also one to a request that cannot be read. Bodies are JSON, and
may be compressed: `Content-Encoding: gzip`, `deflate`, or `zstd` (Python 3.14, or the extra `zstd`).

Prometheus metrics are on a port of their own: `GET /metrics` at `--prometheus-port`.
"""
_GROUPS = {
    "Models": ("/v1/chat", "/v1/completions", "/v1/messages", "/v1/models", "/generate", "/v1/embeddings", "/v1/score",
               "/score", "/v1/rerank", "/v2/rerank", "/rerank", "/classify", "/v1/classify"),
    "Responses and conversations": ("/v1/responses", "/v1/conversations"),
    "Tokens and parsing": ("/tokenize", "/detokenize", "/tokenizer_info", "/v1/tokenize", "/v1/detokenize", "/parse",
                           "/v1/parse"),
    "Workers": ("/workers",),
    "Probes": ("/health", "/liveness", "/readiness", "/ping"),
}  # fmt: skip
"""Headings, and how the paths below them begin; what fits none is listed under the last one."""
_REST = "Engines and server"
_NOTES = {
    "Responses and conversations": """\
Stored responses, conversations and their items belong to the key holder that made them
([whose they are](howto/keys-and-tls.md#stored-responses-and-conversations)). For every other holder they do not exist:
reading, cancelling, deleting and listing them, and naming another holder's `conversation`, is answered 404; another
holder's `previous_response_id` or `item_reference` is answered like one that does not exist, with 400.

- `previous_response_id` that is not kept: 400, code `previous_response_not_found`.
- `request_id` gives the response an id of the client's choice. While a response with this id is being generated or
  kept for any key holder, another one is refused with 409.
- An `item_reference` in `input` names any item of a kept response or conversation, also without
  `previous_response_id`.
- `store: false` with a `conversation`: the response itself is not kept; its input and output are added to the
  conversation all the same.
- While the history cannot be written (a full disk, a database that is away), answers are given where storing was not
  the point, and the response then says `"store": false`. With `store: true` in the request, `background` or a
  `conversation`, storing is the point: 503, code `history_unavailable`, before anything is generated if a write has
  failed in the last 5 s. A response in the background that was being generated is stored when that is possible again. A
  streamed response that fails is not kept, and its `response.failed` says `"store": false`.
- Where several gateways share a database ([history](howto/history.md)), all of this holds through each of them. Only
  the gateway that generates a response in the background can abort it: cancelled or deleted through another one, it is
  cancelled or gone immediately and stays so, while its generation goes on unseen.

The same requests work as messages on a WebSocket at `/v1/responses`.
""",
}
"""What is said of a group above its endpoints' fields."""


def http_page() -> str:
    """The text of `docs/http-api.md`."""
    document = openapi_document(map(routes.operation, routes.ROUTES), version=__version__)
    lines = [INTRODUCTION]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for heading in (*_GROUPS, _REST):
        lines += _group(heading, [one for one in operations if _heading(one[1]) == heading])
    lines += _error_section()
    return "\n".join(lines).rstrip() + "\n"


def _heading(path: str) -> str:
    for heading, beginnings in _GROUPS.items():
        if any(path == one or path.startswith((one + "/", one + "_")) for one in beginnings):
            return heading
    return _REST


def _group(heading: str, operations: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Iterator[str]:
    rows, bodies = [], []
    for method, path, operation in operations:
        marks = [
            mark
            for mark, holds in (
                ("public", operation.get("security") == []),
                ("streams", "text/event-stream" in operation["responses"].get("200", {}).get("content", {})),
            )
            if holds
        ]
        summary = operation["summary"].partition(" Raises ")[0].rstrip(".") + (
            f" ({', '.join(marks)})" if marks else ""
        )
        rows.append(f"| `{method} {path}` | {_cell(summary)} |")
        bodies += _body(method, path, operation)
    notes = [_NOTES[heading]] if heading in _NOTES else []
    yield from (f"## {heading}", "", "| endpoint | |", "|---|---|", *rows, "", *notes, *bodies)


def _body(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    if "requestBody" not in operation:
        return
    content = operation["requestBody"]["content"]["application/json"]
    properties = content["schema"].get("properties", {})
    if not properties:
        return
    required = set(content["schema"].get("required", ()))
    yield from (f"### {method} {path}", "", "| field | type | |", "|---|---|---|")
    for name, schema in properties.items():
        note = " ".join(filter(None, ["required." if name in required else "", schema.get("description", "")]))
        yield f"| `{name}` | {_cell(_type(schema))} | {_cell(note)} |"
    yield ""
    if examples := [example["value"] for example in content.get("examples", {}).values()]:
        yield from ("```json", json.dumps(examples[0], ensure_ascii=False), "```", "")


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind for one in schema["anyOf"] if (kind := _type(one))))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kinds = schema.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    if kinds == ["array"] and "items" in schema:
        return f"array of {_type(schema['items'])}"
    return " or ".join(kind for kind in kinds if kind != "null") + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high = schema.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    words = [f"from {low}" if low is not None else "", f"above {above}" if above is not None else ""]
    words.append(f"up to {high}" if high is not None else "")
    return "".join(f", {word}" for word in words if word)


def _error_section() -> Iterator[str]:
    yield from (
        "## Errors",
        "",
        "`code` is a stable word, also sent as the header `x-smg-error-code`. An answer that fails after its stream",
        "has begun has status 200 and ends with an error event of the same body; OpenAI-style streams then send",
        "`[DONE]`.",
        "",
        "| status | code | when |",
        "|---|---|---|",
    )
    for status, code, when in sorted(_faults()):
        yield f"| {status} | `{code}` | {_cell(when)} |"
    yield from ("", "Shapes:", "")
    for name, schema in ERROR_SCHEMAS.items():
        paths = sorted({document_path(route.path) for route in routes.ROUTES if _schema_of(route) == name})
        where = "everywhere else" if name == "Error" else ", ".join(f"`{path}`" for path in paths)
        yield f"- {where}: `{json.dumps(_skeleton(schema), ensure_ascii=False)}`"


def _schema_of(route: routes.Route) -> str:
    return routes.operation(route).error


def _skeleton(schema: Mapping[str, Any]) -> Any:
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object":
        return {name: _skeleton(one) for name, one in schema["properties"].items()}
    return "…"


def _faults() -> Iterator[tuple[int, str, str]]:
    """(status, code, meaning) of everything a client can be told, from the error tree and its branches."""
    assert run, "imported so that every branch is known"
    hidden = {errors.SmgError, errors.ClientFault, errors.GatewayFault}
    waiting: list[type[errors.SmgError]] = [errors.SmgError]
    found: dict[tuple[int, str], list[str]] = {}
    while waiting:
        fault = waiting.pop()
        waiting += fault.__subclasses__()
        if fault not in hidden and not issubclass(fault, errors.ConfigError) and ".terminal." not in fault.__module__:
            meaning = (fault.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
            found.setdefault((fault.status, fault.code), []).append(meaning)
    view = error_view(ValueError())
    found.pop((view.status, view.code), None)
    for (status, code), meanings in found.items():
        yield status, code, min(meanings)
    yield view.status, view.code, "A fault in the gateway itself; the log has a traceback under the request's id"


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|").replace("<", "&lt;")
