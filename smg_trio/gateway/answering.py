"""An answer on its way out: measured, limited in time, and written by one API's writer, streamed or folded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from smg_trio.api.errors import error_event, error_view
from smg_trio.api.sse import DONE
from smg_trio.core.errors import GatewayFault, SmgError
from smg_trio.core.events import ChoiceUpdate, Usage
from smg_trio.gateway.state import Gateway
from smg_trio.pipeline.answer import Answer, open_answer
from smg_trio.pipeline.prepare import PreparedRequest

logger = logging.getLogger("smg_trio.gateway")


class RequestTimeout(GatewayFault):
    """The answer took longer than `--request-timeout-secs`."""

    code = "request_timeout"
    status = 504


class Writer(Protocol):
    """Writes one streamed answer; every method returns whole events, possibly none."""

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """What an update shows."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk, if usage was asked for."""
        ...


class Fold(Protocol):
    """Gathers an answer into one body."""

    def feed(self, update: ChoiceUpdate) -> None:
        """Take an update."""
        ...

    def body(self, usage: Usage) -> bytes:
        """The whole answer."""
        ...


class MeasuredAnswer:
    """An `Answer` that is counted, timed and ended at the request timeout. Close it on every path."""

    __slots__ = ("_closed", "_deadline", "_gateway", "_heard", "_metrics", "_started", "answer")

    def __init__(
        self, gateway: Gateway, prepared: Sequence[PreparedRequest], endpoint: str, *, streaming: bool, started: float
    ) -> None:
        """Starts generating. Raises what `open_answer` raises."""
        model = prepared[0].model.model_id
        self._gateway = gateway
        self._started = started
        self._heard = False
        self._closed = False
        self._metrics = gateway.metrics.inference_begins(model, endpoint, streaming=streaming)
        try:
            self.answer: Answer = open_answer(prepared, gateway.registry)
        except SmgError as error:
            self._metrics.failed(error.code)
            raise
        self._deadline = gateway.deadlines.start(self._expire)
        gateway.answer_begins()

    def _expire(self) -> None:
        seconds = self._gateway.settings.request_timeout_secs
        self.answer.fail(RequestTimeout(f"The answer took longer than {seconds:g}s."))

    async def next_updates(self) -> list[ChoiceUpdate]:
        """As `Answer.next_updates`; raises RequestTimeout at the deadline."""
        try:
            updates = await self.answer.next_updates()
        except SmgError as error:
            self._metrics.failed(error.code)
            raise
        if not self._heard:
            self._heard = True
            self._metrics.first_output(self._started, trio.current_time())
        return updates

    def close(self) -> None:
        """Abort what still runs, and note the end; idempotent, never blocks."""
        if self._closed:
            return
        self._closed = True
        self._deadline.cancel()
        self.answer.close()
        self._gateway.answer_ends()
        self._metrics.ended(self._started, trio.current_time(), self.answer.usage())


async def fold_answer(measured: MeasuredAnswer, fold: Fold) -> bytes:
    """Wait for the whole answer and return its body. Raises SmgError; cancelled or not, nothing is left running."""
    try:
        while not measured.answer.finished:
            for update in await measured.next_updates():
                fold.feed(update)
        return fold.body(measured.answer.usage())
    finally:
        measured.close()


class AnswerStream:
    """A streamed answer as a `ByteStream`: one wake-up, one chunk of bytes.

    `start` waits for the first output, so that an answer that fails before it has a real HTTP status; its bytes come
    out with the first chunk. A fault after that becomes an error event, then ``[DONE]``.
    """

    __slots__ = ("_continuous_usage", "_done", "_first", "_include_usage", "_measured", "_writer")

    def __init__(
        self, measured: MeasuredAnswer, writer: Writer, *, include_usage: bool = False, continuous_usage: bool = False
    ) -> None:
        """Takes over `measured`.

        Args:
            include_usage: a usage chunk before ``[DONE]``.
            continuous_usage: usage on every chunk.
        """
        self._measured = measured
        self._writer = writer
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._first = b""
        self._done = False

    async def start(self, opening: bytes = b"") -> None:
        """Wait for the first output, which is shown after `opening`.

        Raises SmgError; on any exception, cancellation included, the stream is closed.
        """
        try:
            self._first = opening + self._write(await self._measured.next_updates())
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """See `ByteStream.ended`."""
        return self._done and not self._first

    async def next_chunk(self) -> bytes:
        """See `ByteStream.next_chunk`."""
        if self._first:
            first, self._first = self._first, b""
            return first
        while not self._done:
            try:
                chunk = self._write(await self._measured.next_updates())
            except SmgError as error:
                return self._failed(error)
            if chunk:
                return chunk
        return b""

    def _failed(self, error: Exception) -> bytes:
        self._done = True
        self._measured.close()
        logger.warning("stream ended with an error: %s", error_view(error).message)
        return error_event(error) + DONE

    def _write(self, updates: list[ChoiceUpdate]) -> bytes:
        writer, answer = self._writer, self._measured.answer
        usage = answer.usage() if self._continuous_usage else None
        if len(updates) == 1 and not answer.finished:
            return writer.update(updates[0], usage)
        chunks = [writer.update(update, usage) for update in updates]
        if answer.finished:
            self._done = True
            if self._include_usage:
                chunks.append(writer.usage_chunk(answer.usage()))
            chunks.append(DONE)
            self._measured.close()
        return b"".join(chunks)

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._done = True
        self._measured.close()
