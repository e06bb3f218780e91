"""Opens listening sockets, accepts connections and runs them until the server is told to end.

Every connection is read by `h1` first, after its TLS handshake if it has one, unless ALPN has chosen HTTP/2. What
turns out to be HTTP/2 or a WebSocket is handed to hypercorn's protocols (`hypercorn.tcp_server`).

The task tree of one `serve`: one accept task per listener, one task that looks at deadlines, one that
watches for departed clients, one that waits for the shutdown, and one task per connection. A connection's
failure is logged and ends that connection only.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.http.client_connection import Address, ClientConnection, ClientGone, Handover, address_of
from smg_trio.http.disconnect_watch import DisconnectWatch
from smg_trio.http.faults import (
    NOTHING_READ,
    AnswerFault,
    FaultAnswers,
    OnFault,
    PartialRequest,
    RequestFault,
    TooManyConnections,
    plain_answer,
    tell_nobody,
)
from smg_trio.http.h1.connection import Http1Connection
from smg_trio.http.h1.context import Http1Context
from smg_trio.http.h1.response import encode_answer
from smg_trio.http.hypercorn.tcp_server import HypercornHost
from smg_trio.http.settings import ServerLimits
from smg_trio.http.shutdown import Shutdown
from smg_trio.http.statistics import ServerStatistics

if TYPE_CHECKING:
    from smg_trio.http.asgi import App

LOGGER = logging.getLogger("smg_trio.http")
SslContext = Callable[[], ssl.SSLContext]
"""The context of the next connection; it offers `ALPN_PROTOCOLS`."""
ALPN_PROTOCOLS = ["h2", "http/1.1"]

_ACCEPT_BATCH = 64
_CAPACITY_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_CAPACITY_PAUSE_S = 0.1
_PLAIN_HTTP: Final = "This port speaks TLS: use https:// in place of http://."


async def open_listeners(host: str, port: int, *, backlog: int = 2048) -> list[trio.SocketListener]:
    """Listening sockets for every address ``host`` means (IPv4 and IPv6), all on one port.

    Args:
        host: a name or address; ``""`` or ``"*"`` for all interfaces.
        port: ``0`` lets the kernel choose; further addresses then get the port of the first.
        backlog: connections the kernel holds before they are accepted.

    Raises:
        ConfigError: the port is taken or not permitted, or the host means no address here.
    """
    listeners: list[trio.SocketListener] = []
    try:
        infos = await trio.socket.getaddrinfo(
            None if host in {"", "*"} else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in infos:
            chosen = listeners[0].socket.getsockname()[1] if listeners else port
            listener = _open_listener(family, (address[0], chosen, *address[2:]), backlog)
            if listener is not None:
                listeners.append(listener)
    except OSError as error:
        for listener in listeners:
            await listener.aclose()
        raise _bind_error(host, port, error) from error
    if not listeners:
        raise ConfigError("--host", f"{host!r} is not an address that can be listened on.")
    return listeners


def _open_listener(family: int, address: tuple[str | int, ...], backlog: int) -> trio.SocketListener | None:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        return trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6:
            return None  # the name resolves to an IPv6 address this host has switched off
        raise


def _bind_error(host: str, port: int, error: OSError) -> ConfigError:
    if isinstance(error, socket.gaierror):
        return ConfigError("--host", f"{host!r} cannot be resolved.", "Give a name or address of this host.")
    if error.errno == errno.EADDRINUSE:
        return ConfigError("--port", f"{port} is in use.", "Choose another port, or 0 for a free one.")
    if error.errno == errno.EACCES:
        return ConfigError("--port", f"{port} needs privileges.", "Choose a port above 1023.")
    return ConfigError("--host", f"cannot listen on {host!r} port {port}: {os.strerror(error.errno or 0)}.")


class Turns(Protocol):
    """Says when this process may take a connection, where several accept from the same listening sockets."""

    async def wait(self) -> None:
        """Return when it is this process's turn, or nobody else takes one; a moment at most."""
        ...

    def count(self, connections: int) -> None:
        """So many connections are open here now."""
        ...

    def accepting(self, on: bool) -> None:
        """Whether this process takes connections from now on."""
        ...


class RunningServer:
    """What `serve` reports as started: where it listens, and its counts."""

    def __init__(self, server: _Server, addresses: list[Address]) -> None:
        self._server = server
        self.addresses = addresses

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.addresses[0][1]

    def statistics(self) -> ServerStatistics:
        """The server's counts at this moment."""
        return self._server.statistics()


async def serve(
    app: App,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: ServerLimits | None = None,
    shutdown: Shutdown | None = None,
    ssl_context: SslContext | None = None,
    answer_fault: AnswerFault = plain_answer,
    on_fault: OnFault = tell_nobody,
    turns: Turns | None = None,
    task_status: trio.TaskStatus[RunningServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves ``app`` (ASGI 3, without lifespan) until ``shutdown`` has run its course.

    Args:
        app: called once per HTTP request or WebSocket.
        listeners: closed when draining begins, and in any case on return.
        limits: sizes and times; the defaults if not given.
        shutdown: how the caller ends the server; without it only cancellation does.
        ssl_context: serve TLS; asked for each connection, so that it may change.
        answer_fault: makes the answer to what goes wrong before the app has a request, or where it does not answer.
        on_fault: told of each such answer.
        turns: the other processes that accept from these listeners, if there are any.
        task_status: started with a `RunningServer`.

    Cancellation closes every socket immediately; requests in flight are cancelled.
    """
    shutdown = shutdown or Shutdown()
    server = _Server(app, limits or ServerLimits(), ssl_context, FaultAnswers(answer_fault, on_fault), turns)
    names = [address_of(listener.socket.getsockname()) for listener in listeners]
    running = RunningServer(server, [name for name in names if name is not None])
    try:
        with shutdown.hard_scope:
            await server.run(listeners, shutdown, running, task_status)
    finally:
        server.close()
        for listener in listeners:
            listener.socket.close()


class _Server:
    """The state all connections of one `serve` share."""

    def __init__(
        self, app: App, limits: ServerLimits, tls: SslContext | None, faults: FaultAnswers, turns: Turns | None
    ) -> None:
        self.limits = limits
        self.turns = turns
        # One at a time where others accept too: a burst is theirs as well.
        self.batch = _ACCEPT_BATCH if turns is None else 1
        self.tls = tls
        self.faults = faults
        self.links: set[ClientConnection] = set()
        self.disconnects = DisconnectWatch()
        self.hypercorn = HypercornHost(app, limits, faults)
        self.context = Http1Context(app, limits, self.disconnects, faults)
        self.accepted = 0
        self.refused = 0
        self.handed_over = 0

    def statistics(self) -> ServerStatistics:
        """The counts at this moment."""
        return ServerStatistics(
            connections_open=len(self.links),
            connections_idle=sum(link.idle for link in self.links),
            connections_accepted=self.accepted,
            connections_refused=self.refused,
            connections_handed_over=self.handed_over,
            requests=self.context.requests,
            faults=self.faults.count,
        )

    def close(self) -> None:
        """Releases what is not bound to a task."""
        self.disconnects.close()

    async def run(
        self,
        listeners: Sequence[trio.SocketListener],
        shutdown: Shutdown,
        running: RunningServer,
        task_status: trio.TaskStatus[RunningServer],
    ) -> None:
        """Accepts and serves until draining begins, then until the last connection is gone."""
        async with trio.open_nursery() as watchers:
            watchers.start_soon(self._watch_deadlines)
            watchers.start_soon(self.disconnects.run)
            watchers.start_soon(self.context.batcher.run)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._accept_from, listener, connections)
                    if self.turns is not None:
                        self.turns.accepting(True)
                    task_status.started(running)
                    await shutdown.wait_draining()
                    accepting.cancel_scope.cancel()
                if self.turns is not None:
                    self.turns.accepting(False)
                await self._drain()
            watchers.cancel_scope.cancel()

    async def _drain(self) -> None:
        self.context.draining = True
        await self.hypercorn.drain()
        for link in list(self.links):
            link.close_if_idle()

    async def _watch_deadlines(self) -> None:
        while True:
            await trio.sleep(self.limits.tick_s)
            now = trio.current_time()
            for link in list(self.links):
                try:
                    link.check_deadlines(now)
                except Exception:
                    LOGGER.exception("connection from %s cannot be ended", link.client)

    async def _accept_from(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        # A duplicate of the listening socket, since trio's own gives out no plain sockets.
        plain = socket.socket(fileno=os.dup(listener.socket.fileno()))
        plain.setblocking(False)
        try:
            while True:
                await trio.lowlevel.wait_readable(plain)
                if self.turns is not None:
                    await self.turns.wait()
                await self._accept_batch(plain, connections)
        finally:
            # Clients whose handshake the kernel has already finished are not turned away.
            if not connections.cancel_scope.cancel_called:
                self._accept_waiting(plain, connections)
            plain.close()
            listener.socket.close()

    async def _accept_batch(self, plain: socket.socket, connections: trio.Nursery) -> None:
        # One wake-up for a burst of clients, but not for all of a flood: requests in progress get their turn.
        for _ in range(self.batch):
            try:
                if not self._accept_one(plain, connections):
                    return  # no task waits any more
            except OSError as error:
                if error.errno not in _CAPACITY_ERRNOS:
                    continue  # the client was gone before it was accepted
                # Descriptors or memory have run out: other connections must end first. The kernel holds the clients
                # meanwhile; without a pause the socket would be readable again immediately, over and over.
                LOGGER.warning("cannot accept: %s; waiting", os.strerror(error.errno or 0))
                await trio.sleep(_CAPACITY_PAUSE_S)
                return
            except Exception:
                # A fault of ours. This task alone takes connections, so it must go on.
                LOGGER.exception("a connection could not be accepted")
                await trio.sleep(_CAPACITY_PAUSE_S)
                return

    def _accept_waiting(self, plain: socket.socket, connections: trio.Nursery) -> None:
        try:
            while self._accept_one(plain, connections):
                pass
        except OSError:
            return  # the server ends: what cannot be accepted now is left to the kernel

    def _accept_one(self, plain: socket.socket, connections: trio.Nursery) -> bool:
        try:
            sock, peer = plain.accept()
        except BlockingIOError:
            return False
        sock.setblocking(False)
        # Accepted in any case: in the kernel's queue it would wait without being told anything.
        if len(self.links) >= self.limits.max_connections:
            self._refuse(sock)
            return True
        if sock.family != socket.AF_UNIX:
            # A chunk of a stream is small, and must not wait for the one before it to be acknowledged.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        link = ClientConnection(sock, address_of(peer), address_of(sock.getsockname()))
        self.links.add(link)
        if self.turns is not None:
            self.turns.count(len(self.links))
        connections.start_soon(self._run_link, link)
        return True

    def _refuse(self, sock: socket.socket) -> None:
        self.refused += 1
        fault = TooManyConnections(f"The server has {self.limits.max_connections} connections open.")
        with sock:
            if self.tls is None:  # before a TLS handshake there is nothing to say it in, and one would cost too much
                answer = self._encoded(fault, NOTHING_READ)
                # If it does not fit the socket's empty buffer, the client goes without.
                with suppress(OSError):
                    sock.send(answer)

    def _encoded(self, fault: RequestFault, asked: PartialRequest) -> bytes:
        answer = self.faults.to(fault, asked)
        return encode_answer(answer, self.context.date_line(), head_only=asked.method == "HEAD")

    async def _run_link(self, link: ClientConnection) -> None:
        try:
            with link.scope:
                await self._speak(link)
            if link.fault is not None:
                # Only now: the scope was cancelled to end whatever the connection was waiting for.
                link.send_last(self._encoded(link.fault, link.asked))
        except* (ClientGone, RequestFault):
            pass  # the client has left, or has had its answer: neither is news for the log
        except* Exception:
            # A connection's failure must not end its neighbours, which share the nursery.
            LOGGER.exception("connection from %s failed", link.client)
        finally:
            self.links.discard(link)
            if self.turns is not None:
                self.turns.count(len(self.links))
            link.close()

    async def _speak(self, link: ClientConnection) -> None:
        handover: Handover | None
        if self.tls is not None and await self._start_tls(link, self.tls()) == "h2":
            handover = Handover()
        else:
            handover = await Http1Connection(link, self.context).run()
        if handover is not None:
            self.handed_over += 1
            await self.hypercorn.run(link, handover)

    async def _start_tls(self, link: ClientConnection, context: ssl.SSLContext) -> str | None:
        """The protocol that ALPN chose, if any. Raises ClientGone if there is no TLS to be had with the client."""
        try:
            return await link.start_tls(context, self.limits.head_timeout_s)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                link.send_last(self._encoded(RequestFault(_PLAIN_HTTP), NOTHING_READ), plain=True)
                await link.linger(self.limits.linger_timeout_s)
            raise ClientGone from error
