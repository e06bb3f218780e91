"""What the server knows of every open connection, whichever protocol speaks on it.

A `Link` holds the socket, the connection's cancel scope and its two deadlines. Deadlines are plain numbers
that one task per server looks at (`ServerLimits.tick_s`): moving one costs an attribute store, where a timer
task or a cancel scope per request costs tens of microseconds.
"""

from __future__ import annotations

import socket
from math import inf

import trio

from smg_trio.gateway.server.faults import RequestFault, RequestTimeout

Address = tuple[str, int]


def address_of(name: object) -> Address | None:
    """The ``(host, port)`` of a socket name; ``None`` for a local (Unix) socket."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return None


class ClientGone(OSError):
    """The client has left: nothing more can be sent to it."""


class Link:
    """One accepted connection.

    Attributes:
        sock: the non-blocking socket; this object closes it.
        scope: cancelling it ends the connection.
        idle: no request is being read or answered, so closing loses nothing.
        read_deadline, write_deadline: monotonic seconds; ``inf`` while nothing is awaited.
        timeout_answer: what to answer if ``read_deadline`` passes; ``None`` closes silently.
        fault: what is to be answered after ``scope`` was cancelled by a deadline.
    """

    __slots__ = (
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
        self.fault: RequestFault | None = None

    def check_deadlines(self, now: float) -> None:
        """Cancels the connection if one of its deadlines has passed."""
        if now < self.read_deadline and now < self.write_deadline:
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
