"""What the server knows of every open connection, whichever protocol speaks on it.

A `ClientConnection` holds the socket, the connection's cancel scope and its two deadlines. Deadlines are plain numbers
that one task per server looks at (`ServerLimits.tick_s`): moving one costs an attribute store, where a timer
task or a cancel scope per request costs tens of microseconds.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from math import inf
from typing import Final

import trio

from smg_trio.http.faults import RequestFault, RequestTimeout

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


class ClientConnection:
    """One accepted connection.

    Attributes:
        sock: the non-blocking socket; this object closes it.
        scope: cancelling it ends the connection.
        idle: no request is being read or answered, so closing loses nothing.
        read_deadline, write_deadline: monotonic seconds; ``inf`` while nothing is awaited.
        timeout_answer: what to answer if ``read_deadline`` passes; ``None`` closes silently.
        body_scope: what is cancelled then instead of ``scope``, while a request's body is read.
        fault: what is to be answered after ``scope`` was cancelled by a deadline.
    """

    __slots__ = (
        "body_scope",
        "client",
        "fault",
        "idle",
        "read_deadline",
        "scope",
        "server",
        "sock",
        "timeout_answer",
        "write_deadline",
    )

    def __init__(self, sock: socket.socket, client: Address | None, server: Address | None) -> None:
        self.sock = sock
        self.client = client
        self.server = server
        self.scope = trio.CancelScope()
        self.idle = True
        self.read_deadline = inf
        self.write_deadline = inf
        self.timeout_answer: str | None = None
        self.body_scope: trio.CancelScope | None = None
        self.fault: RequestFault | None = None

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
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    async def linger(self, seconds: float) -> None:
        """Leave the client time to read the last answer although it goes on sending.

        Closing now would reset the connection, and that may reach the client before the answer does. So a little of
        what it sends is read and thrown away; the rest is left to push back on it, until it leaves or `seconds` are
        over. Nobody else may be reading. Raises nothing.
        """
        with trio.move_on_after(seconds), suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            left = _MOST_DISCARDED
            while left > 0:
                await trio.lowlevel.wait_readable(self.sock)
                with suppress(BlockingIOError):
                    data = self.sock.recv(_DISCARD_PIECE)
                    if not data:
                        return
                    left -= len(data)
            await trio.sleep(_PAUSE_S)

    def send_last(self, data: bytes) -> None:
        """Offers a last answer to the kernel, without waiting."""
        try:
            self.sock.send(data)
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        """Closes the socket; harmless when repeated."""
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()
