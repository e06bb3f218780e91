"""`ZmqTransport` passes the checks of every transport, and keeps the rules of libzmq's descriptor under stress."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
import zmq

from smg_trio.testing import conformance
from smg_trio.testing.zmq_engine import ZmqDialer
from smg_trio.worker.links import LinkClosed
from smg_trio.worker.zmq_links import ZmqTransport
from tests.ports import lasting_port


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: conformance.Check, tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        wiring = conformance.Wiring(
            transport=ZmqTransport(context),
            dialer=ZmqDialer(context),
            handshake=f"tcp://127.0.0.1:{lasting_port()}",
            input=f"ipc://{tmp_path}/in",
            output=f"ipc://{tmp_path}/out",
        )
        with trio.fail_after(20):
            await check(wiring)
    finally:
        context.destroy(linger=0)


async def test_nothing_is_lost_doubled_or_reordered_under_random_cancellation(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dice = random.Random(3)
    total = 20_000
    try:
        link = ZmqTransport(context).bind_output(f"ipc://{tmp_path}/out")
        peer = ZmqDialer(context).dial_output(f"ipc://{tmp_path}/out")

        async def send() -> None:
            for number in range(total):
                await peer.send([b"%d" % number])
                if number % 97 == 0:
                    await trio.lowlevel.checkpoint()

        received: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(received) < total:
                with trio.move_on_after(dice.uniform(0, 0.002)):
                    while len(received) < total:
                        received.extend(frames[0] for frames in await link.receive_many(dice.randint(1, 64)))
        assert received == [b"%d" % number for number in range(total)]
        link.close()
        peer.close()
    finally:
        context.destroy(linger=0)


async def test_a_parked_receiver_is_woken_although_sends_eat_its_edge(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        link = ZmqTransport(context).bind_input(f"ipc://{tmp_path}/in")
        peer = ZmqDialer(context).dial_input(f"ipc://{tmp_path}/in", b"\x00\x00")
        peer.send_nowait([b"registration"])
        assert await link.receive_many() == [[b"\x00\x00", b"registration"]]
        echoes = 2000

        async def echo() -> None:
            seen = 0
            while seen < echoes:
                for _ in await peer.receive_many():
                    peer.send_nowait([b"echo"])
                    seen += 1

        received = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo)

            async def feed() -> None:
                for number in range(echoes):
                    await link.send([b"\x00\x00", b"%d" % number])
                    if number % 7 == 0:
                        await trio.lowlevel.checkpoint()

            nursery.start_soon(feed)
            with trio.fail_after(20):
                while received < echoes:
                    received += len(await link.receive_many())
        link.close()
        peer.close()
    finally:
        context.destroy(linger=0)


async def test_closing_wakes_every_waiter(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    woken = 0
    try:
        link = ZmqTransport(context).bind_input(f"ipc://{tmp_path}/in")

        async def wait() -> None:
            nonlocal woken
            with pytest.raises(LinkClosed):
                await link.receive_many()
            woken += 1

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            link.close()
        assert woken == 10
    finally:
        context.destroy(linger=0)
