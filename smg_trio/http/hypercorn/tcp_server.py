"""hypercorn's TCP server, made safe and cheaper: it speaks WebSocket, h2 and TLS, and is the fallback.

What hypercorn 0.18 does, and what is done about it here:

* A WebSocket upgrade with a trailing byte raises out of the connection and ends the process. Whatever a
  connection raises is logged and ends only that connection (`HardenedTCPServer.run`). Where it does not
  raise, it leaves a refused upgrade open for ever, with the app waiting: it is ended too (`_read_data`).
* Sends are shielded from cancellation, so a client that stops reading blocks shutdown for ever. Nothing is
  shielded here, and a client that takes no byte for ``write_timeout_s`` is cut.
* Each send takes a lock, a shielded scope and two checkpoints. The bytes are first offered to the plain
  socket; lock and wait come only when the kernel's buffer is full.
* Each request starts and cancels an idle-timer task. The timer is a deadline of the `ClientConnection`.
* Its own 400 and 431 have no body. They get the JSON body every other error has.

A send that succeeds at once has no checkpoint: an app must await something else in an endless loop.
"""

from __future__ import annotations

import logging
import socket
import ssl
from contextlib import suppress
from math import inf
from typing import Any, cast

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol, H11WSConnection
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

from smg_trio.http.app_tasks import AppTasks
from smg_trio.http.asgi import App
from smg_trio.http.client_connection import ClientConnection
from smg_trio.http.faults import (
    HeadersTooLarge,
    RequestFault,
    error_body,
    error_headers,
    error_response,
)
from smg_trio.http.hypercorn.http2 import Protocols
from smg_trio.http.hypercorn.request_limits import limit_requests
from smg_trio.http.hypercorn.websocket_extensions import request_without_offer
from smg_trio.http.settings import ServerLimits

LOGGER = logging.getLogger("smg_trio.http")

_READ_PIECE = 64 * 1024
_SEND_PIECE = 16 * 1024
PLAIN_HTTP = RequestFault("This port speaks TLS: use https:// in place of http://.")

Transport = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class HypercornHost:
    """What all hypercorn connections of one server share: the wrapped app, config and worker context."""

    def __init__(self, app: App, limits: ServerLimits) -> None:
        self.limits = limits
        # hypercorn types scopes and messages as unions of typed dicts; ours are plain ones.
        self.app = ASGIWrapper(cast(Any, limit_requests(app, limits)))
        self.config = _config(limits)
        self.context = WorkerContext(None)

    async def drain(self) -> None:
        """Makes every connection close after the response it is at."""
        await self.context.terminated.set()

    async def run(self, link: ClientConnection, transport: Transport, received: bytes = b"") -> None:
        """Serves one connection to its end; ``received`` was already read from it.

        Raises nothing but cancellation; the socket itself is closed by the link's owner.
        """
        await HardenedTCPServer(self, link, transport, received).run()


def _config(limits: ServerLimits) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = LOGGER
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.max_header_bytes
    config.h2_max_header_list_size = limits.max_header_bytes
    config.keep_alive_timeout = limits.keep_alive_timeout_s
    config.keep_alive_max_requests = 2**31
    config.ssl_handshake_timeout = limits.head_timeout_s
    config.websocket_max_message_size = limits.max_websocket_bytes
    return config


class JsonErrorH11Protocol(H11Protocol):
    """hypercorn's HTTP/1.1 protocol: its own errors have the JSON body of all others, its WebSockets no compression."""

    async def _create_stream(self, request: h11.Request) -> None:
        await super()._create_stream(request_without_offer(request))

    async def _send_error_response(self, status_code: int) -> None:
        fault: RequestFault
        if status_code == HeadersTooLarge.status:
            fault = HeadersTooLarge("The request head is too large.")
        else:
            fault = RequestFault("The request is not valid HTTP/1.1.")
        body = error_body(fault)
        headers = [*error_headers(body), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=fault.status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class HardenedTCPServer(TCPServer):
    """One connection spoken by hypercorn's protocols, on a link whose deadlines the server watches."""

    def __init__(self, host: HypercornHost, link: ClientConnection, transport: Transport, received: bytes) -> None:
        state = LifespanState()
        super().__init__(host.app, host.config, host.context, state, cast(Any, transport))
        self._limits = host.limits
        self._link = link
        self._received = received
        self._direct = isinstance(transport, trio.SocketStream)
        self._receiving: trio.CancelScope | None = None
        self._ended = False
        """The client sends no more, or nobody reads it any more."""

    async def run(self) -> None:
        """Speaks the protocol until either side ends it; a failure is logged and ends only this one."""
        try:
            await self._speak()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* Exception as group:
            LOGGER.warning("connection from %s ended by %r", self._link.client, group.exceptions[0])
        finally:
            self._link.read_deadline = self._link.write_deadline = inf

    async def _speak(self) -> None:
        alpn = await self._handshake()
        try:
            task_group = AppTasks()
            async with task_group:
                self._task_group = task_group
                self.protocol = self._open_protocol(task_group, alpn)
                await self.protocol.initiate()
                await self._set_idle(True)
                await self._read_data()
        finally:
            with trio.move_on_after(self._limits.linger_timeout_s):
                await self._close()

    async def _handshake(self) -> str:
        if self._direct:
            return "http/1.1"
        self._link.read_deadline = trio.current_time() + self._limits.head_timeout_s
        try:
            await self.stream.do_handshake()
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, ssl.SSLError) and error.__cause__.reason == "HTTP_REQUEST":
                self._link.send_last(error_response(PLAIN_HTTP))
            raise
        return self.stream.selected_alpn_protocol() or "http/1.1"

    def _open_protocol(self, task_group: AppTasks, alpn: str) -> Protocols:
        state = ConnectionState(self.state)
        peers = (not self._direct, self._link.client, self._link.server)
        shared = (self.app, self.config, self.context, task_group, state, *peers, self.protocol_send)
        return Protocols(*shared, alpn=alpn, make_h11=JsonErrorH11Protocol)

    async def _read_data(self) -> None:
        data = self._received or await self._receive()
        while data:
            await self.protocol.handle(RawData(data))
            if self._is_refused():
                self._link.sock.shutdown(socket.SHUT_WR)
                self._link.scope.cancel()
            data = await self._receive()
        self._ended = True
        await self.protocol.handle(Closed())

    async def _receive(self) -> bytes:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.CancelScope() as self._receiving:
            if not self._ended:
                return bytes(await self.stream.receive_some(_READ_PIECE))
        return b""

    def _is_refused(self) -> bool:
        """Whether a WebSocket upgrade was answered with an error: hypercorn forgets to close then."""
        upgraded = getattr(self.protocol.protocol, "connection", None)
        if not isinstance(upgraded, H11WSConnection):
            return False
        return upgraded.h11_connection.our_state in {h11.MUST_CLOSE, h11.CLOSED, h11.ERROR}

    async def protocol_send(self, event: Event) -> None:
        """hypercorn's way out: bytes, the end of the connection, or a change between idle and busy."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            if self._is_unread():
                await self._linger()
            await self._close()
            await self.protocol.handle(Closed())
        elif isinstance(event, Updated):
            await self._set_idle(event.idle)

    def _is_unread(self) -> bool:
        """Whether the client still sends on a connection of HTTP/1.1 that is over: a reset would hide its answer."""
        if self._ended or not isinstance(self.protocol.protocol, H11Protocol):
            return False
        connection = self.protocol.protocol.connection
        if not isinstance(connection, h11.Connection):
            return False  # a WebSocket, whose close frame was the last word
        return connection.their_state in {h11.SEND_BODY, h11.ERROR} or self._link.has_bytes()

    async def _linger(self) -> None:
        self._ended = True
        if self._receiving is not None:
            self._receiving.cancel()
        await self._link.linger(self._limits.linger_timeout_s)

    async def _set_idle(self, idle: bool) -> None:
        self._link.idle = idle
        self._link.read_deadline = trio.current_time() + self._limits.keep_alive_timeout_s if idle else inf

    async def _write(self, data: bytes) -> None:
        sent = 0
        if self._direct and not self.send_lock.locked():
            try:
                sent = self._link.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                await self.protocol.handle(Closed())
                return
            if sent == len(data):
                return
        await self._write_slowly(data[sent:])

    async def _write_slowly(self, data: bytes) -> None:
        try:
            async with self.send_lock:
                await self._send_in_pieces(memoryview(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self.protocol.handle(Closed())

    async def _send_in_pieces(self, data: memoryview) -> None:
        # In small pieces: the deadline is for a client that takes nothing, not for one that is slow.
        try:
            for start in range(0, len(data), _SEND_PIECE):
                self._link.write_deadline = trio.current_time() + self._limits.write_timeout_s
                await self.stream.send_all(data[start : start + _SEND_PIECE])
        finally:
            self._link.write_deadline = inf
