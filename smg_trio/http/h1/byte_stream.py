"""The bytes of one HTTP/1.1 connection, both ways: what was read ahead, and what is still to be written."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import trio

from smg_trio.http.client_connection import WOULD_BLOCK, ClientConnection, ClientGone
from smg_trio.http.faults import RequestTimeout

if TYPE_CHECKING:
    from smg_trio.http.body_pace import BodyPace
    from smg_trio.http.h1.write_batcher import WriteBatcher

_BODY_READ = 256 * 1024


class ByteStream:
    """Reads ahead into a buffer, and writes immediately, with the next batch, or as the client reads.

    Attributes:
        link: the client's connection.
        buffer: bytes that were read and not used yet; changed in place only.
        batcher: writes what is queued.
        queued: bytes that wait for the next batch.
    """

    __slots__ = ("_write_timeout_s", "_writing", "batcher", "buffer", "link", "queued")

    def __init__(self, link: ClientConnection, batcher: WriteBatcher, write_timeout_s: float) -> None:
        self.link = link
        self.batcher = batcher
        self.buffer = bytearray()
        self._write_timeout_s = write_timeout_s
        self._writing: trio.Event | None = None
        self.queued = b""

    async def read_body(self, pace: BodyPace) -> bool:
        """Reads more into `buffer`; ``False`` if the client sent no more and never will.

        Raises:
            RequestTimeout: it did not come at the pace that it must.
        """
        link = self.link
        with trio.CancelScope() as scope:
            link.body_scope = scope
            link.read_deadline = pace.due
            try:
                data = await link.receive(_BODY_READ)
            except OSError:
                return False
            finally:
                link.read_deadline = inf
                link.body_scope = None
        if scope.cancelled_caught:
            raise RequestTimeout("The request body did not arrive in time.")
        pace.came(len(data), trio.current_time())
        self.buffer += data
        return bool(data)

    async def write(self, data: bytes) -> None:
        """Writes all of ``data``; without a checkpoint if the kernel takes it immediately.

        Raises:
            ClientGone: the client has left.
        """
        rest = self.offer(data)
        if rest:
            await self.write_slowly(rest)

    def queue(self, data: bytes) -> bool:
        """Leaves ``data`` to the next batch; ``False`` if it must be written by the caller, for it has to wait."""
        if self._writing is not None:
            return False
        if self.queued:
            self.queued += data
        else:
            self.queued = data
            self.batcher.add(self)
        return True

    def write_queued(self) -> bytes:
        """Offers what is queued to the kernel; what it did not take must be given to `write_rest`.

        A client that has left ends the connection.
        """
        if not self.queued:
            return b""
        try:
            rest = self.offer(b"")
        except ClientGone:
            self.link.scope.cancel()
            return b""
        if rest:
            self._writing = trio.Event()
        return rest

    async def write_rest(self, rest: bytes) -> None:
        """Writes what a batch could not. A client that has left ends the connection."""
        if self.link.sock.fileno() < 0:  # closed before this task had its first turn
            return
        try:
            await self._write_out(rest)
        except (ClientGone, trio.ClosedResourceError):
            self.link.scope.cancel()

    def offer(self, data: bytes) -> bytes:
        """Offers ``data``, after what is queued, to the kernel; what it did not take is left to `write_slowly`.

        Raises:
            ClientGone: the client has left.
        """
        if self._writing is not None:
            return data
        if self.queued:
            data, self.queued = self.queued + data, b""
        try:
            sent = self.link.sock.send(data)
        except WOULD_BLOCK:
            return data
        except OSError as error:
            raise ClientGone from error
        return b"" if sent == len(data) else data[sent:]

    async def write_slowly(self, data: bytes) -> None:
        """Writes all of ``data``, waiting for the client to read. Raises as `write` does."""
        while self._writing is not None:
            await self._writing.wait()
        self._writing = trio.Event()
        await self._write_out(data)

    async def _write_out(self, data: bytes) -> None:
        writing = self._writing
        assert writing is not None, "there is one writer at a time"
        try:
            await self.link.send_all(data, self._write_timeout_s)
        finally:
            self._writing = None
            writing.set()
