"""HTTP/2 and WebSocket connections: hypercorn's protocols on the server's own connections.

What hypercorn 0.18 does on its own TCP server, and what is done about it here:

* Whatever a connection raises ends the process. Here it is logged and ends only that connection.
* Sends are shielded from cancellation, so a client that stops reading blocks shutdown permanently. Nothing is
  shielded here, and a client that takes no byte for ``write_timeout_s`` is cut.
* Each send takes a lock, a shielded scope and two checkpoints. The bytes are first offered to the kernel;
  lock and wait come only when its buffer is full.
* Each request starts and cancels an idle-timer task. The timer is a deadline of the `ClientConnection`.
* Nothing limits how slowly the head of a request may come: see `HeadProgress`.

hypercorn's HTTP/1.1 protocol reads nothing but WebSocket handshakes that `h1` has read before, and not one byte
more until they are answered: see `WebSocketProtocol`.

A send that succeeds immediately has no checkpoint: an app must await something else in an endless loop.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import EndBody, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from smg_trio.http.app_tasks import AppTasks
from smg_trio.http.client_connection import WOULD_BLOCK, ClientConnection, ClientGone, Handover
from smg_trio.http.hypercorn.http2 import OrderlyH2Protocol
from smg_trio.http.hypercorn.http2_frames import HeadProgress
from smg_trio.http.hypercorn.request_limits import limit_requests

if TYPE_CHECKING:
    from smg_trio.http.asgi import App
    from smg_trio.http.faults import FaultAnswers
    from smg_trio.http.settings import ServerLimits

LOGGER = logging.getLogger("smg_trio.http")

_READ_PIECE = 64 * 1024
_SWITCHING_PROTOCOLS = 101


class HypercornHost:
    """What all hypercorn connections of one server share: the wrapped app, config and worker context."""

    def __init__(self, app: App, limits: ServerLimits, faults: FaultAnswers) -> None:
        self.limits = limits
        # hypercorn types scopes and messages as unions of typed dicts; ours are plain ones.
        self.app = ASGIWrapper(cast("Any", limit_requests(app, limits, faults)))
        self.config = _config(limits)
        self.context = WorkerContext(None)

    async def drain(self) -> None:
        """Makes every connection close after the response it is at."""
        await self.context.terminated.set()

    async def run(self, link: ClientConnection, handover: Handover) -> None:
        """Serves one connection to its end.

        Raises nothing but cancellation; the socket itself is closed by the link's owner.
        """
        await HypercornConnection(self, link, handover).run()


def _config(limits: ServerLimits) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = LOGGER
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.max_header_bytes
    config.h2_max_header_list_size = limits.max_header_bytes
    config.keep_alive_max_requests = 2**31
    config.websocket_max_message_size = limits.max_websocket_bytes
    return config


class WebSocketProtocol(H11Protocol):
    """hypercorn's HTTP/1.1 protocol for one WebSocket handshake, and what follows.

    Attributes:
        answered: set once the app has accepted or refused. What the client sends before that must not be handed in:
            hypercorn would answer it a second time.
        accepted: whether it has accepted.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.answered = trio.Event()
        self.accepted = False

    async def stream_send(self, event: StreamEvent) -> None:
        """The app's way out."""
        await super().stream_send(event)
        if isinstance(event, Response) and event.status_code == _SWITCHING_PROTOCOLS:
            self.accepted = True
            self.answered.set()
        elif isinstance(event, (EndBody, StreamClosed)):
            self.answered.set()

    async def _check_protocol(self, event: object) -> None:
        """No other protocol begins here, whatever a header says."""


class HypercornConnection:
    """One connection spoken by one of hypercorn's protocols, on a link whose deadlines the server watches."""

    def __init__(self, host: HypercornHost, link: ClientConnection, handover: Handover) -> None:
        self._host = host
        self._limits = host.limits
        self._link = link
        self._handover = handover
        self._sending = trio.Lock()
        self._idle_deadline = self._head_deadline = inf
        self._ended = False
        """The client sends no more, or the app has stopped reading."""

    async def run(self) -> None:
        """Speaks the protocol until either side ends it; a failure is logged and ends only this one."""
        try:
            await self._speak()
        except* (OSError, trio.ClosedResourceError):
            pass
        except* Exception as group:  # noqa: BLE001 - it ends this connection, not the others
            LOGGER.warning("connection from %s ended by %r", self._link.client, group.exceptions[0])
        finally:
            self._link.read_deadline = self._link.write_deadline = inf

    async def _speak(self) -> None:
        host, link, tasks = self._host, self._link, AppTasks()
        peers = (link.secure, link.client, link.server)
        shared = (host.app, host.config, host.context, tasks, ConnectionState({}), *peers, self.protocol_send)
        try:
            async with tasks:
                if self._handover.handshake:
                    await self._speak_websocket(WebSocketProtocol(*shared))
                else:
                    await self._speak_http2(OrderlyH2Protocol(*shared, limits=self._limits))
        finally:
            self._close()

    async def _speak_websocket(self, protocol: WebSocketProtocol) -> None:
        self._protocol: H11Protocol | OrderlyH2Protocol = protocol
        await protocol.handle(RawData(self._handover.handshake))
        await protocol.answered.wait()
        if not protocol.accepted:
            if self._link.has_bytes():
                await self._link.linger(self._limits.linger_timeout_s)
            self._link.scope.cancel()
        while data := await self._receive():
            await protocol.handle(RawData(data))
        self._ended = True
        await protocol.handle(Closed())

    async def _speak_http2(self, protocol: OrderlyH2Protocol) -> None:
        self._protocol = protocol
        heads = HeadProgress()
        await protocol.initiate()
        # As for HTTP/1.1: the first request must come as soon as a head must.
        self._idle_deadline = trio.current_time() + self._limits.head_timeout_s
        self._note_head(within_head=True)
        data = self._handover.received or await self._receive()
        while data:
            heads.feed(data)
            self._note_head(within_head=heads.within_head)
            await protocol.handle(RawData(data))
            data = await self._receive()
        self._ended = True
        await protocol.handle(Closed())

    async def _receive(self) -> bytes:
        with suppress(OSError, trio.ClosedResourceError):
            if not self._ended:
                return await self._link.receive(_READ_PIECE)
        return b""

    async def protocol_send(self, event: Event) -> None:
        """hypercorn's way out: bytes, the end of the connection, or a change between idle and busy."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            if isinstance(self._protocol, WebSocketProtocol) and not self._protocol.accepted:
                return  # who waits for the answer closes, once the client has had time to read it
            self._close()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            self._set_idle(event.idle)

    def _close(self) -> None:
        self._ended = True
        self._link.end_sending()
        self._link.close()

    def _set_idle(self, idle: bool) -> None:
        self._link.idle = idle
        self._idle_deadline = trio.current_time() + self._limits.keep_alive_timeout_s if idle else inf
        self._link.read_deadline = min(self._idle_deadline, self._head_deadline)

    def _note_head(self, *, within_head: bool) -> None:
        if not within_head:
            self._head_deadline = inf
        elif self._head_deadline == inf:
            self._head_deadline = trio.current_time() + self._limits.head_timeout_s
        self._link.read_deadline = min(self._idle_deadline, self._head_deadline)

    async def _write(self, data: bytes) -> None:
        try:
            sent = 0
            if not self._sending.locked():
                with suppress(*WOULD_BLOCK):
                    sent = self._link.sock.send(data)
                if sent == len(data):
                    return
            async with self._sending:
                await self._link.send_all(data[sent:], self._limits.write_timeout_s)
        except (OSError, ClientGone, trio.ClosedResourceError):
            await self._protocol.handle(Closed())
