"""Outputs between the dispatcher and an answer's reader: queued in order, or taken where they are handed over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.errors import EngineDead, SlowConsumer
from smg_trio.core.outputs import GenerationOutput
from smg_trio.worker.output_stream import PENDING_OUTPUTS_LIMIT, OutputStream

Taken = Sequence[tuple[int, GenerationOutput]]


def output(token_id: int) -> GenerationOutput:
    return GenerationOutput([token_id])


class Reader:
    """Reads a stream with a taker that wakes it at every id that `wakes_at` names."""

    def __init__(self, stream: OutputStream[int], wakes_at: frozenset[int] = frozenset()) -> None:
        self.seen: list[int] = []
        self.woken = 0
        self._stream = stream
        self._wakes_at = wakes_at

    def take(self, batch: Taken) -> None:
        self.note(batch)
        if self.seen[-1] in self._wakes_at:
            self._stream.wake()

    def note(self, batch: Taken) -> None:
        self.seen += [token_id for _, one in batch for token_id in one.token_ids]

    async def run(self) -> None:
        while True:
            self.note(await self._stream.receive_batch(self.take))
            self.woken += 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40), st.frozensets(st.integers(0, 40)))
def test_every_output_comes_once_and_in_order(steps: list[tuple[bool, bool]], wakes_at: frozenset[int]) -> None:
    """Whatever is handed over, queued (the dispatcher lags), or comes before the reader had its turn."""

    async def main() -> None:
        stream: OutputStream[int] = OutputStream()
        delivery, reader = stream.delivery(0), Reader(stream, wakes_at)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            for token_id, (lagging, pauses) in enumerate(steps):
                if pauses:
                    await trio.testing.wait_all_tasks_blocked()
                assert delivery.put(output(token_id), lagging=lagging)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert reader.seen == list(range(len(steps)))

    trio.run(main)


async def test_what_is_handed_over_wakes_no_task() -> None:
    stream: OutputStream[int] = OutputStream()
    delivery, reader = stream.delivery(0), Reader(stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        for token_id in range(20):
            await trio.testing.wait_all_tasks_blocked()
            delivery.put(output(token_id))
            assert reader.seen[-1] == token_id, "taken before put returned"
        assert reader.woken == 0
        nursery.cancel_scope.cancel()


async def test_a_reader_that_was_cancelled_leaves_no_taker_behind() -> None:
    stream: OutputStream[int] = OutputStream()
    delivery, reader = stream.delivery(0), Reader(stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    delivery.put(output(7))
    assert (reader.seen, stream.pending) == ([], 1)
    assert [one.token_ids for _, one in await stream.receive_batch(reader.take)] == [[7]]


async def test_a_failure_comes_after_what_was_handed_over_and_ends_that() -> None:
    stream: OutputStream[int] = OutputStream()
    delivery, reader = stream.delivery(0), Reader(stream)
    with pytest.RaisesGroup(EngineDead):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            await trio.testing.wait_all_tasks_blocked()
            delivery.put(output(1))
            delivery.fail(EngineDead("gone"))
            delivery.put(output(2))
    assert reader.seen == [1]


async def test_a_reader_that_does_not_come_back_is_failed_at_the_bound() -> None:
    stream: OutputStream[int] = OutputStream()
    delivery = stream.delivery(0)
    results = [delivery.put(output(0)) for _ in range(PENDING_OUTPUTS_LIMIT + 1)]
    assert results == [True] * PENDING_OUTPUTS_LIMIT + [False]
    assert isinstance(stream.failure, SlowConsumer)
