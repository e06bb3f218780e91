"""Strangers at the handshake port, which every process of the host can reach: nobody who is connected notices."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import pytest
import trio
import trio.testing
import zmq

from smg_trio.core.workers import WorkerState
from smg_trio.wire.addresses import parse_worker_url
from smg_trio.worker.log_throttle import MAX_REASON_CHARS, SHOWN
from smg_trio.worker.zmq_links import HANDSHAKE_CONNECTIONS, HANDSHAKE_MESSAGE_BYTES

from .harness import COUNTING, PATIENCE_S, Bench, join_chat, open_gateway
from .scrape import scrape

HELLO_FRAME = msgpack.packb({"status": "HELLO", "local": False, "headless": True})
READY_FRAME = msgpack.packb({"status": "READY", "local": False, "headless": True})
RANK_0 = (0).to_bytes(2, "little")
TOKENS = 150

Attack = Callable[[str, int, threading.Event], None]


@contextmanager
def dealers(handshake: str, identities: list[bytes]) -> Iterator[list[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        sockets = [context.socket(zmq.DEALER) for _ in identities]
        try:
            for one, identity in zip(sockets, identities, strict=True):
                one.set(zmq.IDENTITY, identity)
                one.set(zmq.LINGER, 0)
                one.connect(handshake)
            yield sockets
        finally:
            for one in sockets:
                one.close()


def flood(identities: list[bytes], messages: list[list[bytes]]) -> Attack:
    """These messages, over and over, from peers of these identities."""

    def attack(handshake: str, port: int, stop: threading.Event) -> None:
        with dealers(handshake, identities) as sockets:
            while not stop.wait(0.0005):
                for one in sockets:
                    for frames in messages:
                        with suppress(zmq.Again):
                            one.send_multipart(frames, zmq.NOBLOCK)

    return attack


def half_open(handshake: str, port: int, stop: threading.Event) -> None:
    """Connections that say nothing, or no ZMQ."""
    held = []
    for index in range(2 * HANDSHAKE_CONNECTIONS):
        one = socket.create_connection(("127.0.0.1", port))
        if index % 2:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 100)
        held.append(one)
    stop.wait()
    for one in held:
        one.close()


def comers_and_goers(handshake: str, port: int, stop: threading.Event) -> None:
    """A new identity with a new connection, over and over."""
    count = 0
    while not stop.is_set():
        count += 1
        with dealers(handshake, [b"x%d" % count]) as sockets:
            sockets[0].send(b"\x80")


ATTACKS: dict[str, Attack] = {
    "garbage": flood([b"ab", b"abc", b"a"], [[b""], [b"\xc1"], [b"\xff" * 1000], [b"a", b"b", b"c"]]),
    "impersonation": flood([RANK_0], [[HELLO_FRAME], [READY_FRAME]]),
    "other_ranks": flood([b"\xff\xff", b"\x01\x00"], [[HELLO_FRAME], [READY_FRAME]]),
    "long_words": flood([RANK_0], [[msgpack.packb({"status": "HELLO" * 10_000})]]),
    "giants": flood([RANK_0, b"ab"], [[b"x" * (HANDSHAKE_MESSAGE_BYTES + 1)]]),
    "many_peers": flood([b"p%d" % index for index in range(100)], [[HELLO_FRAME]]),
    "half_open": half_open,
    "comers_and_goers": comers_and_goers,
}


async def stream(bench: Bench) -> list[int]:
    """The tokens of a stream that goes on for half a second and more."""
    answer = await bench.chat(stream=True, max_tokens=TOKENS, seed=7, return_token_ids=True, ignore_eos=True)
    joined = join_chat(answer.text)
    assert joined["finish_reason"] == "length"
    return [token for chunk in _chunks(answer.text) for token in chunk]


def _chunks(text: str) -> Iterator[list[int]]:
    from .harness import events

    for event in events(text):
        if event != "[DONE]":
            for choice in event["choices"]:
                yield choice.get("token_ids") or []


@pytest.mark.parametrize("name", ATTACKS)
async def test_streams_go_on_and_engines_come_while_strangers_do_what_they_like(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_gateway(tmp_path, COUNTING, engine={"step_time_s": 0.003}) as bench:
        expected = await stream(bench)
        handshake = parse_worker_url(bench.urls[0]).handshake
        port = int(handshake.rpartition(":")[2])
        stop = threading.Event()
        attacker = threading.Thread(target=ATTACKS[name], args=(handshake, port, stop))
        descriptors = len(os.listdir("/proc/self/fd"))
        caplog.clear()
        attacker.start()
        try:
            with trio.fail_after(PATIENCE_S):
                assert len(expected) == TOKENS
                for _ in range(2):
                    assert await stream(bench) == expected
                assert bench.worker.state is WorkerState.READY
                assert bench.engine.exit_reason is None
                assert bench.engine.aborts == []
                if name == "half_open":
                    mine = 2 * HANDSHAKE_CONNECTIONS
                    assert len(os.listdir("/proc/self/fd")) - descriptors - mine < HANDSHAKE_CONNECTIONS + 20
            warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(warned) <= 2 * (SHOWN + 2), [record.getMessage() for record in warned]
            assert all(len(record.getMessage()) < MAX_REASON_CHARS + 200 for record in warned)
            if name != "impersonation":
                bench.kill(bench.engine)
                await bench.worker.wait_state(WorkerState.NOT_READY)
                bench.start_engine(COUNTING)
                await bench.wait_ready()
                with trio.fail_after(PATIENCE_S):
                    assert await stream(bench) == expected
        finally:
            stop.set()
            await trio.to_thread.run_sync(attacker.join)
        await bench.wait_idle()


async def test_garbage_on_the_output_socket_of_another_process_ends_no_stream(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, COUNTING, engine={"step_time_s": 0.003}) as bench:
        expected = await stream(bench)
        address = parse_worker_url(bench.urls[0]).output
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.set(zmq.LINGER, 0)
            stranger.connect(address)

            async def write() -> None:
                while True:
                    with suppress(zmq.Again):
                        stranger.send_multipart([b"\xc1garbage", b"x"], zmq.NOBLOCK)
                    await trio.lowlevel.checkpoint()

            bench.nursery.start_soon(write)
            assert await stream(bench) == expected
            assert bench.worker.state is WorkerState.READY
            assert bench.engine.aborts == []
            bench.nursery.cancel_scope.cancel()


async def test_strangers_at_the_data_sockets_before_an_engine_came_are_counted_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_gateway(tmp_path, COUNTING, connect=False, prometheus_port=0) as bench:
        addresses = parse_worker_url(bench.urls[0])
        with zmq.Context() as context, context.socket(zmq.PUSH) as pusher:
            pusher.set(zmq.LINGER, 0)
            pusher.connect(addresses.output)
            bench.start_engine(COUNTING)
            await bench.wait_ready()
            for _ in range(70):
                await trio.to_thread.run_sync(pusher.send_multipart, [b"\xc1garbage"])
            await trio.to_thread.run_sync(pusher.send, b"ENGINE_CORE_DEAD")
            identities = [(7).to_bytes(2, "little"), b"\xff\xff", b"x" * 200]
            with dealers(addresses.input, identities) as sockets:
                for one in sockets:
                    for frames in ([b"\x80"], [b"\xc1"], [b"a", b"b", b"c"]):
                        await trio.to_thread.run_sync(one.send_multipart, frames)
                with trio.fail_after(PATIENCE_S):
                    while bench.worker.snapshot().refused != {"handshake": 0, "input": 9, "output": 71}:
                        await trio.testing.wait_all_tasks_blocked(0.001)
            assert len(await stream(bench)) == TOKENS
        assert bench.worker.state is WorkerState.READY
        assert [rank.losses for rank in bench.worker.snapshot().ranks] == [0]
        assert bench.engine.aborts == []
        warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warned) <= 2 * SHOWN, [record.getMessage() for record in warned]
        found = await scrape(bench)
        assert found.value("smg_zmq_refused_messages_total", worker=bench.urls[0], socket="output") == 71
