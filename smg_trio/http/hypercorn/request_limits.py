"""What lies between hypercorn's protocols and the app: limits of requests, and answers to what goes wrong with them.

The HTTP/1.1 of this package enforces the same limits while it parses, and answers in the same way; hypercorn has no
limits, and answers with empty bodies.

Besides, hypercorn says "disconnect" from within the last send of a response, before it has closed the stream: an app
that cancels itself then would cancel that too. So it hears of it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from smg_trio.http.app_failures import fault_of
from smg_trio.http.app_tasks import STOP_READING
from smg_trio.http.body_pace import BodyPace
from smg_trio.http.faults import (
    AppFailed,
    FaultAnswer,
    FaultAnswers,
    PartialRequest,
    RequestTimeout,
    RequestTooLarge,
)
from smg_trio.http.hypercorn.http2 import FAULT

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError
    from smg_trio.http.asgi import App, Headers, Message, Receive, Scope, Send
    from smg_trio.http.settings import ServerLimits


def limit_requests(app: App, limits: ServerLimits, faults: FaultAnswers) -> App:
    """Wraps ``app``: what is wrong with a request, or with the app, is answered by ``faults``."""

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        request: _LimitedRequest | _Handshake
        if scope["type"] == "http":
            request = _LimitedRequest(limits, scope, receive, send)
        else:
            request = _Handshake(receive, send)
        asked = PartialRequest(request.method, scope["path"], scope["headers"])
        fault: SmgError | None = AppFailed()
        try:
            if FAULT in scope["state"]:
                fault, asked = scope["state"][FAULT]
            else:
                await app(scope, request.receive, request.send)
        except Exception as error:  # noqa: BLE001 - whatever the app raises is answered
            fault = fault_of(error)
        # An app that gave up since the client has left has not failed.
        if fault is not None and not request.started and not request.gone:
            await request.answer(faults.to(fault, asked))

    return limited


class _LimitedRequest:
    """One HTTP request on its way into the app, and its response.

    Attributes:
        started: the response has begun.
        gone: the app was told that the client has left.
    """

    __slots__ = (
        "_body_ended", "_ending", "_limits", "_pace", "_read", "_receive", "_send", "_stop_reading", "gone", "method",
        "started",
    )  # fmt: skip

    def __init__(self, limits: ServerLimits, scope: Scope, receive: Receive, send: Send) -> None:
        self._limits = limits
        self._receive = receive
        self._send = send
        self._stop_reading = scope["extensions"][STOP_READING]
        self._read = 0
        self._body_ended = False
        self._ending: trio.Event | None = None
        self._pace: BodyPace | None = None
        self.method: str = scope["method"]
        self.started = False
        self.gone = False

    async def receive(self) -> Message:
        """The app's ``receive``: raises `RequestTooLarge` or `RequestTimeout` while the body is read."""
        message = await (self._receive() if self._body_ended else self._receive_body())
        if message["type"] == "http.disconnect":
            self.gone = True
            if self._ending is not None:
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
            self.started = True
            # HTTP/2 has no such header, and no need: one stream is reset.
            headers = [header for header in message.get("headers", ()) if header[0] != b"connection"]
            message = message | {"headers": headers}
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

    async def answer(self, answer: FaultAnswer) -> None:
        """Send the answer to a fault."""
        await self.send({"type": "http.response.start", "status": answer.status, "headers": _framed(answer)})
        await self.send({"type": "http.response.body", "body": answer.body})


class _Handshake:
    """One WebSocket handshake on its way into the app, and what follows.

    Attributes:
        started: it has been answered.
        gone: the app was told that the client has left.
    """

    __slots__ = ("_receive", "_send", "gone", "method", "started")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.method = "WEBSOCKET"
        self.started = False
        self.gone = False

    async def receive(self) -> Message:
        """The app's ``receive``."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.gone = True
        return message

    async def send(self, message: Message) -> None:
        """The app's ``send``."""
        self.started = True
        await self._send(message)

    async def answer(self, answer: FaultAnswer) -> None:
        """Send the answer to a fault."""
        kind = "websocket.http.response"
        headers = [*_framed(answer), (b"connection", b"close")]
        await self.send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
        await self.send({"type": f"{kind}.body", "body": answer.body})


def _framed(answer: FaultAnswer) -> Headers:
    return [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
