"""What every request goes through, however it came in: key and its limits, content type, endpoint, errors, request id,
counting.

The one border at which exceptions of endpoints are caught; `api.errors` turns them into bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from smg_trio.core.errors import ClientFault, Forbidden, SmgError, Unauthorized
from smg_trio.core.log_context import request_id, trace_id
from smg_trio.core.random_digits import random_digits
from smg_trio.gateway.body_codings import UnsupportedContentEncoding, accepted_codings, coding_of
from smg_trio.gateway.http import Request, Response
from smg_trio.gateway.observability.access_log import CLIENT_LEFT, shown_path
from smg_trio.gateway.observability.current_trace import current as current_trace
from smg_trio.gateway.observability.http_metrics import CLIENT_LEFT_CODE, HttpExchange
from smg_trio.gateway.observability.logs import shown
from smg_trio.gateway.routes import Route
from smg_trio.gateway.security.key_limits import current_slot
from smg_trio.gateway.security.key_ring import EVERYBODY, Access, KeyHolder
from smg_trio.gateway.state import Gateway

if TYPE_CHECKING:
    from smg_trio.gateway.observability.tracing import RequestTrace

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
    request_id.set(request.request_id)
    access = gateway.access.begin(request.method, route.path, public=route.public)
    holder, key_name = EVERYBODY, ""
    exchange = gateway.metrics.http.begins(route.method, route.path)
    trace = None
    if gateway.tracing is not None:
        # Set in any case: an earlier request of this connection may have left its own.
        trace = None if route.public else gateway.tracing.begin(request, route.path)
        current_trace.set(trace)
        trace_id.set("" if trace is None else trace.trace_id)
    try:
        if not route.public:
            request.holder = holder = gateway.keys.admit(route.access, request.headers)
            key_name = holder.name
        if holder.limits and route.metered:
            response = await _answer_within_limits(gateway, route, request, holder)
        else:
            response = await _answer(gateway, route, request)
        code = ""
    except Exception as error:
        if not isinstance(error, SmgError):
            logger.exception("request to %s failed", route.path)
        key_name = error.key_name if isinstance(error, Forbidden) else key_name
        gateway.errors.note(error, route.path)
        response = _failed(route, request, error)
        code = dict(response.headers).get("x-smg-error-code", "")
    except BaseException:
        exchange.answered(CLIENT_LEFT, CLIENT_LEFT_CODE)
        exchange.ended()
        if trace is not None:
            trace.end(CLIENT_LEFT, CLIENT_LEFT_CODE, client_left=True)
        if access is not None:
            access.key = key_name
            access.end(CLIENT_LEFT, client_left=True)
        raise
    if access is not None:
        access.key = key_name
        access.follow(response, code)
    exchange.answered(response.status, code)
    if isinstance(response.body, bytes):
        exchange.ended()
        if trace is not None:
            trace.end(response.status, code)
    else:
        response.on_end = _ending(exchange, trace, response.status, response.on_end)
    if holder.limits and route.metered:
        response.headers += gateway.meters.of(holder).headers()
    if route.access is Access.ADMIN and gateway.settings.control_plane_audit_enabled:
        who = shown(key_name) if key_name else "nobody"
        audit.info("%s %s by %s: %d", request.method, shown_path(request.path), who, response.status)
    response.headers.append(("x-request-id", request.request_id))
    return response


async def _answer_within_limits(gateway: Gateway, route: Route, request: Request, holder: KeyHolder) -> Response:
    """Raises RateLimited before anything is done. What goes on after this holds the place itself."""
    with gateway.meters.of(holder).enter() as place:
        token = current_slot.set(place)
        try:
            return await _answer(gateway, route, request)
        finally:
            current_slot.reset(token)


async def _answer(gateway: Gateway, route: Route, request: Request) -> Response:
    """Read the body and call the endpoint."""
    if not route.takes_body:
        request.incoming.skip()
        return await route.endpoint(gateway, request)
    coding = coding_of(request.headers)
    try:
        if coding:
            limit, in_thread = gateway.settings.max_payload_size, gateway.preparer.in_thread
            request.body = await request.incoming.read_unpacked(coding, limit, in_thread)
        else:
            request.body = await request.incoming.read()
        if request.body and route.method == "POST":
            _check_content_type(request.headers)
        return await route.endpoint(gateway, request)
    finally:
        request.incoming.release()


def _ending(
    exchange: HttpExchange, trace: RequestTrace | None, status: int, on_end: Callable[[bool], None] | None
) -> Callable[[bool], None]:
    """What is to be done at the end of a stream."""

    def ended(complete: bool) -> None:
        exchange.ended()
        if trace is not None:
            trace.end(status, client_left=not complete)
        if on_end is not None:
            on_end(complete)

    return ended


def _failed(route: Route, request: Request, error: Exception) -> Response:
    """The response in the shape of the route's API."""
    status, headers, body = route.failure(error, request.request_id)
    if isinstance(error, UnsupportedContentEncoding):
        headers.append(("accept-encoding", ", ".join(accepted_codings())))
    if isinstance(error, (Unauthorized, Forbidden)) and request.incoming.unread:
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
