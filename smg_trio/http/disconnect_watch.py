"""Notices that a client has gone, even while its bytes wait unread.

A reader that holds back (a pipelined request waits, the body is not asked for) cannot see the end of the
stream behind those bytes. The kernel can: a private epoll set reports ``EPOLLRDHUP`` (the peer closed its
sending side) and ``EPOLLHUP``/``EPOLLERR`` (reset) whatever is buffered. Each socket is entered once, when
its connection begins, edge-triggered; the kernel drops it when the socket is closed. One task per server
waits for the set.
"""

from __future__ import annotations

import logging
import select
import socket
from typing import Protocol

import trio

LOGGER = logging.getLogger("smg_trio.http")

_MASK = select.EPOLLRDHUP | select.EPOLLET
_RESET = select.EPOLLHUP | select.EPOLLERR


class Departing(Protocol):
    """Who wants to know that its client has gone."""

    def on_departure(self, *, reset: bool) -> None:
        """The client closed its sending side, or (``reset``) the whole connection. May be called twice."""


class DisconnectWatch:
    """The set of watched sockets."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Departing] = {}

    def enter(self, sock: socket.socket, watcher: Departing) -> None:
        """Watches ``sock`` until `leave`; a client that has gone already is reported too."""
        self._watched[sock.fileno()] = watcher
        self._epoll.register(sock, _MASK)

    def leave(self, sock: socket.socket) -> None:
        """Forgets ``sock``, which must still be open."""
        if self._watched.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock)

    async def run(self) -> None:
        """Reports disconnects until cancelled. Cancellation leaves the set as it is."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for fd, events in self._epoll.poll(0):
                watcher = self._watched.get(fd)
                if watcher is not None:
                    _tell(watcher, reset=bool(events & _RESET))

    def close(self) -> None:
        """Closes the set."""
        self._epoll.close()


def _tell(watcher: Departing, *, reset: bool) -> None:
    # One task tells all connections: what one of them makes of it must not end the others.
    try:
        watcher.on_departure(reset=reset)
    except Exception:
        LOGGER.exception("a client's departure could not be handled")
