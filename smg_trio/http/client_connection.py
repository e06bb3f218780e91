"""What the server knows of every open connection, whichever protocol speaks on it, and how its bytes come and go.

A `ClientConnection` holds the socket, the connection's cancel scope and its two deadlines. Deadlines are plain numbers
that one task per server looks at (`ServerLimits.tick_s`): moving one costs an attribute store, where a timer
task or a cancel scope per request costs tens of microseconds.

The socket is non-blocking, and under TLS an `ssl.SSLSocket`, so that both are read and written in the same way. What
could not be sent immediately under TLS must be sent next, the very same bytes (OpenSSL's SSL_write(3)).
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from math import inf
from typing import Final, NamedTuple, cast

import trio

from smg_trio.http.faults import NOTHING_READ, RequestTimeout

WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What sending and receiving raise where a blocking socket would wait."""
_TLS_RECORD: Final = 16 * 1024
_MOST_DISCARDED: Final = 256 * 1024
_DISCARD_PIECE: Final = 64 * 1024
_PAUSE_S: Final = 1.0
"""For a client that does not stop sending: it has had the answer in its buffer for so long when it is cut off."""

Address = tuple[str, int]


def address_of(name: object) -> Address | None:
    """The ``(host, port)`` of a socket name; ``None`` for a local (Unix) socket."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return None


class ClientGone(OSError):
    """The client has left: nothing more can be sent to it."""


class Handover(NamedTuple):
    """A connection that another protocol is to speak from here on.

    Attributes:
        handshake: that of a WebSocket; none for HTTP/2.
        received: the bytes of HTTP/2 that were read.
    """

    handshake: bytes = b""
    received: bytes = b""


class ClientConnection:
    """One accepted connection.

    Attributes:
        sock: the non-blocking socket; this object closes it.
        secure: it speaks TLS, and ``sock`` is an `ssl.SSLSocket`.
        scope: cancelling it ends the connection.
        idle: no request is being read or answered, so closing loses nothing.
        read_deadline, write_deadline: monotonic seconds; ``inf`` while nothing is awaited.
        timeout_answer: what to answer if ``read_deadline`` passes; ``None`` closes silently.
        body_scope: what is cancelled then instead of ``scope``, while a request's body is read.
        fault: what is to be answered after ``scope`` was cancelled by a deadline.
        asked: what was read of the request that ``fault`` is about.
    """

    __slots__ = (
        "asked",
        "body_scope",
        "client",
        "fault",
        "idle",
        "read_deadline",
        "scope",
        "secure",
        "server",
        "sock",
        "timeout_answer",
        "write_deadline",
    )

    def __init__(self, sock: socket.socket, client: Address | None, server: Address | None) -> None:
        self.sock = sock
        self.secure = False
        self.client = client
        self.server = server
        self.scope = trio.CancelScope()
        self.idle = True
        self.read_deadline = inf
        self.write_deadline = inf
        self.timeout_answer: str | None = None
        self.body_scope: trio.CancelScope | None = None
        self.fault: RequestTimeout | None = None
        self.asked = NOTHING_READ

    async def start_tls(self, context: ssl.SSLContext, timeout_s: float) -> str | None:
        """Do the server's part of the TLS handshake within ``timeout_s``; the protocol that ALPN chose, if any.

        Raises:
            OSError: it failed; an `ssl.SSLError` says why. Failed or cancelled, the link can only be closed.
        """
        self.read_deadline = trio.current_time() + timeout_s
        self.sock = secure = context.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
        self.secure = True
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(secure)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(secure)
            else:
                self.read_deadline = inf
                return secure.selected_alpn_protocol()

    async def receive(self, size: int) -> bytes:
        """At most ``size`` bytes; none if the client sends no more.

        Raises:
            OSError: the connection has ended in another way.
        """
        sock = self.sock
        if self.secure:
            return await _receive_decrypted(cast("ssl.SSLSocket", sock), min(size, _TLS_RECORD))
        while True:
            await trio.lowlevel.wait_readable(sock)
            try:
                return sock.recv(size)
            except BlockingIOError:
                continue

    async def send_all(self, data: bytes, timeout_s: float) -> None:
        """Send ``data``, waiting for the client to read. A client that takes no byte for ``timeout_s`` is cut.

        Raises:
            ClientGone: the client has left.
        """
        rest = memoryview(data)
        try:
            while rest:
                self.write_deadline = trio.current_time() + timeout_s
                await trio.lowlevel.wait_writable(self.sock)
                try:
                    rest = rest[self.sock.send(rest) :]
                except WOULD_BLOCK:
                    continue
                except OSError as error:
                    raise ClientGone from error
        finally:
            self.write_deadline = inf

    def check_deadlines(self, now: float) -> None:
        """Cancels the connection, or the reading of a body, if one of its deadlines has passed."""
        if now < self.read_deadline and now < self.write_deadline:
            return
        if self.body_scope is not None and now < self.write_deadline:
            self.body_scope.cancel()
            return
        if now >= self.read_deadline and self.timeout_answer is not None:
            self.fault = RequestTimeout(self.timeout_answer)
        self.scope.cancel()

    def close_if_idle(self) -> None:
        """Ends the connection if no request of it is at work, or already waiting to be read."""
        if self.idle and not self.has_bytes():
            self.scope.cancel()

    def has_bytes(self) -> bool:
        """Whether bytes lie unread in the kernel."""
        try:
            return bool(socket.socket.recv(self.sock, 1, socket.MSG_PEEK))  # an SSLSocket's own cannot peek
        except OSError:
            return False

    async def linger(self, seconds: float) -> None:
        """Leave the client time to read the last answer although it goes on sending.

        Closing now would reset the connection, and that may reach the client before the answer does. So a little of
        what it sends is read and thrown away; the rest is left to push back on it, until it leaves or `seconds` are
        over. No other task may be reading. Raises nothing.
        """
        self.end_sending()
        with trio.move_on_after(seconds), suppress(OSError):
            left = _MOST_DISCARDED
            while left > 0:
                await trio.lowlevel.wait_readable(self.sock)
                with suppress(*WOULD_BLOCK):
                    data = self.sock.recv(_DISCARD_PIECE)
                    if not data:
                        return
                    left -= len(data)
            await trio.sleep(_PAUSE_S)

    def send_last(self, data: bytes, *, plain: bool = False) -> None:
        """Offers a last answer to the kernel, without waiting; ``plain``: as it is, though the link speaks TLS."""
        with suppress(OSError):
            if plain:
                socket.socket.send(self.sock, data)
            else:
                self.sock.send(data)
        self.end_sending()

    def end_sending(self) -> None:
        """Say that nothing more comes: under TLS a close_notify, then a FIN. What is received after that is raw."""
        if isinstance(self.sock, ssl.SSLSocket):
            with suppress(OSError, ValueError):  # ValueError: there was no handshake, or this was called before
                self.sock.unwrap()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket; harmless when repeated."""
        if self.sock.fileno() >= 0:
            if self.secure:
                self.end_sending()
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()


async def _receive_decrypted(sock: ssl.SSLSocket, size: int) -> bytes:
    while True:
        if not sock.pending():  # at most the rest of one record, which the kernel knows nothing of
            await trio.lowlevel.wait_readable(sock)
        try:
            return sock.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            continue
        except ssl.SSLWantWriteError:
            await trio.lowlevel.wait_writable(sock)
