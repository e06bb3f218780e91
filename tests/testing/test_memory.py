from __future__ import annotations

import pytest
import trio
import trio.testing

from smg_trio.testing import conformance
from smg_trio.testing.memory import MemoryNetwork
from smg_trio.worker.links import PeerUnreachable


def wiring(*, capacity: int | None) -> conformance.Wiring:
    network = MemoryNetwork(capacity=capacity)
    bounded = capacity is not None
    return conformance.Wiring(network, network, "mem://hs", "mem://in", "mem://out", bounded=bounded)


@pytest.mark.parametrize("capacity", [None, 3])
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_the_network_in_memory_conforms(
    check: conformance.Check, capacity: int | None, autojump_clock: trio.testing.MockClock
) -> None:
    await check(wiring(capacity=capacity))


async def test_nothing_here_takes_time(autojump_clock: trio.testing.MockClock) -> None:
    before = trio.current_time()
    await conformance.check_pull_keeps_order(wiring(capacity=1))
    assert trio.current_time() == before


async def test_what_was_sent_before_the_bind_arrives_after_it() -> None:
    network = MemoryNetwork()
    peer = network.dial_output("mem://out")
    peer.send_nowait([b"early"])
    link = network.bind_output("mem://out")
    assert await link.receive_many() == [[b"early"]]


async def test_peers_connect_again_when_the_address_is_bound_again() -> None:
    network = MemoryNetwork()
    peer = network.dial_input("mem://in", b"\0\0")
    first = network.bind_input("mem://in")
    first.send_nowait([b"\0\0", b"one"])
    first.close()
    assert await peer.wait_peer_lost() is None
    peer.send_nowait([b"between"])
    second = network.bind_input("mem://in")
    second.send_nowait([b"\0\0", b"two"])
    assert await second.receive_many() == [[b"\0\0", b"between"]]
    assert await peer.receive_many() == [[b"one"], [b"two"]]


async def test_a_later_connection_takes_over_the_identity() -> None:
    network = MemoryNetwork()
    link = network.bind_input("mem://in")
    older, newer = (network.dial_input("mem://in", b"\0\0") for _ in range(2))
    link.send_nowait([b"\0\0", b"x"])
    assert await newer.receive_many() == [[b"x"]]
    assert await older.wait_peer_lost() is None


async def test_a_full_output_pipe_holds_the_engine_back() -> None:
    network = MemoryNetwork(capacity=2)
    link, peer = network.bind_output("mem://out"), network.dial_output("mem://out")
    for _ in range(4):  # two at the reader's end, two at the sender's
        peer.send_nowait([b"x"])
    with pytest.raises(trio.WouldBlock):
        peer.send_nowait([b"x"])
    received = await link.receive_many()
    peer.send_nowait([b"x"])
    assert len(received) == 2


async def test_a_sender_that_waits_for_room_hears_that_the_peer_is_gone() -> None:
    network = MemoryNetwork(capacity=1)
    link, peer = network.bind_input("mem://in"), network.dial_input("mem://in", b"\0\0")
    link.send_nowait([b"\0\0", b"x"])
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            with pytest.raises(PeerUnreachable):
                await link.send([b"\0\0", b"y"])

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        peer.close()
