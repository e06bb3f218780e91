"""The server's request limits as an ASGI wrapper, for what hypercorn reads (h2, TLS, the fallback).

The fast lane enforces the same limits while it parses; hypercorn has none of its own. Besides, hypercorn says
"disconnect" from within the last send of a response, before it has closed or recycled the connection: an app that
cancels itself then would cancel that too, and leave the connection open and idle. So it hears of it afterwards.
"""

from __future__ import annotations

import trio

from smg_trio.gateway.server.asgi import App, Message, Receive, Scope, Send
from smg_trio.gateway.server.faults import (
    HeadersTooLarge,
    RequestFault,
    RequestTimeout,
    RequestTooLarge,
    error_body,
    error_headers,
)
from smg_trio.gateway.server.settings import ServerLimits


def limit_requests(app: App, limits: ServerLimits) -> App:
    """Wraps ``app``: bodies, header counts and stalled uploads beyond ``limits`` are answered here."""

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _LimitedRequest(app, limits, receive, send).run(scope)
        else:
            await app(scope, receive, send)

    return limited


class _LimitedRequest:
    """One request on its way into the app."""

    __slots__ = ("_app", "_body_ended", "_ending", "_limits", "_read", "_receive", "_send", "_started")

    def __init__(self, app: App, limits: ServerLimits, receive: Receive, send: Send) -> None:
        self._app = app
        self._limits = limits
        self._receive = receive
        self._send = send
        self._read = 0
        self._body_ended = False
        self._started = False
        self._ending: trio.Event | None = None

    async def run(self, scope: Scope) -> None:
        """Runs the app; a fault raised by `receive` that the app lets through is answered here."""
        try:
            self._check_head(scope)
            await self._app(scope, self.receive, self.send)
        except RequestFault as fault:
            await self._answer(fault)
        except BaseExceptionGroup as group:
            faults, rest = group.split(RequestFault)
            if faults is None or rest is not None:
                raise
            await self._answer(_first(faults))

    def _check_head(self, scope: Scope) -> None:
        headers = scope["headers"]
        if len(headers) > self._limits.max_headers:
            raise HeadersTooLarge(f"The request has more than {self._limits.max_headers} headers.")
        if sum(len(name) + len(value) for name, value in headers) > self._limits.max_header_bytes:
            raise HeadersTooLarge(f"The request head is larger than {self._limits.max_header_bytes} bytes.")
        for name, value in headers:
            if name == b"content-length" and int(value) > self._limits.max_body_bytes:
                raise RequestTooLarge(self._limits.max_body_bytes)

    async def receive(self) -> Message:
        """The app's ``receive``: raises `RequestTooLarge` or `RequestTimeout` while the body is read."""
        if self._body_ended:
            message = await self._receive()
            if self._ending is not None:
                await self._ending.wait()
            return message
        with trio.move_on_after(self._limits.body_timeout_s) as scope:
            message = await self._receive()
        if scope.cancelled_caught:
            raise RequestTimeout("The request body did not arrive in time.")
        self._read += len(message.get("body", b""))
        self._body_ended = not message.get("more_body", False)
        if self._read > self._limits.max_body_bytes:
            raise RequestTooLarge(self._limits.max_body_bytes)
        return message

    async def send(self, message: Message) -> None:
        """The app's ``send``: notes that the response began."""
        self._started = True
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        self._ending = trio.Event()
        try:
            await self._send(message)
        finally:
            self._ending.set()

    async def _answer(self, fault: RequestFault) -> None:
        if self._started:
            return
        body = error_body(fault)
        headers = error_headers(body)
        await self._send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _first(group: BaseExceptionGroup[RequestFault]) -> RequestFault:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, RequestFault)
    return found
