"""The Responses API where workers behind HTTP serve the model: a response stays with the worker that made it.

The gateway notes the id of each response that passes, with the worker and the key holder it is for, so what follows on
only its own request finds the way. The notes are kept with the history, for as long as its kind keeps. An id of
which nothing is noted is looked for at the workers, but only where models need no key: a worker knows this gateway's
key alone, so it could not tell whose response it is.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.api.errors import error_view
from smg_trio.api.openai.responses.stored import response_not_found
from smg_trio.api.sse import named_event
from smg_trio.core.conversations import SHARED
from smg_trio.core.errors import EngineFault, SmgError, UnsupportedFeature
from smg_trio.core.workers import WorkerState
from smg_trio.gateway.generation.responses_run import OPENAI_MODELS
from smg_trio.gateway.relay.body import read_body
from smg_trio.gateway.relay.dispatch import RelayKind, chosen_model, plan_of, send, upstream_request
from smg_trio.gateway.relay.session import RelayPlan
from smg_trio.upstream.client import UpstreamRequest

if TYPE_CHECKING:
    from smg_trio.gateway.http import Request, Response
    from smg_trio.gateway.state import Gateway
    from smg_trio.upstream.http_worker import HttpWorker

_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_.-]{1,200})"')
_LOOKED_AT_BYTES: Final = 256 * 1024
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
    following, pinned = body.value.get("previous_response_id"), None
    if isinstance(following, str):
        pinned = await _find(gateway, following, owner, gateway.registry.http.workers(model))
        if pinned is None:
            raise response_not_found(following)
    plan = plan_of(gateway, _KIND, request, body, model, pinned)
    if body.value.get("store") is False:
        return await send(gateway, request, plan, started)
    if gateway.history is not None:
        gateway.history.ensure_writable()
    return await send(gateway, request, plan, started, _NoteId(gateway, owner))


class _NoteId:
    """Notes the response's id once it has come: before the client knows it, since that may ask for it immediately."""

    def __init__(self, gateway: Gateway, owner: str) -> None:
        self._gateway = gateway
        self._owner = owner
        self._seen = b""

    async def __call__(self, worker_url: str, data: bytes) -> bool:
        """See `Look`. Raises HistoryUnavailable."""
        self._seen += data
        found = _RESPONSE_ID.search(self._seen)
        if found is not None:
            await self._gateway.relayed.put_relayed(found.group(1).decode(), worker_url, self._owner)
        return found is not None or len(self._seen) > _LOOKED_AT_BYTES


async def kept_response(gateway: Gateway, request: Request) -> Response | None:
    """What is asked of a stored response; None if the endpoint is to answer. Raises NotFound, NoReadyWorker."""
    response_id = request.path_parameters["response_id"]
    owner = gateway.keys.owner(request.context.holder)
    known = await gateway.relayed.find_relayed(response_id, owner)
    if known is None and await _kept_here(gateway, response_id):
        return None
    pinned = await _find(gateway, response_id, owner, gateway.registry.http.workers())
    if pinned is None:
        if gateway.history is None:  # the endpoint would say that nothing is ever stored
            raise response_not_found(response_id)
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
        pinned=pinned,
        failed=_failed_without_id,
    )
    response = await send(gateway, request, plan, trio.current_time())
    if request.method == "DELETE" and response.status == 200:
        await gateway.relayed.delete_relayed(response_id, owner)
    return response


def _failed_without_id(error: SmgError) -> bytes:
    return failed(error, "")


async def _kept_here(gateway: Gateway, response_id: str) -> bool:
    return gateway.history is not None and await gateway.history.has_response(response_id)


async def _find(gateway: Gateway, response_id: str, owner: str, workers: list[HttpWorker]) -> str | None:
    """URL of the worker that keeps it, if its owner may see it. Raises HistoryUnavailable."""
    known = await gateway.relayed.find_relayed(response_id, owner)
    if known is not None:
        return known.worker_url if known.visible else None
    if owner != SHARED or _RESPONSE_ID.fullmatch(b'"id":"%s"' % response_id.encode("ascii", "replace")) is None:
        return None
    for worker in workers:
        if worker.state is WorkerState.READY and await _has(worker, response_id):
            await gateway.relayed.put_relayed(response_id, worker.spec.url, SHARED)
            return worker.spec.url
    return None


async def _has(worker: HttpWorker, response_id: str) -> bool:
    request = worker.with_key(UpstreamRequest(method="GET", path=f"/v1/responses/{response_id}"))
    try:
        head, _ = await worker.client.fetch(request, _PROBE_BYTES, _PROBE_LIMIT_S)
    except EngineFault:
        return False
    return head.status == 200
