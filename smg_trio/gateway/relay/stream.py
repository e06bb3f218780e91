"""A relayed response on its way to the client: what one read of the worker gave is one write to the client."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smg_trio.core.errors import SmgError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from smg_trio.gateway.http import BodyWrite
    from smg_trio.gateway.relay.session import RelaySession

logger = logging.getLogger("smg_trio.gateway")


class RelayStream:
    """The body of a streamed response as a `ByteStream`. Takes over the session, whose response has begun.

    Bytes are neither parsed nor put together anew. A worker that fails in the middle has the stream end with an error
    event of the API's own, and without the event that ends a complete one.
    """

    __slots__ = ("_begun", "_count", "_done", "_look", "_ready", "_session", "_status")

    def __init__(
        self, session: RelaySession, status: int, look: Callable[[bytes], Awaitable[bool]] | None = None
    ) -> None:
        """`look` is shown the first reads, until it has seen what it looks for."""
        self._session = session
        self._status = status
        self._look = look
        self._ready: bytes | None = None
        self._begun = False
        self._done = False
        self._count = session.answer.reads.note_events if session.answer.counts_events else None

    @property
    def ended(self) -> bool:
        """See `ByteStream.ended`."""
        return self._done and self._ready is None

    async def next_chunk(self) -> bytes:
        """See `ByteStream.next_chunk`."""
        ready, self._ready = self._ready, None
        if ready is not None or self._done:
            return ready or b""
        session = self._session
        try:
            data = await session.read()
            if self._begun:
                session.note_output()
                session.answer.reads.add(data)
            else:
                self._begun = True
                session.first_read()
                session.answer.reads.begin(data)
            if self._look is not None:
                await self._look_at(data)
        except SmgError as error:
            return self._end_with(error)
        if self._count is not None:
            self._count(data)
        if session.exchange is not None and session.exchange.complete:
            self._end()
        return data

    async def _look_at(self, data: bytes) -> None:
        assert self._look is not None, "somebody looks"
        try:
            if await self._look(data):
                self._look = None
        except SmgError as error:
            self._session.failed(error)
            raise

    def _end(self) -> None:
        self._done = True
        self._session.succeeded(self._status)
        self.close()

    def _end_with(self, error: SmgError) -> bytes:
        self._done = True
        logger.warning("relayed stream ended with an error: %s", error.message)
        self.close()
        return self._session.plan.failed(error)

    async def write_on(self, write: BodyWrite, *, mostly_immediate: bool) -> None:
        """See `ByteStream.write_on`: all but the first read and the last."""
        session, exchange = self._session, self._session.exchange
        if self._done or exchange is None or self._look is not None:
            return
        read, note_output, keep = exchange.read, session.note_output, session.answer.reads.add
        try:
            while True:
                data = await read()
                note_output()
                keep(data)
                if self._count is not None:
                    self._count(data)
                if exchange.complete:
                    self._ready = data
                    self._end()
                    return
                unsent = write(data)
                if unsent is not None:
                    await unsent
        except SmgError as error:
            session.failed(error)
            self._ready = self._end_with(error)

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._done = True
        self._session.close()
