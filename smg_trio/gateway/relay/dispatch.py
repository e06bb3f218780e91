"""Whether a request goes to a worker behind HTTP, and its way there and back.

A model is served by the workers that name it. Where only workers behind HTTP do, their requests are relayed; where
workers of both kinds do, the policy chooses among all of them, and the kind it has chosen decides. What nobody behind
HTTP serves is none of this module's business: the endpoint answers, or says that there is no such model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import trio

from smg_trio.api.errors import error_event
from smg_trio.core.errors import ModelNotFound, NoReadyWorker, SmgError, TokenizerNotRegistered
from smg_trio.gateway.http import Request, Response
from smg_trio.gateway.relay.body import RelayBody, read_body, routing_text, with_model
from smg_trio.gateway.relay.session import RelayPlan, RelaySession
from smg_trio.gateway.relay.stream import RelayStream
from smg_trio.upstream.client import UpstreamRequest
from smg_trio.upstream.errors import LoopDetected
from smg_trio.upstream.relay_headers import MAX_HOPS, hops_of, request_headers, response_headers

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.upstream.response_reader import ResponseHead

Relay = Callable[["Gateway", Request], Awaitable[Response | None]]
"""Answers a request if a worker behind HTTP is to; None if the endpoint is."""
Look = Callable[[str, bytes], Awaitable[bool]]
"""See `send`."""
ROUTED_WORKER: Final = "x-smg-routed-worker"


def _openai_failed(error: SmgError, _request_id: str) -> bytes:
    """An error event; ``[DONE]`` is missing, since the stream is not complete."""
    return error_event(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayKind:
    """How an endpoint is relayed.

    Attributes:
        endpoint: which API, in a word, as the endpoint itself calls it in metrics.
        generation, pooled: see `RelayPlan`.
        stands_in_for: names that begin so mean the only model, see `ModelCatalog.find`.
        failed: what ends a stream that fails, of the error and the request's id.
    """

    endpoint: str
    generation: bool = True
    pooled: bool = False
    stands_in_for: str | None = None
    failed: Callable[[SmgError, str], bytes] = _openai_failed


def relaying(kind: RelayKind) -> Relay:
    """The way of an endpoint whose body names a model."""
    return partial(_relay, kind)


async def _relay(kind: RelayKind, gateway: Gateway, request: Request) -> Response | None:
    started = trio.current_time()
    body = await gateway.preparer.read(request.body, read_body)
    model = chosen_model(gateway, kind, request, body)
    if model is None:
        return None
    return await send(gateway, request, plan_of(gateway, kind, request, body, model), started)


def chosen_model(gateway: Gateway, kind: RelayKind, request: Request, body: RelayBody) -> str | None:
    """The name by which workers behind HTTP know the model, if one of them is to answer; else None.

    Raises NoReadyWorker where a worker that has not said yet what it serves may be the one.
    """
    registry = gateway.registry
    model = _model_named(gateway, body.model, kind.stands_in_for)
    behind_http, here = bool(registry.http.workers(model)), _served_here(gateway, model)
    if not behind_http:
        unknown = [worker.spec.worker_id for worker in registry.http.workers() if not worker.models]
        if unknown and not here:
            raise NoReadyWorker(
                f"No worker for model `{model}` is ready ({', '.join(unknown)}: has not said yet what it serves)."
            )
        return None
    if here:
        text = routing_text(model, body.value)
        return model if registry.http.preferred(model, text, routing_key=gateway.routing_key(request.headers)) else None
    return model


def _model_named(gateway: Gateway, name: str, stands_in_for: str | None) -> str:
    known = {model for worker in gateway.registry.http.workers() for model in worker.models}
    for entry in gateway.settings.model_alias:
        alias, _, meant = entry.partition("=")
        if alias == name and meant in known:
            return meant
    stands_in = not name or (stands_in_for is not None and name.startswith(stands_in_for))
    if stands_in and name not in known and len(known) == 1 and not gateway.catalog.names():
        return next(iter(known))
    return name


def _served_here(gateway: Gateway, model: str) -> bool:
    """Whether workers with engines serve the model."""
    try:
        return bool(gateway.registry.workers(gateway.catalog.find(model).model_id))
    except TokenizerNotRegistered:
        return True  # soon; the endpoint says so
    except ModelNotFound:
        return False


def plan_of(
    gateway: Gateway, kind: RelayKind, request: Request, body: RelayBody, model: str, pinned: str | None = None
) -> RelayPlan:
    """How the request goes to a worker. Raises ShuttingDown, LoopDetected."""
    if kind.generation:
        gateway.refuse_if_draining()
    several = pinned is None and len(gateway.registry.http.workers(model)) > 1
    sent = request.body if body.model == model else with_model(request.body, model)
    return RelayPlan(
        endpoint=kind.endpoint,
        model=model,
        text=routing_text(model, body.value) if several else b"",
        request=upstream_request(gateway, request, sent),
        stream=body.stream,
        asked_tokens=body.asked_tokens,
        generation=kind.generation,
        pooled=kind.pooled,
        routing_key=gateway.routing_key(request.headers),
        pinned=pinned,
        failed=partial(_failed_with, kind.failed, request.context.request_id),
    )


def _failed_with(failed: Callable[[SmgError, str], bytes], request_id: str, error: SmgError) -> bytes:
    return failed(error, request_id)


def upstream_request(gateway: Gateway, request: Request, body: bytes) -> UpstreamRequest:
    """What a worker is sent. Raises LoopDetected."""
    if hops_of(request.headers) >= MAX_HOPS:
        raise LoopDetected(
            f"The request has gone through {MAX_HOPS} gateways: the workers of one of them lead back to it."
        )
    trace = request.context.trace
    headers = request_headers(
        request.headers,
        request_id=request.context.request_id,
        routing_key=gateway.routing_key(request.headers),
        trace=None if trace is None else trace.headers(),
        further=[name.lower() for name in gateway.settings.forward_headers],
    )
    query = urlencode([(name, value) for name, values in request.repeated.items() for value in values])
    return UpstreamRequest(
        method=request.method, path=f"{request.path}?{query}" if query else request.path, headers=headers, body=body
    )


async def send(
    gateway: Gateway,
    request: Request,
    plan: RelayPlan,
    started: float,
    look: Look | None = None,
) -> Response:
    """Relay a request and its response.

    `look` is shown the first reads of a successful response, with the worker's URL, before the client gets them, until
    it has seen what it looks for. Raises SmgError.
    """
    session = RelaySession(gateway, request.context, plan, started)
    try:
        head = await session.open()
        request.body = b""
        (worker_id,) = session.answer.worker_ids
        (url,) = session.answer.worker_urls
        shown = None if look is None or head.status >= 400 else partial(look, url)
        headers = [*response_headers(head.headers), (ROUTED_WORKER, worker_id)]
        if is_event_stream(head):
            return Response(head.status, RelayStream(session, head.status, shown), headers)
        body = await session.whole(head)
    except BaseException:
        session.close()
        raise
    session.close()
    if shown is not None:
        await shown(body)
    return Response(head.status, body, headers)


def is_event_stream(head: ResponseHead) -> bool:
    """Whether the response comes bit by bit. All others are read whole before anything of them is passed on."""
    content_type = head.get("content-type").partition(";")[0].strip().lower()
    return head.status < 400 and content_type in ("text/event-stream", "application/x-ndjson", "application/jsonlines")
