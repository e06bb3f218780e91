"""One HTTP/1.1 connection: a single task that reads a head, runs the app, and does so again.

There is no reader task. While the app runs, nothing is read that the app does not ask for: further bytes stay
in the kernel and push back on the client, and a departed client is noticed by the `DisconnectWatch`. Between
requests the task waits for the socket. At most one ``recv`` beyond the present request is buffered.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import trio

from smg_trio.http.app_failures import fault_of
from smg_trio.http.client_connection import ClientConnection, ClientGone, Handover
from smg_trio.http.faults import AppFailed, PartialRequest, RequestFault
from smg_trio.http.h1.byte_stream import ByteStream
from smg_trio.http.h1.exchange import Exchange
from smg_trio.http.h1.framing import HeadFinder
from smg_trio.http.h1.head import RequestHead, asked_by, partial_request, read_head, websocket_request
from smg_trio.http.h1.parsers import HeadParser
from smg_trio.http.h1.response import encode_answer

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError
    from smg_trio.http.h1.context import Http1Context

_HEAD_READ = 16 * 1024
_PIPELINED_RUN = 16
_H2_PREFACE = b"PRI * HTTP/2.0\r\n"


class Http1Connection:
    """HTTP/1.1 on one `ClientConnection`."""

    __slots__ = (
        "_buffer",
        "_departed",
        "_exchange",
        "_finder",
        "_parser",
        "_refused",
        "_reset",
        "_stream",
        "_unpaused",
        "context",
        "link",
    )  # fmt: skip

    def __init__(self, link: ClientConnection, context: Http1Context) -> None:
        self.link = link
        self.context = context
        self._stream = ByteStream(link, context.batcher, context.limits.write_timeout_s)
        self._buffer = self._stream.buffer
        self._finder = HeadFinder(self._buffer, context.limits.max_header_bytes)
        self._parser = HeadParser()
        self._refused = b""
        self._exchange: Exchange | None = None
        self._departed = False
        self._reset = False
        self._unpaused = 0

    async def run(self) -> Handover | None:
        """Serves the connection to its end.

        Returns:
            ``None`` when it is over; when the client speaks WebSocket or HTTP/2, what another protocol must take from
            here.

        Raises nothing but cancellation. The socket is closed by the link's owner.
        """
        disconnects = self.context.disconnects
        disconnects.enter(self.link.sock, self)
        try:
            return await self._serve()
        except RequestFault as fault:
            await self._answer_and_linger(fault, self._read_so_far())
        except (ClientGone, OSError):
            pass
        finally:
            disconnects.leave(self.link.sock)
            self.link.read_deadline = inf
            self.link.timeout_answer = None
            if self.link.fault is not None:
                self.link.asked = self._read_so_far()
        return None

    def _read_so_far(self) -> PartialRequest:
        """What was read of a request whose head was refused, or has not come to its end."""
        return partial_request(self._refused or bytes(self._buffer[: self.context.limits.max_header_bytes]))

    async def _serve(self) -> Handover | None:
        first = True
        while True:
            raw = await self._next_head(first)
            if raw is None:
                return None
            if first and raw.startswith(_H2_PREFACE) and not self.link.secure:  # TLS says by ALPN what is spoken
                return Handover(received=raw + bytes(self._buffer))
            try:
                head = read_head(raw, self._parser, self.context.limits)
                if head.websocket:
                    return Handover(handshake=self._websocket_handshake(head))
            except RequestFault:
                self._refused = raw
                raise
            if not await self._exchange_once(head):
                await self._linger_if_unread()
                return None
            first = False

    def _websocket_handshake(self, head: RequestHead) -> bytes:
        if self._buffer:
            raise RequestFault("A WebSocket client must not send before its handshake is answered.")
        return websocket_request(head)

    async def _next_head(self, first: bool) -> bytes | None:
        raw = self._finder.take()
        if raw is not None:
            await self._pause_among_pipelined()
            return None if self._reset else raw
        link = self.link
        limits = self.context.limits
        if self.context.draining and not first and not self._buffer:
            return None
        link.timeout_answer = None
        if self._buffer:
            self._begin_head()
        else:
            wait_s = limits.head_timeout_s if first else limits.keep_alive_timeout_s
            link.read_deadline = trio.current_time() + wait_s
        while raw is None:
            link.idle = not self._buffer
            data = await link.receive(_HEAD_READ)
            if not data:
                return None
            if link.timeout_answer is None:
                self._begin_head()
            self._buffer += data
            raw = self._finder.take()
        link.read_deadline = inf
        return raw

    async def _pause_among_pipelined(self) -> None:
        # Nothing else makes this task wait when requests are at hand and the app answers immediately.
        self._unpaused += 1
        if self._unpaused >= _PIPELINED_RUN:
            self._unpaused = 0
            await trio.lowlevel.checkpoint()

    def _begin_head(self) -> None:
        """The first byte of a head has come: from now on it must come to its end in time."""
        self.link.timeout_answer = "The request head did not arrive in time."
        self.link.read_deadline = trio.current_time() + self.context.limits.head_timeout_s

    async def _exchange_once(self, head: RequestHead) -> bool:
        """Runs the app on one request; ``True`` if the connection can carry another."""
        self.link.idle = False
        self.context.requests += 1
        exchange = Exchange(self._stream, self.context, head, gone=self._departed and self._counts_as_gone(head))
        self._exchange = exchange
        try:
            await self.context.app(exchange.scope(), exchange.receive, exchange.send)
            # An app that gave up since the client has left has not failed.
            failure: SmgError | None = None if exchange.gone else AppFailed()
        except Exception as error:  # noqa: BLE001 - whatever the app raises is answered
            failure = fault_of(error)
        finally:
            self._exchange = None
            answered = exchange.response.complete
            exchange.finish()
            if self._stream.queued:
                self._stream.write_queued()  # of a response that was cut short
        if not answered:
            if failure is not None and not exchange.response.head_sent:
                await self._answer_and_linger(failure, asked_by(head))
            return False
        return exchange.response.keep_alive and await exchange.discard_body()

    def _counts_as_gone(self, head: RequestHead) -> bool:
        return self._reset or head.keep_alive or not self.context.limits.answer_half_closed

    def on_departure(self, *, reset: bool) -> None:
        """See `Departing`."""
        self._departed = True
        self._reset |= reset
        exchange = self._exchange
        if exchange is not None and not exchange.gone and self._counts_as_gone(exchange.head):
            exchange.depart()

    async def _answer_and_linger(self, fault: SmgError, asked: PartialRequest) -> None:
        answer = self.context.faults.to(fault, asked)
        try:
            await self._stream.write(encode_answer(answer, self.context.date_line(), head_only=asked.method == "HEAD"))
        except ClientGone:
            return
        await self._linger()

    async def _linger_if_unread(self) -> None:
        """Before a close that would reset: bytes that the client sent and that were not read make the kernel do so."""
        if self._buffer or self.link.has_bytes():
            await self._linger()

    async def _linger(self) -> None:
        self.link.read_deadline = inf
        self._buffer.clear()
        await self.link.linger(self.context.limits.linger_timeout_s)
