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

    __slots__ = ("_send", "pending", "tag")

    def __init__(
        self, send: trio.MemorySendChannel[tuple[Delivery[Tag], GenerationOutput | SmgError]], tag: Tag
    ) -> None:
        self._send = send
        self.tag = tag
        self.pending = 0

    def put(self, item: GenerationOutput | SmgError) -> bool:
        """Queue an output, or the error that ends the request; False (and SlowConsumer queued) past the bound."""
        if self.pending >= PENDING_OUTPUTS_LIMIT:
            self._send.send_nowait((self, SlowConsumer("the client stopped reading the response")))
            return False
        self.pending += 1
        self._send.send_nowait((self, item))
        return True


class OutputStream(Generic[Tag]):
    """The consumer's end: outputs of all requests that `delivery` was made for, in order of arrival."""

    __slots__ = ("_failure", "_receive", "_send")

    def __init__(self) -> None:
        # Unbounded, because each delivery bounds itself.
        self._send, self._receive = trio.open_memory_channel[tuple[Delivery[Tag], GenerationOutput | SmgError]](
            math.inf
        )
        self._failure: SmgError | None = None

    def delivery(self, tag: Tag) -> Delivery[Tag]:
        """A delivery into this stream; its outputs come out with `tag`."""
        return Delivery(self._send, tag)

    async def receive_batch(self) -> list[tuple[Tag, GenerationOutput]]:
        """Wait for and return all outputs queued by now, at least one.

        A consumer that lags thus gets its outputs in larger batches. Raises the SmgError that ended a request, after
        the outputs that came before it. Cancellation loses nothing.
        """
        if self._failure is not None:
            raise self._failure
        receive = self._receive
        delivery, item = await receive.receive()
        batch: list[tuple[Tag, GenerationOutput]] = []
        while True:
            delivery.pending = 0
            if isinstance(item, GenerationOutput):
                batch.append((delivery.tag, item))
            else:
                self._failure = item
                break
            try:
                delivery, item = receive.receive_nowait()
            except trio.WouldBlock:
                break
        if not batch and self._failure is not None:
            raise self._failure
        return batch
