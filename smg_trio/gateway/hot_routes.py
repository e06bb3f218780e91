"""The busiest routes on bare ASGI, in front of the Quart app.

A request through Quart costs a few hundred microseconds of context and machinery; here it costs the endpoint. Both
ways lead through `handling.handle`, so nothing but speed may differ.
"""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from smg_trio.core.errors import RequestTooLarge
from smg_trio.core.log_context import request_id as request_id_in_log
from smg_trio.core.log_context import trace_id as trace_id_in_log
from smg_trio.gateway.cors import cors_headers
from smg_trio.gateway.handling import failure, handle, request_id_of
from smg_trio.gateway.http import BodyWrite, ByteStream, Headers, Request, Response
from smg_trio.gateway.routes import ROUTES, Route
from smg_trio.gateway.server import CANCEL_ON_DISCONNECT, WRITE_BODY
from smg_trio.gateway.server.asgi import App, Receive, Scope, Send
from smg_trio.gateway.state import Gateway


class HotRoutes:
    """An ASGI app that serves the hot routes itself and leaves the rest to `app`."""

    def __init__(self, gateway: Gateway, app: App) -> None:
        self._gateway = gateway
        self._app = app
        self._routes = {(route.method, route.path): route for route in ROUTES if route.hot}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3. The client leaving cancels the request; nothing is left running."""
        if scope["type"] == "http":
            route = self._routes.get((scope["method"], scope["path"]))
            if route is not None:
                await self._serve(route, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _serve(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive, self._gateway.settings.max_payload_size)
        if body is None:
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request_id, named = request_id_of(headers, self._gateway.settings.request_id_headers)
        if isinstance(body, RequestTooLarge):
            response = failure(body)
            response.headers.append(("x-request-id", request_id))
            self._gateway.metrics.http.refused(route.method, response.status, route.path)
            self._gateway.access.refused(route.method, route.path, response.status, request_id)
            assert isinstance(response.body, bytes), "failures have a body"
            await _send_whole(send, response, response.body, [])
            return
        request = Request(
            method=scope["method"],
            path=scope["path"],
            headers=headers,
            body=body,
            request_id=request_id,
            client_named_request=named,
        )
        extensions = scope.get("extensions", {})
        register, write = extensions.get(CANCEL_ON_DISCONNECT), extensions.get(WRITE_BODY)
        if register is not None:
            register()
            await self._answer(route, request, send, write)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
            await self._answer(route, request, send)
            nursery.cancel_scope.cancel()

    async def _answer(self, route: Route, request: Request, send: Send, write: BodyWrite | None = None) -> None:
        response = await handle(self._gateway, route, request)
        extra = cors_headers(request.headers.get("origin"), self._gateway.settings.cors_allowed_origins)
        if isinstance(response.body, bytes):
            await _send_whole(send, response, response.body, extra)
        else:
            await _send_stream(send, write, response, response.body, extra)
        request_id_in_log.set("")
        if self._gateway.tracing is not None:
            trace_id_in_log.set("")


async def _read_body(receive: Receive, limit: int) -> bytes | RequestTooLarge | None:
    """The whole body; None if the client left meanwhile."""
    message = await receive()
    if message["type"] != "http.request":
        return None
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return RequestTooLarge("The request body is larger than --max-payload-size allows.")
    return b"".join(parts)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]


async def _send_whole(send: Send, response: Response, body: bytes, extra: Headers) -> None:
    headers = _raw([*response.headers, *extra, ("content-length", str(len(body)))])
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _written_by(send: Send) -> BodyWrite:
    def write(data: bytes) -> Awaitable[None]:
        return send({"type": "http.response.body", "body": data, "more_body": True})

    return write


async def _send_stream(
    send: Send, write: BodyWrite | None, response: Response, stream: ByteStream, extra: Headers
) -> None:
    write = write or _written_by(send)
    complete = False
    try:
        headers = _raw([*response.headers, *extra])
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
            await stream.write_on(write)
    finally:
        stream.close()
        if response.on_end is not None:
            response.on_end(complete)
