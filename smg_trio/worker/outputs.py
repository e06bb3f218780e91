"""How outputs leave the nursery: one memory channel per answer, a tagged delivery per request of it."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import trio

from smg_trio.core.errors import SlowConsumer, SmgError
from smg_trio.core.outputs import GenerationOutput

PENDING_OUTPUTS_LIMIT = 16_384
"""Outputs of one request that may wait for its consumer. Beyond it the request is failed and aborted, never the
worker, which does not wait for consumers."""

Tag = TypeVar("Tag")


class Delivery(Generic[Tag]):
    """The dispatcher's end for one request: hands outputs over and never waits."""

    __slots__ = ("_stream", "pending", "tag")

    def __init__(self, stream: OutputStream[Tag], tag: Tag) -> None:
        self._stream = stream
        self.tag = tag
        self.pending = 0

    def put(self, item: GenerationOutput | SmgError) -> bool:
        """Queue an output, or the error that ends the request; False (and SlowConsumer queued) past the bound."""
        within = self.pending < PENDING_OUTPUTS_LIMIT
        if not within:
            item = SlowConsumer("the client stopped reading the response")
        self.pending += 1
        stream = self._stream
        if stream.batch is None:
            stream.batch = [(self, item)]
            stream.send(stream.batch)
        else:
            stream.batch.append((self, item))
        return within


class OutputStream(Generic[Tag]):
    """The consumer's end: outputs of all requests that `delivery` was made for, in order of arrival.

    What the memory channel carries is the batch itself: the first output of a batch sends the list that the following
    ones are appended to, until the consumer has taken it. So a wake-up costs one send and one receive, however many
    outputs it brings, and no failing attempt to receive once more.

    Attributes:
        send, batch: for `Delivery` only: the channel's `send_nowait`, and the batch that the consumer gets next.
    """

    __slots__ = ("_failure", "_receive", "batch", "send")

    def __init__(self) -> None:
        # Unbounded, because each delivery bounds itself; in fact there is one list in it at most.
        send: trio.MemorySendChannel[list[tuple[Delivery[Tag], GenerationOutput | SmgError]]]
        receive: trio.MemoryReceiveChannel[list[tuple[Delivery[Tag], GenerationOutput | SmgError]]]
        send, receive = trio.open_memory_channel(math.inf)
        self.send = send.send_nowait
        self._receive = receive
        self.batch: list[tuple[Delivery[Tag], GenerationOutput | SmgError]] | None = None
        self._failure: SmgError | None = None

    def delivery(self, tag: Tag) -> Delivery[Tag]:
        """A delivery into this stream; its outputs come out with `tag`."""
        return Delivery(self, tag)

    async def receive_batch(self) -> list[tuple[Tag, GenerationOutput]]:
        """Wait for and return all outputs queued by now, at least one.

        A consumer that lags thus gets its outputs in larger batches. Raises the SmgError that ended a request, after
        the outputs that came before it. Cancellation loses nothing.
        """
        if self._failure is not None:
            raise self._failure
        items = await self._receive.receive()
        self.batch = None
        batch: list[tuple[Tag, GenerationOutput]] = []
        for delivery, item in items:
            delivery.pending = 0
            if not isinstance(item, GenerationOutput):
                self._failure = item
                break
            batch.append((delivery.tag, item))
        if not batch and self._failure is not None:
            raise self._failure
        return batch
