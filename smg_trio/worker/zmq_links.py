"""`Link` and `Transport` on libzmq, waiting through trio.

The rules of `worker.socket_poller`, and one more: nothing that can raise stands between a successful receive and the
return.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket as sockets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import trio
import zmq
from zmq.utils.monitor import parse_monitor_message

from smg_trio.worker.access import ACCESS_DOMAIN, guard_connections
from smg_trio.worker.links import HandshakeLink, Link, LinkClosed, Network, OutputLink, PeerUnreachable
from smg_trio.worker.socket_poller import POLLIN, SocketPoller

if TYPE_CHECKING:
    from smg_trio.wire.packing import Frame

INPUT_SEND_HIGH_WATER_MARK = 32
"""Messages queued per engine before `send_nowait` says WouldBlock. An engine's socket always reads, so a pipe that
stays full means a stopped process; the bound keeps its backlog of prompts small and lets the send limit see it."""

# As plain numbers: `&` and `|` of the library's flags cost a microsecond each.
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_SOURCE = int(zmq.SRCFD)
_FIRST_TENSOR = 3
"""After identity, type and payload. Pictures have megabytes: the library's thread reads them where they are."""

RELAYED_MESSAGES = 10_000
"""Output messages, one per engine step, that wait for a process that an engine is relayed to: a minute or more."""
HANDSHAKE_MESSAGE_BYTES = 65_536
"""Longest message on the handshake port, which any process of the host can reach: real ones have some hundred bytes."""
HANDSHAKE_CONNECTIONS = 256
"""Connections open on a handshake port; beyond it the oldest is hung up on. An engine says HELLO as soon as it is
connected, and connects again when it has to. Without a bound strangers would use up the process's descriptors."""
HANDSHAKE_QUEUE = 64
"""Unread messages of one peer on the handshake port."""
_GREETING_LIMIT_MS = 5_000
"""How long a connection may take for ZMQ's own greeting."""

_IPC = "ipc://"
_BACKLOG = 100
"""Connections waiting to be accepted, as libzmq has it where it binds by itself."""

HEARTBEAT_S = 2.0
"""Between two heartbeats to an engine on another host. One that has died is known after three times that, at most."""
_KEEPALIVE_IDLE_S = 30
_LOOPBACK = "tcp://127.0.0.1:"

_FULL_PIPE_RETRY_S = 0.05
_LINGER_MS = 100
"""So that the last aborts still leave; the context's end waits for it, at most."""


class ZmqLink:
    """One ZMQ socket; see `worker.links.Link` for the contract."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        address: str,
        *,
        watch_peers: bool,
        max_peers: int | None = None,
        connect: bool = False,
    ) -> None:
        self._socket = socket
        self._poller = SocketPoller(socket)
        self._is_router = socket.type == zmq.ROUTER
        self._identity_of_descriptor: dict[int, bytes] = {}
        self._monitor: zmq.Socket[bytes] | None = None
        self._monitor_poller: SocketPoller | None = None
        self._origins: list[int | None] = []
        self._max_peers = max_peers
        self._port = int(address.rpartition(":")[2]) if max_peers is not None else 0
        self._connections: OrderedDict[int, None] = OrderedDict()
        if watch_peers:
            of_listener = 0 if max_peers is None else int(zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED)
            self._monitor = _open_monitor(socket, int(zmq.EVENT_DISCONNECTED) | of_listener)
            self._monitor_poller = SocketPoller(self._monitor)
        try:
            if connect:
                socket.connect(address)
            else:
                _bind(socket, address)
        except (OSError, zmq.ZMQError) as error:
            self.close()
            raise OSError(error.errno, f"cannot bind {address}: {os.strerror(error.errno or 0)}") from None

    async def receive_many(self, limit: int = 64) -> list[list[bytes]]:
        """See `Link.receive_many`; cancelled or not, no message is lost."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._poller.readable():
            batch = self._drain(limit)
            if batch:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return batch
        while True:
            await self._poller.wait(POLLIN)
            batch = self._drain(limit)
            if batch:
                return batch

    def _drain(self, limit: int) -> list[list[bytes]]:
        if self._poller.closed:
            raise LinkClosed
        receive = self._receive_identified if self._is_router else self._receive_plain
        if self._origins:
            self._origins.clear()
        batch: list[list[bytes]] = []
        try:
            batch.append(receive())
            # EVENTS costs a third of a failing attempt, and mostly there is but one message.
            if self._poller.readable():
                while len(batch) < limit:
                    batch.append(receive())
        except zmq.Again:
            pass
        self._poller.kick()
        return batch

    def _receive_plain(self) -> list[bytes]:
        receive = self._socket.recv
        frame = receive(_NOBLOCK, copy=False)
        try:
            self._origins.append(int(frame.get(_SOURCE)))
        except zmq.ZMQError:
            self._origins.append(None)
        frames = [frame.bytes]
        while frame.more:
            frame = receive(_NOBLOCK, copy=False)
            frames.append(frame.bytes)
        return frames

    def origin(self, index: int) -> int | None:
        """See `Link.origin`."""
        return self._origins[index] if index < len(self._origins) else None

    def _receive_identified(self) -> list[bytes]:
        # The frames of a message carry the descriptor of the connection they came by: it is what
        # a later disconnect notice names, so this is how a lost peer gets its identity back.
        frames = self._socket.recv_multipart(_NOBLOCK, copy=False)
        message = [frame.bytes for frame in frames]
        with contextlib.suppress(zmq.ZMQError):
            self._identity_of_descriptor[int(frames[0].get(_SOURCE))] = message[0]
        return message

    def name_origin(self, origin: int, identity: bytes) -> None:
        """See `OutputLink.name_origin`."""
        self._identity_of_descriptor[origin] = identity

    def peers_lost(self) -> list[bytes | None]:
        """See `OutputLink.peers_lost`."""
        lost: list[bytes | None] = []
        poller = self._monitor_poller
        if self._monitor is None or poller is None:
            return lost
        while poller.readable():
            event = parse_monitor_message(self._monitor.recv_multipart(_NOBLOCK))
            if event["event"] == zmq.EVENT_DISCONNECTED:
                lost.append(self._identity_of_descriptor.pop(int(event["value"]), None))
            poller.kick()
        return lost

    def send_nowait(self, frames: Sequence[Frame]) -> None:
        """See `Link.send_nowait`."""
        if self._poller.closed:
            raise LinkClosed
        send, last = self._socket.send, len(frames) - 1
        try:
            # What `send_multipart` does, which looks at every frame first. A refusal comes with the first frame.
            for index, frame in enumerate(frames):
                send(frame, _NOBLOCK_MORE if index < last else _NOBLOCK, index < _FIRST_TENSOR)
        except zmq.Again:
            raise trio.WouldBlock from None
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                raise PeerUnreachable(frames[0]) from None
            raise OSError(error.errno, os.strerror(error.errno or 0)) from None
        finally:
            self._poller.kick()

    async def send(self, frames: Sequence[Frame]) -> None:
        """See `Link.send`.

        A mandatory ROUTER says POLLOUT when any peer could take a message, so EVENTS cannot tell when this peer's
        pipe has room; every signal of the socket is a reason to try again.
        """
        while True:
            try:
                self.send_nowait(frames)
            except trio.WouldBlock:
                # The attempt may have eaten the very signal we are about to wait for, so the wait is bounded.
                with trio.move_on_after(_FULL_PIPE_RETRY_S):
                    await self._poller.wait_signal()
            else:
                return

    async def wait_peer_lost(self) -> bytes | None:
        """See `Link.wait_peer_lost`."""
        while True:
            kind, descriptor = await self._next_event()
            if kind == zmq.EVENT_DISCONNECTED:
                self._connections.pop(descriptor, None)
                await trio.lowlevel.checkpoint()
                return self._identity_of_descriptor.pop(descriptor, None)
            if kind == zmq.EVENT_ACCEPTED:
                self._note_connection(descriptor)

    async def _next_event(self) -> tuple[int, int]:
        """What happened next, and to which descriptor."""
        monitor, poller = self._monitor, self._monitor_poller
        if monitor is None or poller is None:
            await trio.sleep_forever()
            raise LinkClosed
        while True:
            if poller.closed:
                raise LinkClosed
            try:
                event = parse_monitor_message(monitor.recv_multipart(_NOBLOCK))
            except zmq.Again:
                await poller.wait(POLLIN)
            else:
                return event["event"], int(event["value"])

    async def stop_listening(self) -> None:
        """See `HandshakeLink.stop_listening`. libzmq's own thread does it, some time after it was told."""
        if self._poller.closed:
            return
        self._socket.unbind(self._socket.get_string(zmq.LAST_ENDPOINT))
        while (await self._next_event())[0] != zmq.EVENT_CLOSED:
            pass

    def _note_connection(self, descriptor: int) -> None:
        self._connections[descriptor] = None
        if self._max_peers is not None and len(self._connections) > self._max_peers:
            _hang_up(self._connections.popitem(last=False)[0], self._port)

    def close(self) -> None:
        """See `Link.close`."""
        if self._poller.closed:
            return
        self._poller.close()
        if self._monitor is not None and self._monitor_poller is not None:
            self._monitor_poller.close()
            self._socket.disable_monitor()
            # pyzmq only forgets it, and an open socket (held by a traceback, say) blocks the context's end forever.
            self._monitor.close(linger=0)
        self._socket.close(linger=_LINGER_MS)


def _bind(socket: zmq.Socket[bytes], address: str) -> None:
    if not address.startswith(_IPC):
        socket.bind(address)
        return
    # libzmq's own bind leaves the mode to the umask. A socket that does not listen yet refuses connections, so no
    # process gets in before the mode is set.
    path = address.removeprefix(_IPC)
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as listener:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        socket.set(zmq.USE_FD, listener.fileno())
        socket.bind(address)
        listener.detach()  # libzmq closes it


def _open_monitor(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """The library's monitor, but without a high-water mark: the thread that moves all messages would wait at it."""
    address = f"inproc://smg-trio-monitor-{int(socket.get(zmq.FD))}"
    socket.monitor(address, events)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.set(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor


def _restrict(socket: zmq.Socket[bytes], address: str) -> None:
    """Have `guard_connections` be asked about each peer that connects by TCP."""
    socket.set(zmq.ZAP_DOMAIN, ACCESS_DOMAIN)
    if address.startswith("tcp://["):
        socket.set(zmq.IPV6, 1)


def _hang_up(descriptor: int, port: int) -> None:
    """End a connection that libzmq owns; it notices as if the peer had.

    Only if it is one to `port`: the number may be another connection's by now.
    """
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getsockname()[1] == port and connection.family != sockets.AF_UNIX:
            connection.shutdown(sockets.SHUT_RDWR)


class ZmqTransport:
    """Binds a worker's sockets on one ZMQ context (not owned).

    Args:
        heartbeat_s: seconds between two heartbeats to peers of ``tcp://`` data sockets; 0 for none. libzmq answers them
            by itself in engines too, so they tell of host, network and process, not of the engine's work.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._context = context
        self._heartbeat_ms = int(heartbeat_s * 1000)

    async def guard(
        self, networks: Sequence[Network], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `Transport.guard`."""
        await guard_connections(self._context, networks, task_status)

    def _data_socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        if not address.startswith("tcp://"):
            return socket
        _restrict(socket, address)
        if self._heartbeat_ms:
            socket.set(zmq.HEARTBEAT_IVL, self._heartbeat_ms)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 2 * self._heartbeat_ms)
            socket.set(zmq.HEARTBEAT_TTL, 4 * self._heartbeat_ms)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
        return socket

    def bind_handshake(self, address: str) -> HandshakeLink:
        """ROUTER with handover.

        An engine that restarts may dial in before the connection of its last life is gone, and without handover libzmq
        would swallow its HELLO. Whose HELLO counts is decided above.
        """
        socket = self._context.socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.set(zmq.MAXMSGSIZE, HANDSHAKE_MESSAGE_BYTES)
        socket.set(zmq.RCVHWM, HANDSHAKE_QUEUE)
        socket.set(zmq.SNDHWM, HANDSHAKE_QUEUE)
        socket.set(zmq.HANDSHAKE_IVL, _GREETING_LIMIT_MS)
        if not address.startswith(_LOOPBACK):  # which the kernel keeps to this host
            _restrict(socket, address)
        return ZmqLink(socket, address, watch_peers=True, max_peers=HANDSHAKE_CONNECTIONS)

    def bind_input(self, address: str) -> Link:
        """Mandatory ROUTER: without it a message to an engine whose input thread has died vanishes silently."""
        socket = self._data_socket(zmq.ROUTER, address)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.set(zmq.SNDHWM, INPUT_SEND_HIGH_WATER_MARK)
        socket.set(zmq.RCVHWM, 0)
        return ZmqLink(socket, address, watch_peers=True)

    def bind_output(self, address: str) -> OutputLink:
        """PULL without a high-water mark: TokenSpeed's scheduler stops when its PUSH blocks."""
        socket = self._data_socket(zmq.PULL, address)
        socket.set(zmq.RCVHWM, 0)
        return ZmqLink(socket, address, watch_peers=True)

    def dial_input(self, address: str, identity: bytes) -> Link:
        """DEALER; what it is told waits at the other end, whose pipe is short."""
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.IDENTITY, identity)
        return ZmqLink(socket, address, watch_peers=False, connect=True)

    def dial_output(self, address: str) -> Link:
        """PUSH that holds `RELAYED_MESSAGES` for a process that does not read."""
        socket = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, RELAYED_MESSAGES)
        return ZmqLink(socket, address, watch_peers=False, connect=True)


@contextlib.contextmanager
def open_zmq_transport(heartbeat_s: float = HEARTBEAT_S) -> Iterator[ZmqTransport]:
    """A transport on a ZMQ context of its own, which ends with the block; all its links must be closed by then."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield ZmqTransport(context, heartbeat_s=heartbeat_s)
    finally:
        context.term()
