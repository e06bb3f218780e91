"""What every request goes through, however it came in.

That is its key and the key's limits, content type, endpoint, errors, request id and counting. The one border at which
exceptions of endpoints are caught; `api.errors` turns them into bodies.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from smg_trio.api.errors import load_json
from smg_trio.core.errors import ClientFault, Forbidden, SmgError, Unauthorized
from smg_trio.core.log_context import request_id, trace_id
from smg_trio.core.random_digits import random_digits
from smg_trio.gateway.http import Request, Response
from smg_trio.gateway.observability.access_log import shown_path
from smg_trio.gateway.observability.logs import shown
from smg_trio.gateway.observability.observer import Observers, RequestObserver
from smg_trio.gateway.relay.kinds import RELAYS
from smg_trio.gateway.request_body.codings import UnsupportedContentEncoding, accepted_codings, coding_of
from smg_trio.gateway.security.authentication import AuthUnavailable
from smg_trio.gateway.security.key_ring import Access

if TYPE_CHECKING:
    from smg_trio.gateway.routes import Route
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")
audit = logging.getLogger("smg_trio.audit")

_MAX_REQUEST_ID_CHARS = 256


class UnsupportedMediaType(ClientFault):
    """A body that does not claim to be JSON."""

    code = "unsupported_media_type"
    status = 415


async def handle(gateway: Gateway, route: Route, request: Request) -> Response:
    """Answer a request whose head has come: look at its key, read its body, call the route's endpoint.

    Raises nothing but cancellation; the caller closes a `ByteStream` body.
    """
    context = request.context
    request_id.set(context.request_id)
    _observe(gateway, route, request)
    observer = context.observer
    try:
        response = await _answer(gateway, route, request)
        code = ""
    except Exception as error:  # noqa: BLE001 - it is logged with its traceback where it becomes a response
        # The one border: what an endpoint raises becomes a body in the shape of its API. Nothing goes further, for the
        # connection may have other requests.
        response = _failed(gateway, route, request, error)
        code = dict(response.headers).get("x-smg-error-code", "")
    except BaseException:
        # Cancelled: the client has left, or the process ends. No response is read; the request is accounted for.
        observer.client_left()
        raise
    observer.answered(response.status, code)
    if isinstance(response.body, bytes):
        # Sending it is the server's part, which is not waited for: as far as the request goes, this is its end.
        observer.ended(complete=True)
    else:
        # Most of the request is still to come; the sender of the stream knows when it is over, and how it went.
        response.on_end = observer.ended
    if route.metered and context.holder.limits:
        # After the answer, for it is what the headers are about; a refusal says what is left, too.
        response.headers += await gateway.sharing.key_headers(gateway.meters, context.holder)
    if route.access is Access.ADMIN and gateway.settings.control_plane_audit_enabled:
        # Refusals as well: who tried is what an audit is read for.
        who = shown(context.key_name) if context.key_name else "anonymous"
        audit.info("%s %s by %s: %d", request.method, shown_path(request.path), who, response.status)
    response.headers.append(("x-request-id", context.request_id))
    return response


def _observe(gateway: Gateway, route: Route, request: Request) -> None:
    """Put together who hears of the request; what is turned off is not among them."""
    context = request.context
    members: list[RequestObserver] = [gateway.metrics.http.begins(route.method, route.path)]
    line = gateway.access.begin(request.method, route.path, public=route.public)
    if line is not None:
        members.append(line)
    if gateway.tracing is not None:
        if not route.public:  # probes would be most of all traces
            context.trace = gateway.tracing.begin(
                request.method, route.path, request.path, request.headers, context.request_id
            )
            members.append(context.trace)
        # Set in any case: an earlier request of this connection may have left its own.
        trace_id.set("" if context.trace is None else context.trace.trace_id)
    context.observer = Observers(members)


async def _answer(gateway: Gateway, route: Route, request: Request) -> Response:
    """Look at the key and its limits, then go on. Raises RateLimited before anything else is done."""
    context = request.context
    if not route.public:
        if gateway.auth is None:
            holder = gateway.keys.admit(route.access, request.headers)
        else:
            holder = await gateway.auth.admit(route.access, request.headers, request.method, request.path)
        context.holder = holder
        if holder.name:
            context.authenticated(holder.name)
        if route.metered:
            gateway.account(context)
    if not (route.metered and context.holder.limits):
        return await _call(gateway, route, request)
    with await gateway.sharing.key_slot(gateway.meters, context.holder) as slot:
        context.take(slot)
        return await _call(gateway, route, request)


async def _call(gateway: Gateway, route: Route, request: Request) -> Response:
    """Read the body and call the endpoint."""
    if not route.takes_body:
        request.incoming.skip()
        return await _endpoint(gateway, route, request)
    coding = coding_of(request.headers)
    try:
        if coding:
            limit, in_thread = gateway.settings.max_payload_size, gateway.preparer.in_thread
            request.body = await request.incoming.read_unpacked(coding, limit, in_thread)
        else:
            request.body = await request.incoming.read()
        if request.body and route.method == "POST":
            _check_content_type(request.headers)
        if gateway.hooks is not None and route.metered:
            await _show_hooks(gateway, request)
        return await _endpoint(gateway, route, request)
    finally:
        request.incoming.release()


async def _show_hooks(gateway: Gateway, request: Request) -> None:
    """Show the request to the hooks, and change it as they want. Raises MalformedJson, and what they refuse it with."""
    body = await gateway.preparer.read(request.body, load_json) if request.body else {}
    changed, routing_key = await gateway.show_hooks(request.context, body, request.path, request.headers)
    if changed is not body:
        request.body = await gateway.preparer.off_loop_if_long(
            len(request.body), lambda: json.dumps(changed, separators=(",", ":")).encode()
        )
    names = gateway.settings.routing_key_headers
    if routing_key is not None and names:
        request.headers = {**request.headers, names[0]: routing_key}


def _endpoint(gateway: Gateway, route: Route, request: Request) -> Awaitable[Response]:
    if route.managing and gateway.sharing.forwards:
        return gateway.sharing.forward(route.path, request)
    if gateway.registry.http:
        return _relayed_or_answered(gateway, route, request)
    return route.endpoint(gateway, request)


async def _relayed_or_answered(gateway: Gateway, route: Route, request: Request) -> Response:
    """Have a worker behind HTTP answer, if one is to, or the endpoint."""
    relay = RELAYS.get((route.method, route.path))
    relayed = None if relay is None else await relay(gateway, request)
    return await route.endpoint(gateway, request) if relayed is None else relayed


def _failed(gateway: Gateway, route: Route, request: Request, error: Exception) -> Response:
    """The response in the shape of the route's API; the error is logged if it is none of ours, and remembered."""
    context = request.context
    if not isinstance(error, SmgError):
        logger.exception("request to %s failed", route.path)
    if isinstance(error, Forbidden):
        # It was not admitted, so nothing says yet whose key it is.
        context.authenticated(error.key_name)
    gateway.errors.note(error, route.path, context.request_id)
    status, headers, body = route.failure(error, context.request_id)
    if isinstance(error, UnsupportedContentEncoding):
        headers.append(("accept-encoding", ", ".join(accepted_codings())))
    if isinstance(error, (Unauthorized, Forbidden, AuthUnavailable)) and request.incoming.unread:
        # Not even a little is read of a body without a key for it.
        headers.append(("connection", "close"))
    return Response(status, body, headers)


def _check_content_type(headers: Mapping[str, str]) -> None:
    if headers.get("content-type") == "application/json":
        return
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type and content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType(
            f"The content type {content_type} is not supported; send JSON with 'Content-Type: application/json'.",
        )


def request_id_of(headers: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, bool]:
    """The request's id and whether the client named it: the first usable one of the headers `names`, or a new one."""
    for name in names:
        value = headers.get(name)
        if value and len(value) <= _MAX_REQUEST_ID_CHARS and value.isascii() and value.isprintable():
            return value, True
    return f"req-{random_digits(24)}", False
