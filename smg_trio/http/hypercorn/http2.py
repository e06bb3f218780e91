"""hypercorn's HTTP/2 protocol, whose streams end before their connection does.

What hypercorn 0.18 does, and what is done about it here:

* It takes a stream for ended once its last bytes are on their way, before the frame that ends it. A server that drains
  then says goodbye too early, or closes the connection as idle, and the client takes the answer for cut off.
* After the GOAWAY it does not close the connection.
* A client that leaves while the end of an answer waits for its flow control leaves that answer waiting permanently, and
  the connection with it.
* It waits without a limit for a client that never opens its window, as an HTTP/1.1 client does that never reads.
* A stream whose app has failed in mid-response is forgotten, and the client waits permanently.
* A stream that is over while the client may still send on it stays open for the client, and what comes on it ends the
  connection with a KeyError.
* It accepts compressed WebSockets: see `websocket_extensions`.
* It gives requests to the app as they are, whatever is in their heads, ends the connection by an exception over some
  (a CONNECT without a path), and answers others itself with an empty body. Heads are looked at here first, and what is
  wrong with one goes with its request to `request_limits`, where it is answered.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import h2.events
import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hypercorn.events import Closed, Event
from hypercorn.protocol.events import Body, Data, EndBody, EndData, Request, StreamClosed, Trailers
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, H2Protocol, StreamBuffer
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.typing import ConnectionState
from priority.priority import DuplicateStreamError

from smg_trio.http.faults import RequestFault
from smg_trio.http.hypercorn.http2_head import Http2Head, partial_http2_request, read_http2_head
from smg_trio.http.websocket_extensions import without_offer

if TYPE_CHECKING:
    from smg_trio.http.settings import ServerLimits

FAULT: Final = "smg_trio.fault"
"""In a request's ``state``: what is wrong with its head, and what may be told of it."""


class OrderlyH2Protocol(H2Protocol):
    """See the module."""

    def __init__(self, *arguments: Any, limits: ServerLimits) -> None:
        """`arguments`: hypercorn's own; `limits`: heads are held against these."""
        super().__init__(*arguments)
        self._limits = limits
        self._progress = trio.Event()
        self._client_sends: set[int] = set()
        self._blocked: dict[int, trio.CancelScope] = {}

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        fields = without_offer(request.headers or [])
        state = self.connection_state
        try:
            head = read_http2_head(fields, self._limits)
        except RequestFault as fault:
            asked = partial_http2_request(fields)
            state = ConnectionState(state | {FAULT: (fault, asked)})
            head = Http2Head(asked.method, b"/", [], websocket=False)
        if request.stream_ended is None:
            self._client_sends.add(request.stream_id)
        stream = self._open_stream(request.stream_id, WSStream if head.websocket else HTTPStream)
        await stream.handle(Request(request.stream_id, head.headers, "2", head.method, head.target, state))
        await self.context.mark_request()

    def _open_stream(self, stream_id: int, kind: type[HTTPStream] | type[WSStream]) -> HTTPStream | WSStream:
        """As `H2Protocol._create_stream` does it, which chooses the kind by the method alone."""
        shared = (self.app, self.config, self.context, self.task_group, self.ssl, self.client, self.server)
        stream = self.streams[stream_id] = kind(*shared, self.stream_send, stream_id)
        self.stream_buffers[stream_id] = StreamBuffer(self.context.event_class)
        with suppress(DuplicateStreamError):  # a PRIORITY frame came before
            self.priority.insert_stream(stream_id)
            self.priority.block(stream_id)
        return stream

    async def stream_send(self, event: StreamEvent) -> None:
        """A stream's way out; that it has closed is believed once its last frame has been sent."""
        if self._may_block(event):
            await self._send_within_limit(event)
            return
        if not isinstance(event, StreamClosed):
            await super().stream_send(event)
            return
        while self._owes_end(event.stream_id):
            await self._progress.wait()
        await self._abandon_unended(event.stream_id)
        await super().stream_send(event)
        await self._stop_client(event.stream_id)
        if self.idle and self.context.terminated.is_set():
            await self.send(Closed())

    def _may_block(self, event: StreamEvent) -> bool:
        """Whether the client's window may have to open before the event is on its way."""
        buffer = self.stream_buffers.get(event.stream_id)
        if buffer is None or not isinstance(event, (Body, Data, EndBody, EndData, Trailers)):
            return False
        added = len(event.data) if isinstance(event, (Body, Data)) else BUFFER_HIGH_WATER
        return len(buffer.buffer) + added >= BUFFER_HIGH_WATER

    async def _send_within_limit(self, event: StreamEvent) -> None:
        """Send an event; a client that takes not one byte of its stream for too long has the stream reset."""
        stream_id = event.stream_id
        with trio.move_on_after(self._limits.write_timeout_s) as scope:
            self._blocked[stream_id] = scope
            await super().stream_send(event)
        self._blocked.pop(stream_id, None)
        if scope.cancelled_caught:
            with suppress(ProtocolError):  # the client has reset the stream
                self.connection.reset_stream(stream_id, ErrorCodes.CANCEL)
            await self._flush()
            await self._forget_unsent(stream_id)
            await self._close_stream(stream_id)

    async def _forget_unsent(self, stream_id: int) -> None:
        """The sending task finds the stream closed, and forgets it."""
        buffer = self.stream_buffers.get(stream_id)
        if buffer is not None:
            await buffer.close()
            self.priority.unblock(stream_id)
            await self.has_data.set()

    async def _abandon_unended(self, stream_id: int) -> None:
        """Tell the client of a stream whose app has ended before the response was complete."""
        buffer = self.stream_buffers.get(stream_id)
        if buffer is None or self.closed or not isinstance(self.streams.get(stream_id), HTTPStream):
            return
        self._client_sends.discard(stream_id)
        with suppress(ProtocolError):  # the client has reset the stream
            self.connection.reset_stream(stream_id, ErrorCodes.INTERNAL_ERROR)
        await self._flush()
        await self._forget_unsent(stream_id)

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
        if isinstance(stream, WSStream) and not stream.handshake.accepted:
            await self._refuse_early_data(event.stream_id)
        elif stream is not None:
            await stream.handle(Body(stream_id=event.stream_id, data=event.data))
        with suppress(ProtocolError):  # the stream, or the connection, has ended meanwhile
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    async def _refuse_early_data(self, stream_id: int) -> None:
        """Before its handshake is answered a WebSocket has nothing to say; hypercorn would answer it a second time."""
        self._client_sends.discard(stream_id)
        self.connection.reset_stream(stream_id, ErrorCodes.PROTOCOL_ERROR)
        await self._close_stream(stream_id)

    def _owes_end(self, stream_id: int) -> bool:
        buffer = self.stream_buffers.get(stream_id)
        return buffer is not None and buffer.complete and not self.closed

    async def _send_data(self, stream_id: int) -> None:
        scope = self._blocked.get(stream_id)
        unsent = 0 if scope is None else len(self.stream_buffers[stream_id].buffer)
        await super()._send_data(stream_id)
        if scope is not None:
            buffer = self.stream_buffers.get(stream_id)
            if buffer is None or len(buffer.buffer) < unsent:
                scope.deadline = trio.current_time() + self._limits.write_timeout_s
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
