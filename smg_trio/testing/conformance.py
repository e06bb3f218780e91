"""What every `worker.links.Transport` must do, as checks that run against any of them.

A check takes a `Wiring`: the transport (the gateway's side), a dialer (the engine's side) and fresh addresses.
It raises AssertionError with what was wrong; anything else that it raises is a fault of the transport too. The
checks wait for events only, so they run under a mock clock as well as on real sockets.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
import trio.testing

from smg_trio.worker.links import Link, LinkClosed, PeerUnreachable, Transport

if TYPE_CHECKING:
    from smg_trio.testing.dialer import Dialer

RANK_0 = b"\x00\x00"
RANK_1 = b"\x01\x00"
MANY = 2000


@dataclass(frozen=True, slots=True)
class Wiring:
    """Both ends of one fresh network.

    Attributes:
        handshake, input, output: addresses that are not bound. On real sockets the handshake is TCP, as in service.
        bounded: whether a pipe holds a limited number of messages (the back-pressure check needs it).
    """

    transport: Transport
    dialer: Dialer
    handshake: str
    input: str
    output: str
    bounded: bool = False


Check = Callable[[Wiring], Awaitable[None]]


async def receive(link: Link, count: int) -> list[list[bytes]]:
    """Exactly ``count`` messages."""
    messages: list[list[bytes]] = []
    while len(messages) < count:
        messages += await link.receive_many(count - len(messages))
    return messages


async def check_router_names_the_sender(wiring: Wiring) -> None:
    """Frame 0 of what a ROUTER link receives is the identity, all other frames are untouched."""
    link = wiring.transport.bind_input(wiring.input)
    peers = {identity: wiring.dialer.dial_input(wiring.input, identity) for identity in (RANK_0, RANK_1)}
    for identity, peer in peers.items():
        peer.send_nowait([b"", b"payload of", identity])
    received = {frames[0]: frames[1:] for frames in await receive(link, 2)}
    assert received == {identity: [b"", b"payload of", identity] for identity in peers}, received
    _close(link, *peers.values())


async def check_router_sends_to_the_named_peer(wiring: Wiring) -> None:
    """A message goes to the peer in frame 0 and to no other; the peer does not see the identity."""
    link = wiring.transport.bind_input(wiring.input)
    peers = {identity: wiring.dialer.dial_input(wiring.input, identity) for identity in (RANK_0, RANK_1)}
    await _register(link, *peers.values())
    for identity in (RANK_1, RANK_0):
        link.send_nowait([identity, b"\x00", b"for " + identity])
    for identity, peer in peers.items():
        assert await receive(peer, 1) == [[b"\x00", b"for " + identity]]
    _close(link, *peers.values())


async def check_handshake_router_answers(wiring: Wiring) -> None:
    """The handshake socket is a ROUTER too, and a dialer that comes before the bind is served."""
    peer = wiring.dialer.dial_handshake(wiring.handshake, RANK_1)
    peer.send_nowait([b"HELLO"])
    link = wiring.transport.bind_handshake(wiring.handshake)
    assert await receive(link, 1) == [[RANK_1, b"HELLO"]]
    await link.send([RANK_1, b"INIT"])
    assert await receive(peer, 1) == [[b"INIT"]]
    _close(link, peer)


async def check_pull_keeps_order(wiring: Wiring) -> None:
    """Many messages through the output link arrive once each, in order, in batches of at most the limit."""
    link = wiring.transport.bind_output(wiring.output)
    peer = wiring.dialer.dial_output(wiring.output)
    numbers: list[int] = []

    async def read() -> None:
        while len(numbers) < MANY:
            batch = await link.receive_many(7)
            assert 1 <= len(batch) <= 7, len(batch)
            numbers.extend(int(frames[0]) for frames in batch)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for number in range(MANY):
            await peer.send([b"%d" % number, b"aux"])
    assert numbers == list(range(MANY))
    _close(link, peer)


async def check_pull_tells_connections_apart(wiring: Wiring) -> None:
    """`origin` is the same for all messages of one connection, and another one for another connection."""
    link = wiring.transport.bind_output(wiring.output)
    peers = [wiring.dialer.dial_output(wiring.output) for _ in range(3)]
    origins: dict[bytes, set[int | None]] = {}
    for _ in range(2):
        for number, peer in enumerate(peers):
            peer.send_nowait([b"%d" % number, b"aux"])
    for _ in range(2 * len(peers)):
        batch = await link.receive_many(1)
        origins.setdefault(batch[0][0], set()).add(link.origin(0))
    assert all(len(seen) == 1 for seen in origins.values()), origins
    assert len(set.union(*origins.values()) - {None}) == len(peers), origins
    assert link.origin(1) is None
    _close(link, *peers)


async def check_unknown_peer_is_unreachable(wiring: Wiring) -> None:
    """`send_nowait` and `send` to an identity that never connected raise PeerUnreachable."""
    link = wiring.transport.bind_input(wiring.input)
    for send in (link.send, _as_async(link)):
        try:
            await send([RANK_1, b"x"])
        except PeerUnreachable:
            continue
        raise AssertionError("a message without a receiver was accepted")
    _close(link)


async def check_departed_peer_is_unreachable(wiring: Wiring) -> None:
    """A peer that closed is reported lost and cannot be sent to; the others can.

    A receiver is waiting all the while, as in service. Without one, libzmq's ROUTER never takes note of the
    end of a connection whose pipe is full, and says "would block" forever.
    """
    link = wiring.transport.bind_input(wiring.input)
    gone = wiring.dialer.dial_input(wiring.input, RANK_0)
    there = wiring.dialer.dial_input(wiring.input, RANK_1)
    await _register(link, gone, there)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.receive_many)
        gone.close()
        assert await link.wait_peer_lost() in (RANK_0, None)
        await _until_unreachable(link, RANK_0)
        link.send_nowait([RANK_1, b"still here"])
        assert await receive(there, 1) == [[b"still here"]]
        nursery.cancel_scope.cancel()
    _close(link, there)


async def check_lost_pusher_is_noticed(wiring: Wiring) -> None:
    """What a PUSH sent before it closed still arrives, and its loss is reported without a name."""
    link = wiring.transport.bind_output(wiring.output)
    peer = wiring.dialer.dial_output(wiring.output)
    await peer.send([b"last words"])
    assert await receive(link, 1) == [[b"last words"]]
    peer.close()
    assert await link.wait_peer_lost() is None
    _close(link)


async def check_peer_comes_back(wiring: Wiring) -> None:
    """A restarted engine uses the same identity again and is addressable again."""
    link = wiring.transport.bind_input(wiring.input)
    for life in (b"first", b"second"):
        peer = wiring.dialer.dial_input(wiring.input, RANK_0)
        peer.send_nowait([life])
        assert await receive(link, 1) == [[RANK_0, life]]
        link.send_nowait([RANK_0, b"hello " + life])
        assert await receive(peer, 1) == [[b"hello " + life]]
        peer.close()
        await link.wait_peer_lost()
    _close(link)


async def check_second_bind_is_refused(wiring: Wiring) -> None:
    """Binding an address twice raises OSError (EADDRINUSE); after `close` it can be bound again."""
    link = wiring.transport.bind_handshake(wiring.handshake)
    refusal = _bind_refusal(wiring)
    assert refusal == errno.EADDRINUSE, refusal
    link.close()
    again = await _bind_when_free(wiring)
    again.close()


async def check_who_binds_after_a_stopped_listener_hears_all(wiring: Wiring) -> None:
    """Once a link has stopped listening and is closed, its address is free, and nothing said to it gets lost."""
    for _ in range(5):
        link = wiring.transport.bind_handshake(wiring.handshake)
        await link.stop_listening()
        link.close()
        peer = wiring.dialer.dial_handshake(wiring.handshake, RANK_0)
        peer.send_nowait([b"HELLO"])
        link = wiring.transport.bind_handshake(wiring.handshake)
        assert await receive(link, 1) == [[RANK_0, b"HELLO"]]
        await link.stop_listening()
        _close(peer, link)


async def check_close_wakes_every_waiter(wiring: Wiring) -> None:
    """`close` ends waiting receivers and loss watchers with LinkClosed, and later calls get it too.

    Losses are watched on the two data links; on a handshake link they are not asked for.
    """
    handshake = wiring.transport.bind_handshake(wiring.handshake)
    links = (
        handshake,
        wiring.transport.bind_input(wiring.input),
        wiring.transport.bind_output(wiring.output),
    )
    for link in links:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_closed, link.receive_many)
            if link is not handshake:
                nursery.start_soon(_expect_closed, link.wait_peer_lost)
            await trio.testing.wait_all_tasks_blocked()
            link.close()
        link.close()
        await _expect_closed(link.receive_many)
    try:
        links[1].send_nowait([RANK_0, b"x"])
    except LinkClosed:
        return
    raise AssertionError("a closed link took a message")


async def check_cancelled_receive_loses_nothing(wiring: Wiring) -> None:
    """Receivers cancelled again and again while messages pour in: each message is seen once, in order."""
    link = wiring.transport.bind_output(wiring.output)
    peer = wiring.dialer.dial_output(wiring.output)
    numbers: list[int] = []

    async def read_impatiently() -> None:
        while len(numbers) < MANY:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_soon, scope)
                    numbers.extend(int(frames[0]) for frames in await link.receive_many(5))
                    nursery.cancel_scope.cancel()

    async def cancel_soon(scope: trio.CancelScope) -> None:
        await trio.lowlevel.checkpoint()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_impatiently)
        for number in range(MANY):
            await peer.send([b"%d" % number])
    assert numbers == list(range(MANY))
    _close(link, peer)


async def check_full_pipe_blocks(wiring: Wiring) -> None:
    """With a bounded pipe: WouldBlock when full, `send` waits, a cancelled `send` sent nothing, room wakes it."""
    if not wiring.bounded:
        return
    link = wiring.transport.bind_input(wiring.input)
    peer = wiring.dialer.dial_input(wiring.input, RANK_0)
    await _register(link, peer)
    sent = _fill(link)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.send, [RANK_0, b"cancelled"])
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.send, [RANK_0, b"last"])
        received = [frames[0] for frames in await receive(peer, sent + 1)]
    assert received == [b"%d" % number for number in range(sent)] + [b"last"], received[-3:]
    _close(link, peer)


CHECKS: tuple[Check, ...] = (
    check_router_names_the_sender,
    check_router_sends_to_the_named_peer,
    check_handshake_router_answers,
    check_pull_keeps_order,
    check_pull_tells_connections_apart,
    check_unknown_peer_is_unreachable,
    check_departed_peer_is_unreachable,
    check_lost_pusher_is_noticed,
    check_peer_comes_back,
    check_second_bind_is_refused,
    check_who_binds_after_a_stopped_listener_hears_all,
    check_close_wakes_every_waiter,
    check_cancelled_receive_loses_nothing,
    check_full_pipe_blocks,
)


def _fill(link: Link) -> int:
    sent = 0
    while True:
        try:
            link.send_nowait([RANK_0, b"%d" % sent])
        except trio.WouldBlock:
            return sent
        sent += 1


def _as_async(link: Link) -> Callable[[list[bytes]], Awaitable[None]]:
    async def send(frames: list[bytes]) -> None:
        link.send_nowait(frames)

    return send


async def _register(link: Link, *peers: Link) -> None:
    for peer in peers:
        peer.send_nowait([b"registration"])
    await receive(link, len(peers))


async def _until_unreachable(link: Link, identity: bytes) -> None:
    """A loss without a name may come before the routing table changes: try a few turns of the loop."""
    for _ in range(100_000):
        try:
            link.send_nowait([identity, b"anyone?"])
        except PeerUnreachable:
            return
        except trio.WouldBlock:
            pass  # not noticed yet, and what was sent to it meanwhile has filled its pipe
        await trio.lowlevel.checkpoint()
    raise AssertionError(f"{identity.hex()} is still addressable after it was lost")


def _bind_refusal(wiring: Wiring) -> int | None:
    try:
        wiring.transport.bind_handshake(wiring.handshake)
    except OSError as error:
        return error.errno
    raise AssertionError("one address was bound twice")


async def _bind_when_free(wiring: Wiring) -> Link:
    """libzmq frees an address in its own thread, shortly after the close."""
    for _ in range(100_000):
        try:
            return wiring.transport.bind_handshake(wiring.handshake)
        except OSError:
            await trio.lowlevel.checkpoint()
    raise AssertionError("a closed link keeps its address")


async def _expect_closed(wait: Callable[[], Awaitable[object]]) -> None:
    try:
        await wait()
    except LinkClosed:
        return
    raise AssertionError(f"{wait} returned from a closed link")


def _close(*links: Link) -> None:
    for link in links:
        link.close()
