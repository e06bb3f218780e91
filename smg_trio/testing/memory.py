"""A network in memory: `worker.links.Transport` for the gateway, `testing.dialer.Dialer` for fake engines.

For lifecycle tests under `trio.testing.MockClock`: nothing here sleeps. It behaves like libzmq where that can be
noticed: dialing works before anyone is bound and again after a loss, what was sent meanwhile is delivered then;
a ROUTER refuses peers without a connection; a full pipe makes `send_nowait` raise `trio.WouldBlock`; a peer that
comes back with the same identity takes the place of its older connection.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from smg_trio.worker.links import LinkClosed, PeerUnreachable

if TYPE_CHECKING:
    from smg_trio.wire.packing import Frame
    from smg_trio.worker.links import Network

Frames = list[bytes]


class MemoryNetwork:
    """All addresses of one test. ``capacity`` is the number of messages a pipe holds (None: no limit)."""

    def __init__(self, *, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._bound: dict[str, BoundLink] = {}
        self._dialed: dict[str, list[DialLink]] = {}

    async def guard(
        self, networks: Sequence[Network], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Nobody connects but the test's own."""
        task_status.started()
        await trio.sleep_forever()

    def bind_handshake(self, address: str) -> BoundLink:
        """A ROUTER. Raises OSError (EADDRINUSE)."""
        return self._bind(address, routed=True)

    def bind_input(self, address: str) -> BoundLink:
        """A mandatory ROUTER. Raises OSError (EADDRINUSE)."""
        return self._bind(address, routed=True)

    def bind_output(self, address: str) -> BoundLink:
        """A PULL. Raises OSError (EADDRINUSE)."""
        return self._bind(address, routed=False)

    def dial_handshake(self, address: str, identity: bytes) -> DialLink:
        """A DEALER."""
        return self._dial(address, identity)

    def dial_input(self, address: str, identity: bytes) -> DialLink:
        """A DEALER."""
        return self._dial(address, identity)

    def dial_output(self, address: str) -> DialLink:
        """A PUSH."""
        return self._dial(address, None)

    def is_bound(self, address: str) -> bool:
        """Whether someone is bound there now."""
        return address in self._bound

    def _bind(self, address: str, *, routed: bool) -> BoundLink:
        if address in self._bound:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), address)
        link = self._bound[address] = BoundLink(self, address, routed=routed, capacity=self._capacity)
        for peer in list(self._dialed.get(address, ())):
            peer.attach(link)
        return link

    def _dial(self, address: str, identity: bytes | None) -> DialLink:
        link = DialLink(self, address, identity, capacity=self._capacity)
        self._dialed.setdefault(address, []).append(link)
        bound = self._bound.get(address)
        if bound is not None:
            link.attach(bound)
        return link

    def release(self, address: str) -> None:
        """Called by a bound link that closes."""
        self._bound.pop(address, None)

    def forget(self, link: DialLink) -> None:
        """Called by a dialed link that closes."""
        self._dialed[link.address].remove(link)


class _Inbox:
    """Messages waiting for one receiver, and the tasks waiting for messages or for room."""

    def __init__(self, capacity: int | None) -> None:
        self._messages: deque[Frames] = deque()
        self._capacity = capacity
        self._arrived = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self.closed = False

    @property
    def full(self) -> bool:
        return self._capacity is not None and len(self._messages) >= self._capacity

    def put(self, frames: Frames) -> None:
        self._messages.append(frames)
        self._arrived.unpark()

    async def take(self, limit: int) -> list[Frames]:
        await trio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while not self._messages or self.closed:
            if self.closed:
                raise LinkClosed
            await self._arrived.park()
            waited = True
        count = min(limit, len(self._messages))
        batch = [self._messages.popleft() for _ in range(count)]
        self._drained.unpark_all()
        if not waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return batch

    async def wait_room(self) -> None:
        await self._drained.park()

    def close(self) -> None:
        self.closed = True
        self.wake_all()

    def wake_all(self) -> None:
        self._arrived.unpark_all()
        self._drained.unpark_all()


class DialLink:
    """The connecting end of one pipe, as the engine holds it; a `worker.links.Link`."""

    def __init__(self, network: MemoryNetwork, address: str, identity: bytes | None, *, capacity: int | None) -> None:
        self.address = address
        self.identity = identity
        self.inbox = _Inbox(capacity)
        self._network = network
        self._peer: BoundLink | None = None
        self._unsent: deque[Frames] = deque()
        self._capacity = capacity
        self._lost: deque[bytes | None] = deque()
        self._changed = trio.lowlevel.ParkingLot()

    def attach(self, peer: BoundLink) -> None:
        """Connect to a bound link; what waited is delivered as far as there is room."""
        self._peer = peer
        peer.accept(self)
        self.flush()
        self._changed.unpark_all()

    def detach(self) -> None:
        """The bound side is gone, or another connection took over the identity."""
        self._peer = None
        self._lost.append(None)
        self._changed.unpark_all()
        self.inbox.wake_all()

    def flush(self) -> None:
        """Move what waits to the peer while there is room."""
        while self._unsent and self._peer is not None and not self._peer.inbox.full:
            self._peer.deliver(self, self._unsent.popleft())
        self._changed.unpark_all()

    def origin(self, index: int) -> int | None:
        """See `Link.origin`: never known."""
        return None

    async def receive_many(self, limit: int = 64) -> list[Frames]:
        """Wait for 1..limit messages. Cancellation loses nothing. Raises LinkClosed."""
        return await self.inbox.take(limit)

    def send_nowait(self, frames: Sequence[Frame]) -> None:
        """Hand over a message; kept if no one is bound. Raises trio.WouldBlock, LinkClosed."""
        if self.inbox.closed:
            raise LinkClosed
        if self._peer is not None and not self._unsent and not self._peer.inbox.full:
            self._peer.deliver(self, list(map(bytes, frames)))
            return
        if self._capacity is not None and len(self._unsent) >= self._capacity:
            raise trio.WouldBlock
        self._unsent.append(list(map(bytes, frames)))

    async def send(self, frames: Sequence[Frame]) -> None:
        """Like `send_nowait`, but wait while the pipe is full. If cancelled the message was not sent."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                self.send_nowait(frames)
                break
            except trio.WouldBlock:
                await self._changed.park()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_peer_lost(self) -> bytes | None:
        """Wait until the bound side has gone once more. Raises LinkClosed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._lost:
            if self.inbox.closed:
                raise LinkClosed
            await self._changed.park()
        return self._lost.popleft()

    def close(self) -> None:
        """Close; what waits for room still arrives (linger), what waits for a bind is dropped. Idempotent."""
        if self.inbox.closed:
            return
        self._network.forget(self)
        if self._peer is not None:
            while self._unsent:
                self._peer.deliver(self, self._unsent.popleft())
            self._peer.drop(self)
            self._peer = None
        self.inbox.close()
        self._changed.unpark_all()


class BoundLink:
    """The bound end, as the gateway holds it; a `worker.links.Link`."""

    def __init__(self, network: MemoryNetwork, address: str, *, routed: bool, capacity: int | None) -> None:
        self.address = address
        self.inbox = _Inbox(capacity)
        self._network = network
        self._routed = routed
        self._by_identity: dict[bytes, DialLink] = {}
        self._peers: list[DialLink] = []
        self._connections = itertools.count()
        self._numbers: dict[DialLink, int] = {}
        self._names: dict[int, bytes] = {}
        self._origins: deque[int] = deque()
        self._batch_origins: list[int] = []
        self._lost: deque[bytes | None] = deque()
        self._peer_lost = trio.lowlevel.ParkingLot()

    def accept(self, peer: DialLink) -> None:
        """A connection comes up; an older one with the same identity is cut off."""
        if peer.identity is not None:
            older = self._by_identity.get(peer.identity)
            if older is not None:
                self.drop(older)
                older.detach()
            self._by_identity[peer.identity] = peer
        self._peers.append(peer)
        self._numbers[peer] = next(self._connections)

    def deliver(self, peer: DialLink, frames: Frames) -> None:
        """A message of ``peer`` arrives; on a ROUTER its identity goes in front."""
        if self._routed and peer.identity is not None:
            frames = [peer.identity, *frames]
        self._origins.append(self._numbers[peer])
        self.inbox.put(frames)

    def drop(self, peer: DialLink) -> None:
        """A connection is gone: its owner hears of it, what it had sent stays readable."""
        self._peers.remove(peer)
        named = self._names.pop(self._numbers.pop(peer), None)
        if peer.identity is not None and self._by_identity.get(peer.identity) is peer:
            del self._by_identity[peer.identity]
        self._lost.append(peer.identity or named)
        self._peer_lost.unpark()
        peer.inbox.wake_all()

    def origin(self, index: int) -> int | None:
        """See `Link.origin`; numbers are not used again."""
        return self._batch_origins[index] if index < len(self._batch_origins) else None

    async def receive_many(self, limit: int = 64) -> list[Frames]:
        """Wait for 1..limit messages. Cancellation loses nothing. Raises LinkClosed."""
        messages = await self.inbox.take(limit)
        self._batch_origins = [self._origins.popleft() for _ in messages]
        for peer in list(self._peers):
            peer.flush()
        return messages

    def send_nowait(self, frames: Sequence[Frame]) -> None:
        """Send to the identity in frame 0. Raises PeerUnreachable, trio.WouldBlock, LinkClosed."""
        peer = self._peer_of(frames)
        if peer.inbox.full:
            raise trio.WouldBlock
        peer.inbox.put(list(map(bytes, frames[1:])))

    async def send(self, frames: Sequence[Frame]) -> None:
        """Like `send_nowait`, but wait while the pipe is full. If cancelled the message was not sent."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                self.send_nowait(frames)
                break
            except trio.WouldBlock:
                await self._peer_of(frames).inbox.wait_room()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def name_origin(self, origin: int, identity: bytes) -> None:
        """See `OutputLink.name_origin`."""
        self._names[origin] = identity

    def peers_lost(self) -> list[bytes | None]:
        """See `OutputLink.peers_lost`."""
        lost = list(self._lost)
        self._lost.clear()
        return lost

    async def wait_peer_lost(self) -> bytes | None:
        """Wait for the next lost connection: its identity, None on a PULL. Raises LinkClosed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._lost:
            if self.inbox.closed:
                raise LinkClosed
            await self._peer_lost.park()
        return self._lost.popleft()

    async def stop_listening(self) -> None:
        """Nothing to wait for: `close` does it at once."""
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close; waiters get LinkClosed, peers wait for the next bind. Idempotent."""
        if self.inbox.closed:
            return
        self._network.release(self.address)
        peers, self._peers = self._peers, []
        self._by_identity.clear()
        self.inbox.close()
        self._peer_lost.unpark_all()
        for peer in peers:
            peer.detach()

    def _peer_of(self, frames: Sequence[Frame]) -> DialLink:
        if self.inbox.closed:
            raise LinkClosed
        if not self._routed:
            raise TypeError("a PULL link does not send")
        peer = self._by_identity.get(bytes(frames[0]))
        if peer is None:
            raise PeerUnreachable(frames[0].hex())
        return peer
