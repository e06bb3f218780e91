"""The quart-trio app: every route of the table, and JSON errors for everything that is none."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import SWITCHING_PROTOCOLS
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import quart
import trio
from quart.wrappers.response import ResponseBody
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as RouteNotForMethod
from werkzeug.exceptions import NotFound as RouteNotFound

from smg_trio.core.errors import NotFound, SmgError
from smg_trio.core.log_context import request_id, trace_id
from smg_trio.gateway.apps.refusals import note_answer, refuse
from smg_trio.gateway.close_codes import CLOSE_LIMIT_S
from smg_trio.gateway.dashboard.feed_socket import FeedSocket, Socket, check_handshake
from smg_trio.gateway.generation.response_socket import ROUTE, ResponseSocket
from smg_trio.gateway.handling import handle, request_id_of
from smg_trio.gateway.http import WEBSOCKET, ByteStream, Request, Response
from smg_trio.gateway.request_body.incoming import incoming_body
from smg_trio.gateway.request_context import RequestContext
from smg_trio.gateway.routes import Route, served_routes
from smg_trio.gateway.security.cors import cors_headers, preflight_headers
from smg_trio.gateway.security.key_ring import Access
from smg_trio.http.faults import MethodNotAllowed, RequestFault

if TYPE_CHECKING:
    from smg_trio.gateway.dashboard.feed import LiveFeed
    from smg_trio.gateway.state import Gateway


def make_app(gateway: Gateway, feed: LiveFeed | None) -> QuartTrio:
    """The app with every route mounted; without `feed`, those of the live page are missing."""
    app = QuartTrio("smg_trio")
    app.config.update(
        MAX_CONTENT_LENGTH=None,  # the server has looked at it
        RESPONSE_TIMEOUT=None,  # a healthy stream has no wall-clock limit of the framework's; answers have ours
        BODY_TIMEOUT=None,  # the server limits the wait between two reads of a body
        PROVIDE_AUTOMATIC_OPTIONS=False,
    )
    # A redirect would be one more way around a route's own checks.
    app.url_map.merge_slashes = False
    for route in served_routes(dashboard=feed is not None, metrics=gateway.settings.metrics_on_port):
        app.add_url_rule(
            route.path,
            f"{route.method} {route.path}",
            _view(gateway, route),
            methods=[route.method],
            provide_automatic_options=False,
        )
    app.add_websocket(ROUTE, "websocket /v1/responses", _response_socket_view(gateway))
    if feed is not None:
        app.add_websocket("/dashboard/feed", "websocket /dashboard/feed", _feed_view(gateway, feed))
    app.register_error_handler(HTTPException, _error_view(gateway))
    return app


def _view(gateway: Gateway, route: Route) -> Callable[..., Awaitable[quart.Response]]:
    async def view(**path_parameters: str) -> quart.Response:
        request = _neutral_request(gateway, path_parameters)
        return _quart_response(gateway, await handle(gateway, route, request))

    return view


def _response_socket_view(gateway: Gateway) -> Callable[[], Awaitable[None]]:
    async def view() -> None:
        headers = {name.lower(): value for name, value in quart.websocket.headers.items()}
        admit = functools.partial(gateway.admit, Access.MODELS, headers, ROUTE)
        try:
            await admit()
        except SmgError as error:
            # Refused in the handshake, with the body and status that HTTP would get.
            quart.abort(_refused(gateway, error, headers))
        socket = ResponseSocket(gateway, admit, quart.websocket.receive, quart.websocket.send, headers)
        with _logged(gateway, ROUTE, headers):
            await quart.websocket.accept()
            code, reason = await socket.run()
            with trio.move_on_after(CLOSE_LIMIT_S):
                await quart.websocket.close(code, reason)

    return view


def _feed_view(gateway: Gateway, feed: LiveFeed) -> Callable[[], Awaitable[None]]:
    async def view() -> None:
        headers = {name.lower(): value for name, value in quart.websocket.headers.items()}
        try:
            admitted = await check_handshake(headers, gateway.admit)
        except SmgError as error:
            quart.abort(_refused(gateway, error, headers))
        with _logged(gateway, "/dashboard/feed", headers):
            await quart.websocket.accept()
            await FeedSocket(feed, gateway.admit, cast("Socket", quart.websocket), headers).run(admitted=admitted)

    return view


@contextmanager
def _logged(gateway: Gateway, route: str, headers: Mapping[str, str]) -> Iterator[None]:
    """Have the connection's line in the access log, once it has ended. Lines of an earlier request's trace end here."""
    request_id.set(request_id_of(headers, gateway.settings.request_id_headers)[0])
    trace_id.set("")
    line = gateway.access.begin(WEBSOCKET, route)
    try:
        yield
    finally:
        if line is not None:
            line.answered(SWITCHING_PROTOCOLS, "")
            line.ended(complete=True)


def _neutral_request(gateway: Gateway, path_parameters: dict[str, str]) -> Request:
    incoming = quart.request
    headers = {name.lower(): value for name, value in incoming.headers.items()}
    return Request(
        method=incoming.method,
        path=incoming.path,
        headers=headers,
        context=RequestContext(*request_id_of(headers, gateway.settings.request_id_headers)),
        incoming=incoming_body(incoming.scope),
        path_parameters=path_parameters,
        query=incoming.args.to_dict(),
        repeated=dict(incoming.args.lists()),
    )


def _quart_response(gateway: Gateway, response: Response) -> quart.Response:
    origin = quart.request.headers.get("origin")
    outgoing = quart.Response(b"", response.status)
    outgoing.headers.clear()
    for name, value in [*response.headers, *cors_headers(origin, gateway.origins.allowed)]:
        outgoing.headers.add(name, value)
    outgoing.timeout = None
    if isinstance(response.body, bytes):
        outgoing.set_data(response.body)
    else:
        outgoing.response = _StreamBody(response.body, response.on_end)
    return outgoing


class _StreamBody(ResponseBody):
    """A `ByteStream` as Quart iterates it; leaving the context, however, closes the stream."""

    def __init__(self, stream: ByteStream, on_end: Callable[[bool], None] | None) -> None:
        self._stream = stream
        self._on_end = on_end

    async def __aenter__(self) -> AsyncIterable[bytes]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        complete = kind is None and self._stream.ended
        self._stream.close()
        if self._on_end is not None:
            self._on_end(complete)

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._chunks()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        ended = False
        while not ended:
            chunk = await self._stream.next_chunk()
            ended = self._stream.ended
            yield chunk


def _error_view(gateway: Gateway) -> Callable[[HTTPException], Awaitable[quart.Response]]:
    async def view(error: HTTPException) -> quart.Response:
        upgrade = quart.has_websocket_context()
        incoming = quart.websocket if upgrade else quart.request
        method = WEBSOCKET if upgrade else quart.request.method
        headers = {name.lower(): value for name, value in incoming.headers.items()}
        if method == "OPTIONS" and isinstance(error, (RouteNotForMethod, RouteNotFound)):
            asked = headers.get("access-control-request-headers")
            response = Response(204, b"", preflight_headers(headers.get("origin"), gateway.origins.allowed, asked))
            request_id = request_id_of(headers, gateway.settings.request_id_headers)[0]
            response.headers.append(("x-request-id", request_id))
            note_answer(gateway, method, incoming.path, response)
        else:
            response = refuse(gateway, _fault_of(error, method, incoming.path), method, incoming.path, headers)
        return _plain_quart_response(response)

    return view


def _refused(gateway: Gateway, error: Exception, headers: Mapping[str, str]) -> quart.Response:
    """The answer to the present WebSocket handshake."""
    return _plain_quart_response(refuse(gateway, error, WEBSOCKET, quart.websocket.path, headers))


def _plain_quart_response(response: Response) -> quart.Response:
    body: Any = response.body
    outgoing = quart.Response(body, response.status)
    outgoing.headers.remove("content-type")
    for name, value in response.headers:
        outgoing.headers.add(name, value)
    return outgoing


def _fault_of(error: HTTPException, method: str, path: str) -> Exception:
    if isinstance(error, RouteNotFound):
        return NotFound(f"Invalid URL ({'GET' if method == WEBSOCKET else method} {path})")
    if isinstance(error, RouteNotForMethod):
        return MethodNotAllowed(f"{method} is not allowed for {path}.", sorted(error.valid_methods or ()))
    if error.code is not None and error.code < 500:
        return RequestFault(error.description or error.name)
    return RuntimeError(error.name)
