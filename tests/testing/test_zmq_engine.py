from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq

from smg_trio.core.engines import EngineProtocol
from smg_trio.testing import conformance
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.zmq_engine import ZmqDialer, zmq_engine
from smg_trio.worker.zmq_links import ZmqTransport

from .front_end import ENGINE_CORE_DEAD, init_message, tokenspeed_add, unpack_batch, vllm_add

TIMEOUT_MS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


class RawFrontEnd:
    """The gateway's three sockets as plain blocking pyzmq, for use in a thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        self.handshake = context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self.handshake.bind_to_random_port('tcp://127.0.0.1')}"
        self.input, self.output = context.socket(zmq.ROUTER), context.socket(zmq.PULL)
        self.input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._paths = f"ipc://{folder}/in", f"ipc://{folder}/out"
        self.input.bind(self._paths[0])
        self.output.bind(self._paths[1])
        for bound in (self.handshake, self.input, self.output):
            bound.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)

    def greet(self) -> None:
        identity, _ = self.handshake.recv_multipart()
        self.handshake.send_multipart([identity, init_message(*self._paths)])
        self.input.recv_multipart()
        self.handshake.recv_multipart()

    def ask(self, *messages: list[bytes]) -> None:
        for message in messages:
            self.input.send_multipart([b"\0\0", *message])

    def batches(self) -> Iterator[Any]:
        while (frames := self.output.recv_multipart()) != [ENGINE_CORE_DEAD]:
            yield unpack_batch(frames)


@asynccontextmanager
async def running(
    context: zmq.Context[zmq.Socket[bytes]], folder: Path, **options: Any
) -> AsyncIterator[tuple[RawFrontEnd, FakeEngine]]:
    front_end = RawFrontEnd(context, folder)
    engine = zmq_engine(EngineOptions(**options), front_end.address, context=context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await trio.to_thread.run_sync(front_end.greet)
        yield front_end, engine
        nursery.cancel_scope.cancel()


async def test_hundreds_of_streams_get_all_their_tokens(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    async with running(context, tmp_path, max_num_seqs=100) as (front_end, _):

        def load() -> dict[str, int]:
            front_end.ask(*(vllm_add(f"r{i}", max_tokens=1 + i % 7) for i in range(300)))
            counts: dict[str, int] = {}
            ended = 0
            for batch in front_end.batches():
                for output in batch[1]:
                    counts[output[0]] = counts.get(output[0], 0) + len(output[1])
                    ended += output[5] is not None
                if ended == 300:
                    return counts
            raise AssertionError("the engine died")

        counts = await trio.to_thread.run_sync(load)
    assert counts == {f"r{i}": 1 + i % 7 for i in range(300)}


async def test_a_tokenspeed_engine_speaks_over_sockets_too(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    async with running(context, tmp_path, protocol=EngineProtocol.TOKENSPEED) as (front_end, _):

        def ask() -> list[Any]:
            front_end.ask(tokenspeed_add("a", sampling=[3]))
            batches = front_end.batches()
            return [next(batches) for _ in range(3)]

        assert [row[3] for row in await trio.to_thread.run_sync(ask)] == [[""], [""], ["length"]]


async def test_the_sentinel_arrives_although_the_engine_is_gone(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    async with running(context, tmp_path) as (front_end, engine):
        front_end.ask(vllm_add("a", ()))
        assert await trio.to_thread.run_sync(lambda: list(front_end.batches())) == []
        assert "empty prompt" in await engine.wait_dead()


async def test_after_an_undecodable_request_a_mandatory_router_cannot_reach_it(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    async with running(context, tmp_path) as (front_end, engine):
        monitor = front_end.input.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        monitor.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        front_end.ask([b"\x09", b"\x90"])
        await trio.to_thread.run_sync(monitor.recv_multipart)
        assert engine.exit_reason is None
        with pytest.raises(zmq.ZMQError) as caught:
            await trio.to_thread.run_sync(lambda: _ask_until_refused(front_end))
        assert caught.value.errno == zmq.EHOSTUNREACH
        front_end.input.disable_monitor()


def _ask_until_refused(front_end: RawFrontEnd) -> None:
    # The end of a peer may lie behind what it sent: only a receive gets to it, and sends would block for good.
    front_end.input.setsockopt(zmq.SNDTIMEO, 10)
    for _ in range(100_000):
        try:
            front_end.ask(vllm_add("b"))
        except zmq.Again:
            with suppress(zmq.Again):
                front_end.input.recv_multipart(zmq.NOBLOCK)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_the_transport_of_real_sockets_conforms(
    check: conformance.Check, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        handshake = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    wiring = conformance.Wiring(
        ZmqTransport(context), ZmqDialer(context), handshake, f"ipc://{tmp_path}/in", f"ipc://{tmp_path}/out"
    )
    with trio.fail_after(20):
        await check(wiring)
