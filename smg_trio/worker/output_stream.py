"""How outputs leave the nursery: one memory channel per answer, a tagged delivery per request of it.

A reader that waits may leave a function that takes outputs in its place, there and then, so that most tokens wake no
task at all.

The channel is this module's own, for it is what every token passes through: it carries batches, has one reader, and a
wake-up costs half of what it does with trio's general one (2 µs against 4, of about 15 in all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from smg_trio.core.errors import SlowConsumer, SmgError

if TYPE_CHECKING:
    from smg_trio.core.outputs import GenerationOutput

PENDING_OUTPUTS_LIMIT = 16_384
"""Outputs per request of an answer that may wait for its consumer. Beyond it the answer is failed and aborted, never
the worker, which does not wait for consumers."""

BATCH_LIMIT = 256
"""Most outputs that a consumer gets in one batch: what it makes of them takes 5 ms, and then others get their turn."""

Tag = TypeVar("Tag")
Taker = Callable[[Sequence[tuple[Tag, "GenerationOutput"]]], None]
"""Takes outputs where the dispatcher hands them over; must not raise or wait. It may `wake` the reader."""

_current_task, _reschedule = trio.lowlevel.current_task, trio.lowlevel.reschedule
_wait_task_rescheduled = trio.lowlevel.wait_task_rescheduled


class Delivery(Generic[Tag]):
    """The dispatcher's end for one request: hands outputs over and never waits."""

    __slots__ = ("_stream", "tag")

    def __init__(self, stream: OutputStream[Tag], tag: Tag) -> None:
        self._stream = stream
        self.tag = tag

    def put(self, output: GenerationOutput, *, lagging: bool = False) -> bool:
        """Hand an output over or queue it; False past the bound, where the stream fails with SlowConsumer.

        `lagging`: more outputs are at hand, so queue it: the reader makes less work of several at once.
        """
        stream = self._stream
        taker = stream.taker
        if taker is not None and not lagging:
            taker(((self.tag, output),))
            return True
        batch = stream.batch
        if len(batch) >= stream.limit:
            stream.fail(SlowConsumer("the client stopped reading the response"))
            return False
        if stream.failure is None:
            batch.append((self.tag, output))
            reader = stream.reader
            if reader is not None:
                stream.reader = stream.taker = None
                _reschedule(reader)
        return True

    def fail(self, error: SmgError) -> None:
        """The request has ended with an error; see `OutputStream.fail`."""
        self._stream.fail(error)


class OutputStream(Generic[Tag]):
    """The consumer's end: outputs of all requests that `delivery` was made for, in order of arrival.

    Attributes:
        batch: for `Delivery` only: what the reader gets next.
        limit: for `Delivery` only: how many outputs may wait in `batch`.
        reader: for `Delivery` only: the task that waits for a batch, if one does.
        taker: for `Delivery` only: what takes outputs in the place of the reader while it waits.
        failure: what ends the stream once `batch` has been read; nothing is queued after it.
    """

    __slots__ = ("batch", "failure", "limit", "reader", "taker")

    def __init__(self) -> None:
        self.batch: list[tuple[Tag, GenerationOutput]] = []
        self.limit = 0
        self.reader: trio.lowlevel.Task | None = None
        self.taker: Taker[Tag] | None = None
        self.failure: SmgError | None = None

    def delivery(self, tag: Tag) -> Delivery[Tag]:
        """A delivery into this stream; its outputs come out with `tag`."""
        self.limit += PENDING_OUTPUTS_LIMIT
        return Delivery(self, tag)

    def fail(self, error: SmgError) -> None:
        """End the stream after what is queued; only the first failure counts."""
        if self.failure is None:
            self.failure = error
        self.wake()

    def wake(self) -> None:
        """Have the reader return with what there is, even if that is nothing."""
        reader, self.reader = self.reader, None
        self.taker = None
        if reader is not None:
            _reschedule(reader)

    @property
    def pending(self) -> int:
        """Outputs that the reader has not taken."""
        return len(self.batch)

    async def receive_batch(self, taker: Taker[Tag] | None = None) -> list[tuple[Tag, GenerationOutput]]:
        """Wait for and return the outputs queued by now, at most `BATCH_LIMIT`; none only after `wake`.

        For one task at a time. While it waits, `taker` gets the outputs, and only what it cannot get is queued: what
        comes faster than it is handed over.

        A consumer that lags thus gets its outputs in larger batches. Raises the SmgError that ended a request, after
        the outputs that came before it. Cancellation loses nothing.
        """
        if self.batch:
            await trio.lowlevel.checkpoint()
        elif self.failure is None:
            self.reader, self.taker = _current_task(), taker
            await _wait_task_rescheduled(self._stop_waiting)
        batch = self.batch
        if not batch and self.failure is not None:
            raise self.failure
        if len(batch) > BATCH_LIMIT:
            self.batch = batch[BATCH_LIMIT:]
            return batch[:BATCH_LIMIT]
        self.batch = []
        return batch

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.reader = self.taker = None
        return trio.lowlevel.Abort.SUCCEEDED
