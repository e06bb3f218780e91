"""The busiest routes on bare ASGI, in front of the Quart app.

A request through Quart costs a few hundred microseconds of context and machinery; here it costs the endpoint. Both
ways lead through `handling.handle`, so nothing but speed may differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import ClientFault
from smg_trio.core.log_context import request_id as request_id_in_log
from smg_trio.core.log_context import trace_id as trace_id_in_log
from smg_trio.gateway.apps.asgi_responses import headers_of, method_of, raw_headers, send_refusal, send_whole
from smg_trio.gateway.apps.refusals import refuse
from smg_trio.gateway.handling import handle, request_id_of
from smg_trio.gateway.http import WEBSOCKET, BodyWrite, ByteStream, Headers, Request, Response
from smg_trio.gateway.request_body.incoming import IncomingBody, serve_unread
from smg_trio.gateway.request_context import RequestContext
from smg_trio.gateway.routes import ROUTES, Route
from smg_trio.gateway.security.cors import cors_headers
from smg_trio.http import CANCEL_ON_DISCONNECT, WRITE_BODY

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.http.asgi import App, Receive, Scope, Send


class HotRoutes:
    """An ASGI app that serves the hot routes itself and leaves the rest to `app`."""

    def __init__(self, gateway: Gateway, app: App) -> None:
        self._gateway = gateway
        self._app = app
        self._routes = {(route.method, route.path): route for route in ROUTES if route.hot}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3. The client leaving cancels the request; nothing is left running."""
        method, headers = method_of(scope), headers_of(scope)
        try:
            self._gateway.check_page(method, headers)
        except ClientFault as fault:
            await send_refusal(send, method, refuse(self._gateway, fault, method, scope["path"], headers))
            return
        route = self._routes.get((method, scope["path"]))
        if route is not None:
            await self._serve(route, headers, scope, receive, send)
        elif method == WEBSOCKET:
            await self._app(scope, receive, send)
        else:
            await serve_unread(self._app, self._gateway.bodies, scope, receive, send)

    async def _serve(
        self, route: Route, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        extensions = scope.get("extensions", {})
        register, write = extensions.get(CANCEL_ON_DISCONNECT), extensions.get(WRITE_BODY)
        if register is not None:
            await self._answer(route, self._request(scope, headers, receive, register), send, write)
            return
        async with trio.open_nursery() as nursery:

            def watch() -> None:
                nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)

            await self._answer(route, self._request(scope, headers, receive, watch), send)
            nursery.cancel_scope.cancel()

    def _request(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, watch: Callable[[], None]
    ) -> Request:
        return Request(
            method=scope["method"],
            path=scope["path"],
            headers=headers,
            context=RequestContext(*request_id_of(headers, self._gateway.settings.request_id_headers)),
            incoming=IncomingBody(receive, self._gateway.bodies, watch),
        )

    async def _answer(self, route: Route, request: Request, send: Send, write: BodyWrite | None = None) -> None:
        response = await handle(self._gateway, route, request)
        extra = cors_headers(request.headers.get("origin"), self._gateway.origins.allowed)
        if isinstance(response.body, bytes):
            await send_whole(send, response, response.body, extra)
        else:
            await _send_stream(send, write, response, response.body, extra)
        request_id_in_log.set("")
        if self._gateway.tracing is not None:
            trace_id_in_log.set("")


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _written_by(send: Send) -> BodyWrite:
    def write(data: bytes) -> Awaitable[None]:
        return send({"type": "http.response.body", "body": data, "more_body": True})

    return write


async def _send_stream(
    send: Send, write: BodyWrite | None, response: Response, stream: ByteStream, extra: Headers
) -> None:
    immediate = write is not None
    write = write or _written_by(send)
    complete = False
    try:
        headers = raw_headers([*response.headers, *extra])
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        while True:
            chunk = await stream.next_chunk()
            if stream.ended:
                # The last bytes and the end of the response go out in one write.
                await send({"type": "http.response.body", "body": chunk})
                complete = True
                return
            unsent = write(chunk)
            if unsent is not None:
                await unsent
            await stream.write_on(write, mostly_immediate=immediate)
    finally:
        stream.close()
        if response.on_end is not None:
            response.on_end(complete)
