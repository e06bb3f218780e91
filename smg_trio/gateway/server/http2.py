"""hypercorn's HTTP/2 protocol, whose streams end before their connection does.

What hypercorn 0.18 does, and what is done about it here:

* It takes a stream for ended once its last bytes are on their way, before the frame that ends it. A server that drains
  then says goodbye too early, or closes the connection as idle, and the client takes the answer for cut off.
* After the goodbye nobody closes the connection.
* A client that leaves while the end of an answer waits for its flow control leaves that answer waiting for ever, and
  the connection with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError, H11Protocol


class OrderlyH2Protocol(H2Protocol):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._progress = trio.Event()

    async def stream_send(self, event: StreamEvent) -> None:
        """A stream's way out; that it has closed is believed once its last frame has been sent."""
        if not isinstance(event, StreamClosed):
            await super().stream_send(event)
            return
        while self._owes_end(event.stream_id):
            await self._progress.wait()
        await super().stream_send(event)
        if self.idle and self.context.terminated.is_set():
            await self.send(Closed())

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
