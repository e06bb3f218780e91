"""One request and its response: the ASGI ``scope``, ``receive`` and ``send`` of HTTP/1.1.

``send`` offers the bytes to the kernel immediately and returns without a checkpoint if they were all taken, so an
app that sends in a loop must await something else in it. It raises `ClientGone` when the client has left.

``receive`` gives the body as it comes, then waits for the client to go. It raises `RequestTooLarge` or
`RequestFault` for a body that cannot be read on; the app may answer that itself, else the connection does.

``scope["extensions"]["smg_trio.cancel_on_disconnect"]`` is a function that has the server cancel the app, or the
``trio.CancelScope`` it is given, when the client goes while the request runs. It saves the app a task that sits in
``receive``. ``"smg_trio.write_body"`` is `Exchange.write_body`, which sends one piece of a streamed body.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import trio

from smg_trio.http.body_pace import BodyPace
from smg_trio.http.faults import RequestFault
from smg_trio.http.h1.framing import ChunkedBody, SizedBody
from smg_trio.http.h1.response import ResponseEncoder, ResponseMisuse
from smg_trio.http.h1.write_batcher import WORTH_FROM

if TYPE_CHECKING:
    from smg_trio.http.asgi import Message, Scope
    from smg_trio.http.h1.byte_stream import ByteStream
    from smg_trio.http.h1.context import Http1Context
    from smg_trio.http.h1.head import RequestHead
    from smg_trio.http.settings import ServerLimits

CANCEL_ON_DISCONNECT = "smg_trio.cancel_on_disconnect"
WRITE_BODY = "smg_trio.write_body"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_DISCARDED = 256 * 1024
_ASGI = {"version": "3.0", "spec_version": "2.4"}


class Exchange:
    """A request in the app's hands. Ends when the app returns; `receive` then only says "disconnect"."""

    __slots__ = (
        "_body", "_body_told", "_context", "_continue_owed", "_counted", "_end", "_pace", "_scopes", "_stream", "gone",
        "head", "response",
    )  # fmt: skip

    def __init__(self, stream: ByteStream, context: Http1Context, head: RequestHead, *, gone: bool) -> None:
        self._stream = stream
        self._context = context
        self.head = head
        self._body = _body_of(head, context.limits)
        self._body_told = False
        self._continue_owed = head.expects_continue and self._body is not None
        self._end: trio.Event | None = None
        self._scopes: list[trio.CancelScope] | None = None
        self._counted = False
        self._pace: BodyPace | None = None
        self.gone = gone
        self.response = ResponseEncoder(http11=head.http11, head_only=head.method == "HEAD", keep_alive=head.keep_alive)

    def scope(self) -> Scope:
        """The ASGI connection scope."""
        head = self.head
        path = head.path.decode("ascii")
        link = self._stream.link
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1" if head.http11 else "1.0",
            "method": head.method,
            "scheme": "https" if link.secure else "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": link.client,
            "server": link.server,
            "state": {},
            "extensions": {CANCEL_ON_DISCONNECT: self.cancel_on_disconnect, WRITE_BODY: self.write_body},
        }

    def cancel_on_disconnect(self, scope: trio.CancelScope | None = None) -> None:
        """Cancels ``scope`` when the client goes before the response is complete; immediately if it has.

        Without a scope it is the whole connection that is cancelled, which has no client to serve then: a scope of the
        request's own would cost more than all else in this class.
        """
        if scope is None:
            scope = self._stream.link.scope
        if self.gone:
            scope.cancel()
        elif self._scopes is None:
            self._scopes = [scope]
        else:
            self._scopes.append(scope)

    def depart(self) -> None:
        """The client has gone: wakes `receive` and cancels the registered scopes."""
        self.gone = True
        self._release()
        for scope in self._scopes or ():
            scope.cancel()

    def finish(self) -> None:
        """The app has returned: tasks that still wait in `receive` are released, the scopes are forgotten."""
        self.gone = True
        self._release()
        self._scopes = None
        if self._counted:
            self._stream.batcher.streams -= 1

    def _release(self) -> None:
        if self._end is not None:
            self._end.set()

    async def receive(self) -> Message:
        """ASGI ``receive``. Cancellation loses no body bytes."""
        if self._body is not None:
            return await self._receive_body(self._body)
        if not self._body_told:
            self._body_told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if not self.gone and not self.response.complete:
            if self._end is None:
                self._end = trio.Event()
            await self._end.wait()
        return {"type": "http.disconnect"}

    async def _receive_body(self, body: SizedBody | ChunkedBody) -> Message:
        stream = self._stream
        while True:
            data = self._take(body)
            if body.ended:
                self._body = None
                self._body_told = True
                return {"type": "http.request", "body": data, "more_body": False}
            if data:
                return {"type": "http.request", "body": data, "more_body": True}
            if self._continue_owed:
                self._continue_owed = False
                await stream.write(_CONTINUE)
            if self._pace is None:
                self._pace = BodyPace(self._context.limits, trio.current_time())
            if not await self._read_more(self._pace):
                self.depart()
                return {"type": "http.disconnect"}

    async def _read_more(self, pace: BodyPace) -> bool:
        try:
            return await self._stream.read_body(pace)
        except RequestFault:
            self.response.keep_alive = False
            raise

    def _take(self, body: SizedBody | ChunkedBody) -> bytes:
        try:
            return body.take(self._stream.buffer)
        except RequestFault:
            self.response.keep_alive = False
            raise

    async def send(self, message: Message) -> None:
        """ASGI ``send``.

        Raises:
            ClientGone: the client has left.
            ResponseMisuse: the message is out of order.

        Cancelled while the client does not read, it leaves a response that cannot be continued: the
        connection is closed when the app returns.
        """
        kind = message["type"]
        if kind == "http.response.body":
            response = self.response
            date_line = self._context.date_line
            data = response.body(message.get("body", b""), message.get("more_body", False), date_line)
            if data:
                try:
                    await self._stream.write(data)
                except BaseException:
                    response.abandon()
                    raise
            if response.complete:
                self._release()
        elif kind == "http.response.start":
            self._start(message)
        else:
            raise ResponseMisuse(f"{kind} is not a message of an HTTP response")

    def write_body(self, data: bytes) -> Awaitable[None] | None:
        """A piece of the body in mid-response: `send` without a message to make and take apart.

        Returns None if it was taken immediately, by the kernel or by the next batch, else what must be awaited before
        anything else is sent. Errors as `send`, here or there; a batch that meets one ends the connection.
        """
        framed = self.response.chunk(data)
        if framed is None:
            return self.send({"type": "http.response.body", "body": data, "more_body": True})
        stream = self._stream
        if not self._counted:
            self._counted = True
            stream.batcher.streams += 1
        if stream.batcher.streams >= WORTH_FROM and stream.queue(framed):
            return None
        try:
            rest = stream.offer(framed)
        except BaseException:
            self.response.abandon()
            raise
        return self._write_rest(rest) if rest else None

    async def _write_rest(self, rest: bytes) -> None:
        try:
            await self._stream.write_slowly(rest)
        except BaseException:
            self.response.abandon()
            raise

    def _start(self, message: dict[str, Any]) -> None:
        response = self.response
        if self._context.draining or not self._can_skip_body():
            response.keep_alive = False
        response.start(message["status"], message.get("headers", ()))

    def _can_skip_body(self) -> bool:
        """Whether what is left of the body is little enough to be read and thrown away."""
        body = self._body
        if body is None:
            return True
        if self._continue_owed or isinstance(body, ChunkedBody):
            return False
        return body.remaining <= _MAX_DISCARDED

    async def discard_body(self) -> bool:
        """Reads what the app left of the body. ``False``: that cannot be done, so close."""
        while self._body is not None:
            if not self._can_skip_body():
                return False
            try:
                message = await self._receive_body(self._body)
            except RequestFault:
                return False
            if message["type"] == "http.disconnect":
                return False
        return True


def _body_of(head: RequestHead, limits: ServerLimits) -> SizedBody | ChunkedBody | None:
    if head.chunked:
        return ChunkedBody(limits.max_body_bytes, limits.max_header_bytes)
    return SizedBody(head.content_length) if head.content_length else None
