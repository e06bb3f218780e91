"""A fake engine with several socket pairs does what real ones were seen to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.memory import BoundLink, MemoryNetwork
from smg_trio.testing.options import EngineOptions
from smg_trio.wire.handshake import encode_init

from .front_end import ENGINE_CORE_DEAD, start_wave, unpack_batch

RANK_0 = b"\x00\x00"
WAVE_COMPLETE = 6


class Fronts:
    """Socket pairs by number; those after the first two are bound when a test wants them."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.inputs: dict[int, BoundLink] = {}
        self.outputs: dict[int, BoundLink] = {}
        for index in (0, 1):
            self.bind(index)

    def bind(self, index: int) -> None:
        self.inputs[index] = self.network.bind_input(f"mem://in{index}")
        self.outputs[index] = self.network.bind_output(f"mem://out{index}")

    def ask(self, front: int, kind: bytes, payload: Any) -> None:
        self.inputs[front].send_nowait([RANK_0, kind, msgpack.packb(payload)])

    def add(self, request_id: str, *, front: int, index: int | None = None, max_tokens: int = 2) -> None:
        row: list[Any] = [request_id, [1, 2, 3], None, {"max_tokens": max_tokens, "ignore_eos": True}, None, 1.5]
        self.ask(front, b"\x00", [*row, None, None, None, None, None, front if index is None else index])

    async def messages(self, front: int) -> list[Any]:
        """Everything that the front is told until the engine has nothing more to say."""
        heard: list[Any] = []
        while True:
            with trio.move_on_after(1) as scope:
                messages = await self.outputs[front].receive_many()
                heard += [frames if frames == [ENGINE_CORE_DEAD] else unpack_batch(frames) for frames in messages]
            if scope.cancelled_caught:
                return heard


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[Fronts, FakeEngine]]:
    network = MemoryNetwork()
    handshake = network.bind_handshake("mem://hs")
    fronts = Fronts(network)
    defaults: dict[str, Any] = {"step_time_s": 0.01}
    group = LockstepGroup(1) if options.get("lockstep") else None
    engine = FakeEngine(EngineOptions(**(defaults | options)), network, "mem://hs", group=group)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await handshake.receive_many()
        numbers = range(3)
        init = encode_init([f"mem://in{i}" for i in numbers], [f"mem://out{i}" for i in numbers])
        handshake.send_nowait([RANK_0, init])
        await engine.wait_connected()
        for link in fronts.inputs.values():
            assert len(await link.receive_many()) == 1  # the registration
        yield fronts, engine
        nursery.cancel_scope.cancel()


def ids(messages: list[Any]) -> set[str]:
    return {output[0] for message in messages for output in message[1]}


async def test_a_step_is_split_and_one_front_hears_the_load(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (fronts, engine):
        fronts.add("b", front=1, max_tokens=5)
        await engine.wait_received()
        fronts.add("a", front=0, max_tokens=5)
        fronts.add("x", front=0, index=1, max_tokens=5)
        first, second = await fronts.messages(0), await fronts.messages(1)
        assert ids(first) == {"a"}
        assert ids(second) == {"b", "x"}
        with_outputs = [message for message in first if message[1]]
        assert len(with_outputs) == 5
        # The load is told to the front whose request stands first in the step: b's, as long as there is b.
        assert [message[2] is None for message in with_outputs] == [True] * 4 + [False]
        assert [message[2] is not None for message in second] == [True] * 5 + [False]
        assert [message[1] for message in first if not message[1]] == [[]]  # nothing left: told to the first alone


async def test_replies_go_to_the_front_that_the_call_names(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (fronts, _):
        fronts.add("a", front=0, max_tokens=1000)
        fronts.add("b", front=1, max_tokens=1000)
        await trio.sleep(0.05)
        fronts.ask(0, b"\x03", [1, 7, "is_sleeping", []])
        fronts.ask(1, b"\x03", [0, 7, "pause_scheduler", ["abort"]])
        first, second = await fronts.messages(0), await fronts.messages(1)
        assert [message[4][0] for message in first if message[4]] == [7]
        assert [message[4][0] for message in second if message[4]] == [7]
        assert [message[5] for message in first if message[5]] == [["a"]]
        assert [message[5] for message in second if message[5]] == [["b"]]


async def test_waves_are_told_to_the_first_front(autojump_clock: trio.testing.MockClock) -> None:
    async with running(lockstep=True) as (fronts, _):
        fronts.add("b", front=1)
        fronts.ask(1, *start_wave_parts(5))
        first, second = await fronts.messages(0), await fronts.messages(1)
        assert [message[WAVE_COMPLETE] for message in first if message[WAVE_COMPLETE] is not None] == [5]
        assert ids(second) == {"b"}


def start_wave_parts(wave: int) -> tuple[bytes, Any]:
    kind, payload = start_wave(wave)
    return kind, msgpack.unpackb(payload)


async def test_what_an_absent_front_is_told_waits_for_it(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (fronts, engine):
        fronts.add("c", front=1, index=2)
        await engine.wait_until(lambda: engine.record.finished == ["c"])
        fronts.bind(2)
        assert len(await fronts.inputs[2].receive_many()) == 1  # its registration waited too
        assert ids(await fronts.messages(2)) == {"c"}
        fronts.outputs[1].close()
        fronts.add("b", front=0, index=1)
        await engine.wait_until(lambda: "b" in engine.record.finished)
        fronts.outputs[1] = fronts.network.bind_output("mem://out1")
        assert ids(await fronts.messages(1)) == {"b"}


@pytest.mark.parametrize("index", [3, -1])
async def test_an_index_that_is_none_makes_it_mute_for_all(index: int, autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (fronts, engine):
        fronts.add("bad", front=0, index=index)
        fronts.add("a", front=0)
        await engine.wait_until(lambda: len(engine.record.finished) == 2)
        fronts.add("b", front=1)
        fronts.ask(1, b"\x03", [1, 1, "is_sleeping", []])
        await engine.wait_until(lambda: len(engine.record.finished) == 3)
        assert await fronts.messages(0) == []
        assert await fronts.messages(1) == []
        assert engine.exit_reason is None


async def test_every_front_hears_that_it_dies(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (fronts, engine):
        engine.die()
        assert await fronts.messages(0) == [[ENGINE_CORE_DEAD]]
        assert await fronts.messages(1) == [[ENGINE_CORE_DEAD]]
