"""An answer on its way out: measured, limited in time, and written by one API's writer, streamed or folded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from smg_trio.api.errors import error_event
from smg_trio.api.sse import DONE, KEEP_ALIVE
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

    __slots__ = ("_closed", "_deadline", "_heard", "_metrics", "_started", "answer", "gateway")

    def __init__(
        self, gateway: Gateway, prepared: Sequence[PreparedRequest], endpoint: str, *, streaming: bool, started: float
    ) -> None:
        """Starts generating. Raises what `open_answer` raises."""
        model = prepared[0].model.model_id
        self.gateway = gateway
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
        seconds = self.gateway.settings.request_timeout_secs
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
        self.gateway.answer_ends()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStyle:
    """How one API's streams differ from another's.

    Attributes:
        failed: what ends a stream that fails.
        done: what ends every other stream.
        keep_alive: what is sent in long silences.
        usage_at_end: whether the writer's `usage_chunk` comes before `done`.
        continuous_usage: whether every update carries usage.
    """

    failed: Callable[[Exception], bytes]
    done: bytes = DONE
    keep_alive: bytes = KEEP_ALIVE
    usage_at_end: bool = False
    continuous_usage: bool = False


def openai_failed(error: Exception) -> bytes:
    """An error event, then ``[DONE]``, as vLLM does."""
    return error_event(error) + DONE


class AnswerStream:
    """A streamed answer as a `ByteStream`: one wake-up, one chunk of bytes.

    `start` waits for the first output, so that an answer that fails before it has a real HTTP status; its bytes come
    out with the first chunk. After that, or once a keep-alive went out, a fault is bytes of the stream.
    """

    __slots__ = ("_alarm", "_before_end", "_done", "_first", "_measured", "_owes_sign", "_quiet", "_style", "_writer")

    def __init__(
        self,
        measured: MeasuredAnswer,
        writer: Writer,
        style: StreamStyle,
        *,
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Takes over `measured`; `before_end` is awaited before the last chunk leaves."""
        self._measured = measured
        self._writer = writer
        self._style = style
        self._before_end = before_end
        self._first = b""
        self._done = False
        self._quiet = True
        self._owes_sign = False
        self._alarm = measured.gateway.keep_alives.start(self._note_silence)

    def _note_silence(self) -> None:
        if self._quiet and not self._done:
            self._owes_sign = True
            self._measured.answer.nudge()
        self._quiet = True
        if not self._done:
            self._alarm = self._measured.gateway.keep_alives.start(self._note_silence)

    async def start(self, opening: bytes = b"") -> None:
        """Wait for the first output, which is shown after `opening`.

        Raises SmgError; on any exception, cancellation included, the stream is closed.
        """
        try:
            self._first = opening + await self._next()
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
        if self._done:
            return b""
        try:
            return await self._next()
        except SmgError as error:
            self.close()
            logger.warning("stream ended with an error: %s", error.message)
            return self._style.failed(error)

    async def _next(self) -> bytes:
        """Bytes to send: of the next updates that have any, or a sign of life."""
        while True:
            chunk = self._write(await self._measured.next_updates())
            if self._measured.answer.finished:
                if self._before_end is not None:
                    await self._before_end()
                self.close()
                return chunk
            if chunk:
                self._quiet = False
                return chunk
            if self._owes_sign:
                self._owes_sign = False
                return self._style.keep_alive

    def _write(self, updates: list[ChoiceUpdate]) -> bytes:
        writer, answer, style = self._writer, self._measured.answer, self._style
        usage = answer.usage() if style.continuous_usage else None
        if len(updates) == 1 and not answer.finished:
            return writer.update(updates[0], usage)
        chunks = [writer.update(update, usage) for update in updates]
        if answer.finished:
            if style.usage_at_end:
                chunks.append(writer.usage_chunk(answer.usage()))
            chunks.append(style.done)
        return b"".join(chunks)

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._done = True
        self._alarm.cancel()
        self._measured.close()
