"""A streamed response that calls tools: its rounds run in a task of the gateway's, and hand over what they write.

The task is cancelled when the stream is closed: its client has gone, or has all of it. What it writes waits until it is
taken, so a slow reader holds it up.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from smg_trio.api.sse import KEEP_ALIVE
from smg_trio.core.errors import SmgError

if TYPE_CHECKING:
    from smg_trio.core.events import Usage
    from smg_trio.gateway.generation.tool_loop import Send
    from smg_trio.gateway.http import BodyWrite
    from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")

_TAKEN_AHEAD: Final = 8
"""Pieces that may wait to be sent."""


class EndWriter(Protocol):
    """Writes what ends a stream (`ResponseEventWriter`)."""

    def usage_chunk(self, usage: Usage) -> bytes: ...  # noqa: D102

    def failed(self, exc: BaseException) -> bytes: ...  # noqa: D102


class ToolStream:
    """A `ByteStream`.

    A response that fails before anything was written has a real HTTP status (`start` raises); after that, a fault is
    bytes of the stream.
    """

    def __init__(
        self,
        gateway: Gateway,
        name: str,
        work: Callable[[Send], Awaitable[Usage]],
        writer: EndWriter,
        *,
        before_end: Callable[[Usage], Awaitable[None]],
        on_close: Callable[[], None],
    ) -> None:
        """Begins nothing.

        Args:
            gateway: whose background task it becomes.
            name: of the task.
            work: writes all but the end of the stream.
            writer: of the end.
            before_end: awaited before the end of a stream that succeeds is written.
            on_close: called by every `close`; calling it again must be harmless.
        """
        self._gateway = gateway
        self._name = name
        self._work = work
        self._writer = writer
        self._before_end = before_end
        self._on_close = on_close
        self._send, self._receive = trio.open_memory_channel[bytes](_TAKEN_AHEAD)
        self._failure: Exception | None = None
        self._ready = b""
        self._done = False

    async def start(self, opening: bytes) -> None:
        """Wait for the first piece, which is shown after `opening`.

        Raises what the work raises before that; on any exception, cancellation included, the stream is closed.
        """
        try:
            self._gateway.background.start(self._name, self._run)
            self._ready = opening + await self._next()
            if self._done and self._failure is not None:
                raise self._failure
        except BaseException:
            self.close()
            raise

    async def _run(self) -> None:
        try:
            usage = await self._work(self._send.send)
            await self._before_end(usage)
            await self._send.send(self._writer.usage_chunk(usage))
        except trio.BrokenResourceError:
            return  # closed meanwhile
        except Exception as error:  # noqa: BLE001 - handed over to the task that answers the request
            self._failure = error
        finally:
            self._send.close()

    @property
    def ended(self) -> bool:
        """See `ByteStream.ended`."""
        return self._done and not self._ready

    async def next_chunk(self) -> bytes:
        """See `ByteStream.next_chunk`."""
        if self._ready:
            ready, self._ready = self._ready, b""
            return ready
        if self._done:
            return b""
        chunk = await self._next()
        if chunk or self._failure is None:
            return chunk
        return self._end_with(self._failure)

    def _end_with(self, failure: Exception) -> bytes:
        if isinstance(failure, SmgError):
            logger.warning("stream ended with an error: %s", failure.message)
        else:
            logger.error("a streamed response failed", exc_info=failure)
        return self._writer.failed(failure)

    async def _next(self) -> bytes:
        """All that waits to be sent, or a sign of life; empty at the end."""
        with trio.move_on_after(self._gateway.settings.sse_keepalive_secs):
            try:
                chunk = await self._receive.receive()
            except trio.EndOfChannel:
                self._done = True
                return b""
            try:
                while True:
                    chunk += self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return chunk
        return KEEP_ALIVE

    async def write_on(self, write: BodyWrite, *, mostly_immediate: bool) -> None:
        """See `ByteStream.write_on`: there is no short way."""

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._done = True
        self._gateway.background.cancel(self._name)
        self._receive.close()
        self._on_close()
