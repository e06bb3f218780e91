"""hypercorn's HTTP/2 protocol, whose streams end before their connection does.

What hypercorn 0.18 does, and what is done about it here:

* It takes a stream for ended once its last bytes are on their way, before the frame that ends it. A server that drains
  then says goodbye too early, or closes the connection as idle, and the client takes the answer for cut off.
* After the goodbye nobody closes the connection.
* A client that leaves while the end of an answer waits for its flow control leaves that answer waiting for ever, and
  the connection with it.
* A stream that is over while the client may still send on it stays open for the client, and what comes on it ends the
  connection with a KeyError.
* It accepts compressed WebSockets: see `websocket_extensions`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h2.events
import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.events import Body, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError, H11Protocol

from smg_trio.http.hypercorn.websocket_extensions import without_offer


class OrderlyH2Protocol(H2Protocol):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._progress = trio.Event()
        self._client_sends: set[int] = set()

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        request.headers = without_offer(request.headers or [])
        if request.stream_ended is None:
            self._client_sends.add(request.stream_id)
        await super()._create_stream(request)

    async def stream_send(self, event: StreamEvent) -> None:
        """A stream's way out; that it has closed is believed once its last frame has been sent."""
        if not isinstance(event, StreamClosed):
            await super().stream_send(event)
            return
        while self._owes_end(event.stream_id):
            await self._progress.wait()
        await super().stream_send(event)
        await self._stop_client(event.stream_id)
        if self.idle and self.context.terminated.is_set():
            await self.send(Closed())

    async def _stop_client(self, stream_id: int) -> None:
        """Tell a client that still sends on a stream that is over (RFC 9113, 8.1)."""
        if stream_id not in self._client_sends:
            return
        self._client_sends.discard(stream_id)
        try:
            self.connection.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        except ProtocolError:
            return  # the connection has been closed, or the client has reset the stream
        await self._flush()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                await self._take_data(event)
                continue
            if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                self._client_sends.discard(event.stream_id)
            await super()._handle_events([event])
        await self._flush()

    async def _take_data(self, event: h2.events.DataReceived) -> None:
        if event.stream_ended is not None:
            self._client_sends.discard(event.stream_id)
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            await stream.handle(Body(stream_id=event.stream_id, data=event.data))
        with suppress(ProtocolError):  # the stream, or the connection, has ended meanwhile
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _owes_end(self, stream_id: int) -> bool:
        buffer = self.stream_buffers.get(stream_id)
        return buffer is not None and buffer.complete and not self.closed

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        self._note_progress()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def handle(self, event: Event) -> None:
        """Take what came from the client, or that it has gone."""
        await super().handle(event)
        if isinstance(event, Closed):
            for buffer in list(self.stream_buffers.values()):
                await buffer.close()
            self._note_progress()


class Protocols(ProtocolWrapper):
    """What speaks on one connection: HTTP/1.1 until the client turns out to speak HTTP/2, unless TLS has said so."""

    def __init__(
        self,
        *arguments: Any,
        alpn: str,
        make_h11: Callable[..., H11Protocol],
    ) -> None:
        """`arguments`: what both protocols are made of; `make_h11`: the HTTP/1.1 protocol's class."""
        super().__init__(*arguments)
        self._arguments = arguments
        self.protocol = OrderlyH2Protocol(*arguments) if alpn == "h2" else make_h11(*arguments)

    async def handle(self, event: Event) -> None:
        """Take what came from the client; the protocol may change by it."""
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            await self._become_h2(error.data)
        except H2CProtocolRequiredError as error:
            await self._become_h2(error.data, error.headers, error.settings)

    async def _become_h2(self, data: bytes, *initial: Any) -> None:
        self.protocol = OrderlyH2Protocol(*self._arguments)
        await self.protocol.initiate(*initial)
        if data:
            await self.protocol.handle(RawData(data))
