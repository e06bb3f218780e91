"""The Responses API where workers behind HTTP serve the model: a response stays with the worker that made it.

The gateway notes the id of each response that passes, with the worker and the key holder it is for, so what follows on
it finds the way and nobody else's does. An id that it has not seen (it was made before this gateway started) is looked
for at the workers, but only where models need no key: a worker knows this gateway's key alone, so it could not tell
whose response it is.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.api.errors import error_view
from smg_trio.api.openai.responses.stored import response_not_found
from smg_trio.api.sse import named_event
from smg_trio.core.conversations import SHARED, is_visible
from smg_trio.core.errors import EngineFault, SmgError, UnsupportedFeature
from smg_trio.core.workers import WorkerState
from smg_trio.gateway.generation.responses_run import OPENAI_MODELS
from smg_trio.gateway.relay.body import read_body
from smg_trio.gateway.relay.dispatch import RelayKind, chosen_model, plan_of, send, upstream_request
from smg_trio.gateway.relay.session import RelayPlan
from smg_trio.upstream.client import UpstreamRequest

if TYPE_CHECKING:
    from smg_trio.gateway.http import Request, Response
    from smg_trio.gateway.response_ids import Pin
    from smg_trio.gateway.state import Gateway
    from smg_trio.upstream.http_worker import HttpWorker

_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_.-]{1,200})"')
_PROBE_LIMIT_S: Final = 5.0
_PROBE_BYTES: Final = 64 * 1024 * 1024


def failed(error: SmgError, _request_id: str) -> bytes:
    """The ``error`` event of the Responses API."""
    view = error_view(error)
    value: dict[str, Any] = {"type": "error", "code": view.code, "message": view.message, "param": None}
    return named_event("error", json.dumps(value).encode("ascii"))


_KIND: Final = RelayKind(endpoint="responses", stands_in_for=OPENAI_MODELS, failed=failed)


async def create_response(gateway: Gateway, request: Request) -> Response | None:
    """``POST /v1/responses``. Raises ClientFault, NoReadyWorker; None if the endpoint is to answer."""
    started = trio.current_time()
    body = await gateway.preparer.read(request.body, read_body)
    model = chosen_model(gateway, _KIND, request, body)
    if model is None:
        return None
    if body.value.get("conversation") is not None:
        raise UnsupportedFeature(
            f"The model `{model}` is served behind HTTP, where conversations of this gateway are not known; leave "
            "conversation out and go on with previous_response_id.",
            param="conversation",
        )
    owner = gateway.keys.owner(request.context.holder)
    following, pin = body.value.get("previous_response_id"), None
    if isinstance(following, str):
        pin = await _find(gateway, following, owner, gateway.registry.http.workers(model))
        if pin is None:
            raise response_not_found(following)
    plan = plan_of(gateway, _KIND, request, body, model, None if pin is None else pin.worker_id)
    return await send(gateway, request, plan, started, partial(_note_id, gateway, owner))


def _note_id(gateway: Gateway, owner: str, data: bytes, worker_id: str) -> bool:
    found = _RESPONSE_ID.search(data)
    if found is not None:
        gateway.pins.note(found.group(1).decode(), worker_id, owner)
    return found is not None


async def kept_response(gateway: Gateway, request: Request) -> Response | None:
    """What is asked of a stored response by its id. Raises NoReadyWorker; None if the endpoint is to answer."""
    response_id = request.path_parameters["response_id"]
    owner = gateway.keys.owner(request.context.holder)
    if gateway.pins.find(response_id) is None and await _kept_here(gateway, response_id):
        return None
    pin = await _find(gateway, response_id, owner, gateway.registry.http.workers())
    if pin is None:
        return None
    plan = RelayPlan(
        endpoint="responses",
        model="",
        text=b"",
        request=upstream_request(gateway, request, request.body),
        stream=False,
        asked_tokens=0,
        generation=False,
        pooled=False,
        routing_key=None,
        pinned=pin.worker_id,
        failed=_failed_without_id,
    )
    response = await send(gateway, request, plan, trio.current_time())
    if request.method == "DELETE" and response.status == 200:
        gateway.pins.forget(response_id)
    return response


def _failed_without_id(error: SmgError) -> bytes:
    return failed(error, "")


async def _kept_here(gateway: Gateway, response_id: str) -> bool:
    return gateway.history is not None and await gateway.history.has_response(response_id)


async def _find(gateway: Gateway, response_id: str, owner: str, workers: list[HttpWorker]) -> Pin | None:
    """Which worker keeps it, if its owner may see it."""
    pin = gateway.pins.find(response_id)
    if pin is not None:
        return pin if is_visible(pin.owner, owner) else None
    if owner != SHARED or _RESPONSE_ID.fullmatch(b'"id":"%s"' % response_id.encode("ascii", "replace")) is None:
        return None
    for worker in workers:
        if worker.state is WorkerState.READY and await _has(worker, response_id):
            gateway.pins.note(response_id, worker.spec.worker_id, SHARED)
            return gateway.pins.find(response_id)
    return None


async def _has(worker: HttpWorker, response_id: str) -> bool:
    request = worker.with_key(UpstreamRequest(method="GET", path=f"/v1/responses/{response_id}"))
    try:
        head, _ = await worker.client.fetch(request, _PROBE_BYTES, _PROBE_LIMIT_S)
    except EngineFault:
        return False
    return head.status == 200
