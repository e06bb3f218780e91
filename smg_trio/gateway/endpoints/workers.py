"""``/workers``: what the workers are and why they are not ready; add, change, replace and remove them at run time."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import trio

from smg_trio.api.worker_specs import (
    WorkerBody,
    accepted_value,
    check_parser_labels,
    check_same_model,
    check_same_url,
    parse_worker_body,
    parse_worker_id,
    parse_worker_patch,
    runtime_warning,
    worker_location,
    worker_spec,
)
from smg_trio.api.workers import application_value, worker_value, workers_value
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import InvalidRequest
from smg_trio.core.http_addresses import is_http_url
from smg_trio.core.workers import PendingWorker, WorkerSpec
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.gateway.models.loads import PARSER_LABELS
from smg_trio.parsers.registry import parser_name
from smg_trio.settings.checks import dp_aware_refusal
from smg_trio.worker.address_checks import check_not_self

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")


async def list_workers(gateway: Gateway, request: Request) -> Response:
    """List workers, or those of one model (``?model=``), pending and refused ones included."""
    registry, model = gateway.registry, request.query.get("model")
    ids = [worker.spec.worker_id for worker in registry.all_workers(model)]
    values = [worker_value(gateway.worker_snapshot(worker_id), registry.load(worker_id)) for worker_id in ids]
    values += [
        application_value(application)
        for application in registry.applications()
        if model is None or application.model_id == model
    ]
    return _json(workers_value(values))


async def show_worker(gateway: Gateway, request: Request) -> Response:
    """Show one worker. Raises NotFound, InvalidRequest."""
    worker_id = parse_worker_id(request.path_parameters["worker_id"])
    application = gateway.registry.application(worker_id)
    if application is not None:
        return _json(application_value(application))
    return _json(worker_value(gateway.worker_snapshot(worker_id), gateway.registry.load(worker_id)))


async def add_worker(gateway: Gateway, request: Request) -> Response:
    """Add a worker in the background: 202 immediately, its state at ``/workers/{id}``."""
    body = await gateway.parse_body(request, parse_worker_body)
    worker_id = str(uuid4())
    _warn_of_runtime(gateway, body)
    _warn_of_parsers(gateway, body)
    application = PendingWorker(
        worker_id=worker_id,
        url=body.url,
        model_id=body.model_id or ("" if is_http_url(body.url) else gateway.own_model or ""),
        runtime_type=body.runtime_type or ("generic" if is_http_url(body.url) else "vllm"),
    )
    gateway.registry.apply(application, partial(_make_spec, gateway, body, worker_id))
    await gateway.registry.wait_closed(body.url)
    response = _json(accepted_value(worker_id, "addition", body.url), 202)
    response.headers.append(("location", worker_location(worker_id)))
    return response


async def _make_spec(gateway: Gateway, body: WorkerBody, worker_id: str, *, wait: bool = False) -> WorkerSpec:
    spec = worker_spec(
        body,
        worker_id,
        model_id=gateway.own_model,
        default_protocol=_default_protocol(gateway),
        tool_parsers=await _parsers(gateway, body.labels, "tool_parser"),
        reasoning_parsers=await _parsers(gateway, body.labels, "reasoning_parser"),
    )
    if spec.over_http:
        check_not_self(spec.url, gateway.settings)
        return spec
    if gateway.settings.dp_aware and spec.engine_count > 1:
        raise InvalidRequest(dp_aware_refusal(spec.url, spec.engine_count))
    return await gateway.loads.model_of_worker(spec, wait=wait)


async def _parsers(gateway: Gateway, labels: Mapping[str, str], label: str) -> Collection[str]:
    """The names that the label may have, as far as it matters."""
    named = labels.get(label)
    known = named is not None and await trio.to_thread.run_sync(
        gateway.plugins.knows_parser, PARSER_LABELS[label], named
    )
    return [str(named)] if known else []


async def replace_worker(gateway: Gateway, request: Request) -> Response:
    """Replace a worker's settings; its connection stays if its engines stay the same."""
    worker_id = parse_worker_id(request.path_parameters["worker_id"])
    current = gateway.registry.get(worker_id)
    body = await gateway.parse_body(request, parse_worker_body)
    check_same_url(current.spec.url, body.url)
    _warn_of_runtime(gateway, body)
    # A worker that serves goes on with what it has until its new model is there.
    spec = replace(await _make_spec(gateway, body, worker_id, wait=True), source=current.spec.source)
    changed = False
    if spec.model_id == current.spec.model_id:
        changed = await gateway.model_changes.apply(worker_id, spec.labels, merge=False)
        spec = replace(spec, vocab_size=gateway.registry.get(worker_id).spec.vocab_size)
    await gateway.registry.replace(spec)
    if changed:
        await gateway.sharing.models_changed()
    return _json(accepted_value(worker_id, "update"), 202)


async def change_worker(gateway: Gateway, request: Request) -> Response:
    """Change some of a worker's settings, and its model where labels say so; its connection stays."""
    worker_id = parse_worker_id(request.path_parameters["worker_id"])
    spec = gateway.registry.get(worker_id).spec
    patch = await gateway.parse_body(request, parse_worker_patch)
    changed = False
    if patch.labels:
        check_same_model(spec, patch.labels)
        known = [await _parsers(gateway, patch.labels, label) for label in PARSER_LABELS]
        check_parser_labels(spec.url, patch.labels, spec.model_id, *known)
        changed = await gateway.model_changes.apply(worker_id, patch.labels, merge=True)
    gateway.registry.update(worker_id, patch)
    if changed:
        await gateway.sharing.models_changed()
    return _json(accepted_value(worker_id, "update"), 202)


async def remove_worker(gateway: Gateway, request: Request) -> Response:
    """Drain a worker, then remove it. Raises NotFound."""
    worker_id = parse_worker_id(request.path_parameters["worker_id"])
    gateway.registry.drain(worker_id)
    return _json(accepted_value(worker_id, "removal"), 202)


def _default_protocol(gateway: Gateway) -> EngineProtocol | None:
    backend = gateway.settings.backend
    return None if backend is None else EngineProtocol(backend)


def _warn_of_runtime(gateway: Gateway, body: WorkerBody) -> None:
    warning = runtime_warning(body, _default_protocol(gateway))
    if warning:
        logger.warning("%s", warning)


def _warn_of_parsers(gateway: Gateway, body: WorkerBody) -> None:
    """A model is shared by its workers: those that come later do not change it by coming."""
    served = next((model for model in gateway.catalog if model.model_id == body.model_id), None)
    if served is None:
        return
    for label, parser in (("tool_parser", served.tool_parser), ("reasoning_parser", served.reasoning_parser)):
        asked, name = body.labels.get(label), parser_name(parser)
        if asked and asked != name:
            logger.warning(
                "worker %s: model %s is served with %s %s; the label %s takes effect by PATCH /workers/{id}",
                body.url, served.model_id, label, name or "auto", asked,
            )  # fmt: skip


def _json(value: object, status: int = 200) -> Response:
    return json_response(json.dumps(value).encode(), status)
