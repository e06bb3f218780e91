"""Connections to one server: opened, kept for a moment while idle, and closed without waiting."""

from __future__ import annotations

import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.upstream.errors import UpstreamUnreachable

if TYPE_CHECKING:
    from smg_trio.core.http_addresses import HttpAddress

IDLE_LIMIT_S: Final = 3.0
"""Below the keep-alive of the servers that are in use (uvicorn closes after 5 s): a request that meets the close of its
connection fails, or has to be sent twice."""


READ_BYTES: Final = 64 * 1024


class Connection:
    """One connection. `stream` sends; `close` never waits.

    Attributes:
        receive: what comes next, or empty bytes at the end. Raises trio.BrokenResourceError, trio.ClosedResourceError,
            OSError. Cancelled, nothing is lost.
    """

    __slots__ = ("_close", "_readable", "receive", "stream")

    def __init__(
        self, stream: trio.abc.Stream, close: Callable[[], None], readable: Callable[[], bool] = lambda: False
    ) -> None:
        self.stream = stream
        self.receive: Callable[[], Awaitable[bytes | bytearray]] = partial(stream.receive_some, READ_BYTES)
        self._close = close
        self._readable = readable

    def stale(self) -> bool:
        """Whether an idle connection has something to read: the end, as a rule, and nothing that anybody asked for."""
        return self._readable()

    def close(self) -> None:
        """Close it now; who reads from it gets ClosedResourceError. Idempotent."""
        self._close()


class PlainConnection(Connection):
    """A connection without TLS. Takes over the stream's socket.

    Most reads of a stream find nothing yet, so it waits first and then reads, on the socket itself: trio's stream tries
    to read first, which costs a third of what it costs to relay a chunk.
    """

    __slots__ = ("_sock",)

    def __init__(self, stream: trio.SocketStream) -> None:
        self._sock = socket.socket(fileno=stream.socket.detach())
        self._sock.setblocking(False)
        again = trio.SocketStream(trio.socket.from_stdlib_socket(self._sock))
        super().__init__(again, again.socket.close, again.socket.is_readable)
        self.receive = self._receive

    async def _receive(self) -> bytes:
        sock = self._sock
        while True:
            await trio.lowlevel.wait_readable(sock)
            try:
                return sock.recv(READ_BYTES)
            except BlockingIOError:
                continue


Connect = Callable[[], Awaitable[Connection]]


def connector(address: HttpAddress, name: str, tls: ssl.SSLContext | None) -> Connect:
    """What opens connections to a server. The name is resolved each time.

    Args:
        address: of the server.
        name: what messages call it.
        tls: for an address with TLS; the certificate must be valid for the host of the address.

    The function raises UpstreamUnreachable, and takes as long as the network does: the caller limits it.
    """

    async def connect() -> Connection:
        try:
            plain = await trio.open_tcp_stream(address.host, address.port)
        except OSError as error:
            raise UpstreamUnreachable(f"Worker {name} cannot be reached ({_words(error)}).") from None
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not address.tls:
            return PlainConnection(plain)
        encrypted = trio.SSLStream(
            plain, tls or ssl.create_default_context(), server_hostname=address.host, https_compatible=True
        )
        try:
            await encrypted.do_handshake()
        except BaseException as error:
            plain.socket.close()
            if isinstance(error, (trio.BrokenResourceError, ssl.CertificateError)):
                raise UpstreamUnreachable(f"Worker {name} cannot be reached (TLS: {_tls_words(error)}).") from None
            raise
        return Connection(encrypted, plain.socket.close, plain.socket.is_readable)

    return connect


def _words(error: OSError) -> str:
    """Why, without the address: messages are shown to clients."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
        if isinstance(cause, BaseExceptionGroup):  # one for each address of the name
            cause = cause.exceptions[0]
    if isinstance(cause, socket.gaierror):
        return str(cause.strerror)
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number else "the connection failed"


def _tls_words(error: BaseException) -> str:
    cause = error.__cause__ if error.__cause__ is not None else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    return getattr(cause, "reason", None) or "the handshake failed"


class ConnectionPool:
    """Idle connections to one server; how many are in use is not limited here, admission does that."""

    def __init__(self, connect: Connect, idle_limit_s: float = IDLE_LIMIT_S) -> None:
        self.connect = connect
        self._idle_limit_s = idle_limit_s
        self._idle: deque[tuple[float, Connection]] = deque()
        self._arrival = trio.Event()

    @property
    def idle(self) -> int:
        """How many are kept."""
        return len(self._idle)

    def take(self) -> Connection | None:
        """The one that was used last, if it can still be used."""
        now = trio.current_time()
        while self._idle:
            since, connection = self._idle.pop()
            if now - since < self._idle_limit_s and not connection.stale():
                return connection
            connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Keep one that has carried a whole response."""
        self._idle.append((trio.current_time(), connection))
        self._arrival.set()

    def close(self) -> None:
        """Close all that are kept."""
        while self._idle:
            self._idle.pop()[1].close()

    async def run(self) -> None:
        """Close what has been idle for too long, until cancelled; then close all."""
        idle = self._idle
        try:
            while True:
                if not idle:
                    self._arrival = trio.Event()
                    await self._arrival.wait()
                    continue
                due = idle[0][0] + self._idle_limit_s
                await trio.sleep_until(due)
                # Compared as it was computed: a difference of the two may round to less than the limit.
                while idle and idle[0][0] + self._idle_limit_s <= due:
                    idle.popleft()[1].close()
        finally:
            self.close()
