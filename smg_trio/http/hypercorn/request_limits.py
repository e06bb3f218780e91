"""The server's request limits as an ASGI wrapper, for what hypercorn reads (h2, TLS, the fallback).

The fast lane enforces the same limits while it parses; hypercorn has none of its own. Besides, hypercorn says
"disconnect" from within the last send of a response, before it has closed or recycled the connection: an app that
cancels itself then would cancel that too, and leave the connection open and idle. So it hears of it afterwards.
"""

from __future__ import annotations

import trio

from smg_trio.http.app_tasks import STOP_READING
from smg_trio.http.asgi import App, Headers, Message, Receive, Scope, Send
from smg_trio.http.body_pace import BodyPace
from smg_trio.http.faults import (
    HeadersTooLarge,
    RequestFault,
    RequestTimeout,
    RequestTooLarge,
    error_body,
    error_headers,
)
from smg_trio.http.settings import ServerLimits


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

    __slots__ = (
        "_app", "_body_ended", "_closes", "_ending", "_http1", "_limits", "_pace", "_read", "_receive", "_send",
        "_started", "_stop_reading",
    )  # fmt: skip

    def __init__(self, app: App, limits: ServerLimits, receive: Receive, send: Send) -> None:
        self._app = app
        self._limits = limits
        self._receive = receive
        self._send = send
        self._read = 0
        self._body_ended = False
        self._started = False
        self._ending: trio.Event | None = None
        self._pace: BodyPace | None = None

    async def run(self, scope: Scope) -> None:
        """Runs the app; a fault raised by `receive` that the app lets through is answered here."""
        self._http1 = scope["http_version"] in ("1.0", "1.1")
        self._closes = self._http1 and _declares_body(scope)
        self._stop_reading = scope["extensions"][STOP_READING]
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
        message = await (self._receive() if self._body_ended else self._receive_body())
        if self._ending is not None and message["type"] == "http.disconnect":
            await self._ending.wait()
        return message

    async def _receive_body(self) -> Message:
        pace = self._pace
        if pace is None:
            pace = self._pace = BodyPace(self._limits, trio.current_time())
        with trio.move_on_at(pace.due) as scope:
            message = await self._receive()
        if scope.cancelled_caught:
            raise RequestTimeout("The request body did not arrive in time.")
        size = len(message.get("body", b""))
        pace.came(size, trio.current_time())
        self._read += size
        self._body_ended = not message.get("more_body", False)
        if self._read > self._limits.max_body_bytes:
            raise RequestTooLarge(self._limits.max_body_bytes)
        return message

    async def send(self, message: Message) -> None:
        """The app's ``send``. The end of the response is the end of the body too, whatever is left of it."""
        if message["type"] == "http.response.start":
            self._started = True
            message = message | {"headers": self._framed(list(message.get("headers", ())))}
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        if not self._body_ended:
            self._stop_reading()
        self._ending = trio.Event()
        try:
            await self._send(message)
        finally:
            self._ending.set()

    def _framed(self, headers: Headers) -> Headers:
        """Headers of a response; they say that the connection closes where the body was not read.

        HTTP/2 has no header for that, and no need: one stream is reset.
        """
        if not self._http1:
            return [header for header in headers if header[0] != b"connection"]
        if self._closes and not self._body_ended and (b"connection", b"close") not in headers:
            headers.append((b"connection", b"close"))
        return headers

    async def _answer(self, fault: RequestFault) -> None:
        if self._started:
            return
        body = error_body(fault)
        headers = error_headers(body)
        await self.send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _declares_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0"))
        for name, value in scope["headers"]
    )


def _first(group: BaseExceptionGroup[RequestFault]) -> RequestFault:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, RequestFault)
    return found
