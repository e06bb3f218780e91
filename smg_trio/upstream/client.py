"""One request to a server and its response: sent whole, read as it comes, closed at once when nobody wants it.

A connection that was idle may be dead without anybody knowing. A request that finds it so, before a byte of a response
has come, is sent once more on a new connection. That is no retry: nothing has been answered.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from smg_trio import __version__
from smg_trio.upstream.connections import IDLE_LIMIT_S, Connect, Connection, ConnectionPool, connector
from smg_trio.upstream.errors import UpstreamDisconnected, UpstreamTimeout, UpstreamTruncated, UpstreamUnreachable
from smg_trio.upstream.response_reader import BadResponse, ResponseHead, ResponseReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_trio.core.errors import SmgError
    from smg_trio.core.http_addresses import HttpAddress

_USER_AGENT: Final = f"smg-trio/{__version__}"


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Times in seconds: until a connection is there, until the response begins, between two reads of its body."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    silence_s: float = 300.0
    idle_s: float = IDLE_LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """What is sent. `path` with its query, without the base path of the server; header names in lower case."""

    method: str
    path: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = field(default=b"", repr=False)

    def serialized(self, address: HttpAddress) -> bytes:
        """All of it as bytes."""
        lines = [f"{self.method} {address.base_path}{self.path} HTTP/1.1", f"host: {address.authority}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines.append(f"user-agent: {_USER_AGENT}")
        if self.body or self.method != "GET":
            lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace") + self.body


_SENT: Final = UpstreamRequest(method="GET", path="/")


class Exchange:
    """One request and its response. Close it on every path; closing never blocks, and ends what goes on at the server.

    Attributes:
        complete: the bytes that `read` returned last were the last ones.
        waits_since: when its reader began to wait for more of the body, on the loop's clock; None while it does not. A
            reader whose own client is slow does not read, and that is no silence of the worker's.
    """

    __slots__ = (
        "_client", "_connection", "_failure", "_heard", "_reader", "_request", "_scope", "complete", "waits_since",
    )  # fmt: skip

    def __init__(self, client: UpstreamClient, request: UpstreamRequest) -> None:
        self._client = client
        self._request = request
        self._connection: Connection | None = None
        self._reader = ResponseReader()
        self._scope: trio.CancelScope | None = None
        self._failure: SmgError | None = None
        self._heard = False
        self.complete = False
        self.waits_since: float | None = None

    async def start(self) -> ResponseHead:
        """Send the request and wait for the head of its response.

        Raises UpstreamUnreachable, UpstreamDisconnected, UpstreamTimeout, or what `fail` was told. Cancelled or not,
        the caller closes it.
        """
        with trio.CancelScope() as scope:
            self._scope = scope
            if self._failure is None:
                return await self._start(scope)
        self._scope = None
        if self._failure is not None:
            raise self._failure
        name, limits = self._client.name, self._client.limits
        if self._connection is None:
            raise UpstreamUnreachable(f"Worker {name} cannot be reached (no connection within {limits.connect_s:g}s).")
        raise UpstreamTimeout(f"Worker {name} did not answer within {limits.first_byte_s:g}s.")

    async def _start(self, scope: trio.CancelScope) -> ResponseHead:
        limits, pool = self._client.limits, self._client.pool
        reused = pool.take()
        if reused is not None:
            try:
                return await self._ask(scope, reused)
            except UpstreamDisconnected:
                if self._failure is not None or self._heard:
                    raise
                self._drop()
                self._reader = ResponseReader()
        scope.deadline = trio.current_time() + limits.connect_s
        return await self._ask(scope, await pool.connect())

    async def _ask(self, scope: trio.CancelScope, connection: Connection) -> ResponseHead:
        self._connection = connection
        scope.deadline = trio.current_time() + self._client.limits.first_byte_s
        # A server may refuse a request without reading all of it: then its response is there to be read.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await connection.stream.send_all(self._request.serialized(self._client.address))
        reader = self._reader
        while reader.head is None:
            try:
                await self._receive()
            except UpstreamTruncated as error:
                raise UpstreamDisconnected(error.message) from None
        self._scope = None
        self._request = _SENT  # a stream may go on for long after its request, which may be large
        return reader.head

    async def _receive(self) -> None:
        """Read once. Raises UpstreamTruncated, or what `fail` was told."""
        connection = self._connection
        try:
            if connection is None:
                raise BadResponse("the connection is closed")
            data = await connection.receive()
            if data:
                self._heard = True
                self._reader.feed(data)
            else:
                self._reader.feed_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            raise self._failure or self._broken("the connection ended before the response did") from None
        except BadResponse as error:
            raise self._failure or self._broken(str(error)) from None

    def _broken(self, why: str) -> UpstreamTruncated:
        return UpstreamTruncated(f"The response of worker {self._client.name} cannot be read: {why}.")

    async def read(self) -> bytes:
        """The next bytes of the body, as they come; empty only at its end (see `complete`).

        Raises UpstreamTruncated, or what `fail` was told. Cancelled, it can be called again.
        """
        reader = self._reader
        while True:
            data = reader.take()
            if reader.complete:
                self._finish()
                return data
            if data:
                return data
            self.waits_since = trio.current_time()
            await self._receive()
            self.waits_since = None

    def _finish(self) -> None:
        self.complete = True
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._reader.reusable:
                self._client.pool.give(connection)
            else:
                connection.close()
        self._client.open.pop(self, None)

    def fail(self, error: SmgError) -> None:
        """End it with `error`, which is raised to its reader. Never blocks."""
        if self._failure is None and not self.complete:
            self._failure = error
            if self._scope is not None:
                self._scope.cancel()
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection unless the response is complete; idempotent."""
        self._client.open.pop(self, None)
        self._drop()


class UpstreamClient:
    """Sends requests to one server. `run` it in a nursery; exchanges may be begun from any task beside it.

    Args:
        address: of the server.
        name: what messages call it.
        limits: see `UpstreamLimits`.
        tls: for an address with TLS; None for the system's roots.
        connect: in place of real connections, for tests.

    Attributes:
        open: exchanges that have begun and are not over.
    """

    def __init__(
        self,
        address: HttpAddress,
        name: str,
        limits: UpstreamLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.address = address
        self.name = name
        self.limits = limits or UpstreamLimits()
        self.pool = ConnectionPool(connect or connector(address, name, tls), self.limits.idle_s)
        self.open: dict[Exchange, None] = {}

    def exchange(self, request: UpstreamRequest) -> Exchange:
        """A request that is going to be sent; see `Exchange.start`."""
        exchange = Exchange(self, request)
        self.open[exchange] = None
        return exchange

    async def fetch(self, request: UpstreamRequest, max_bytes: int, timeout_s: float) -> tuple[ResponseHead, bytes]:
        """A whole small response. Raises what `Exchange` does, UpstreamTimeout, UpstreamTruncated if it is larger."""
        exchange = self.exchange(request)
        body = b""
        try:
            with trio.move_on_after(timeout_s):
                head = await exchange.start()
                while not exchange.complete:
                    body += await exchange.read()
                    if len(body) > max_bytes:
                        raise UpstreamTruncated(f"The response of worker {self.name} is larger than {max_bytes} bytes.")
                return head, body
        finally:
            exchange.close()
        raise UpstreamTimeout(f"Worker {self.name} did not answer within {timeout_s:g}s.")

    def fail_everything(self, error: SmgError) -> None:
        """End every exchange with `error`."""
        for exchange in list(self.open):
            exchange.fail(error)

    async def run(self) -> None:
        """Close idle connections and end silent responses in time, until cancelled; then close everything."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.pool.run)
                nursery.start_soon(self._end_silent)
        finally:
            for exchange in list(self.open):
                exchange.close()

    async def _end_silent(self) -> None:
        limit_s = self.limits.silence_s
        while True:
            # One sleep for all of them: a limit of each read's own would cost more than the read does.
            await trio.sleep(limit_s / 4)
            long_ago = trio.current_time() - limit_s
            error = UpstreamTimeout(f"Worker {self.name} sent nothing for {limit_s:g}s.")
            for exchange in list(self.open):
                if exchange.waits_since is not None and exchange.waits_since < long_ago:
                    exchange.fail(error)
