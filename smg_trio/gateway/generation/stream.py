"""An answer on its way out as server-sent events: one wake-up, one chunk of bytes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from smg_trio.api.errors import error_event
from smg_trio.api.sse import DONE, KEEP_ALIVE
from smg_trio.core.errors import SmgError
from smg_trio.gateway.generation.session import GenerationSession, about

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceUpdate, TokenLogprob, Usage
    from smg_trio.gateway.http import BodyWrite
    from smg_trio.pipeline.engine_requests import Batch, PlainText

logger = logging.getLogger("smg_trio.gateway")


class Writer(Protocol):
    """Writes one streamed answer; every method returns whole events, possibly none."""

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """What an update shows."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk, if usage was asked for."""
        ...


@runtime_checkable
class TextWriter(Protocol):
    """A writer with a short way for text alone."""

    @property
    def writes_plain_text(self) -> bool:
        """Whether `text` says all that `update` would; False if token ids are shown too."""
        ...

    def text(self, text: str, logprobs: Sequence[TokenLogprob] | None = None) -> bytes:
        """What an update with this content, and nothing else but log probabilities, of the only choice shows."""
        ...


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


def _write_nowhere(_data: bytes) -> None:
    raise RuntimeError("nothing is written before write_on")


class GenerationStream:
    """A streamed answer as a `ByteStream`.

    `start` waits for the first output, so that an answer that fails before it has a real HTTP status; its bytes come
    out with the first chunk. After that, or once a keep-alive went out, a fault is bytes of the stream.
    """

    __slots__ = (
        "_alarm",
        "_before_end",
        "_done",
        "_fault",
        "_note_output",
        "_on_close",
        "_owes_sign",
        "_plain_text",
        "_quiet",
        "_ready",
        "_session",
        "_style",
        "_text_writer",
        "_unsent",
        "_write_bytes",
        "_writer",
    )

    def __init__(
        self,
        session: GenerationSession[ChoiceUpdate],
        writer: Writer,
        style: StreamStyle,
        *,
        before_end: Callable[[], Awaitable[None]] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Takes over `session`.

        Args:
            before_end: awaited before the last chunk of a stream that succeeds leaves.
            on_close: called by every `close`; calling it again must be harmless.
        """
        self._session = session
        self._writer = writer
        self._style = style
        self._before_end = before_end
        self._on_close = on_close
        self._ready = b""
        self._done = False
        self._quiet = True
        self._owes_sign = False
        self._plain_text: PlainText | None = None
        # Looked up once: asking whether something follows a protocol takes microseconds.
        self._text_writer = writer if isinstance(writer, TextWriter) and not style.continuous_usage else None
        self._note_output = session.note_output
        self._fault: Exception | None = None
        self._unsent: Awaitable[None] | None = None
        self._write_bytes: BodyWrite = _write_nowhere
        self._alarm = session.gateway.keep_alives.start(self._note_silence)

    def _note_silence(self) -> None:
        if self._quiet and not self._done:
            self._owes_sign = True
            self._session.answer.wake_reader()
        self._quiet = True
        if not self._done:
            self._alarm = self._session.gateway.keep_alives.start(self._note_silence)

    async def start(self, opening: bytes = b"") -> None:
        """Wait for the first output, which is shown after `opening`.

        Raises SmgError; on any exception, cancellation included, the stream is closed.
        """
        try:
            self._ready = opening + await self._next()
            if self._text_writer is not None and self._text_writer.writes_plain_text:
                self._plain_text = self._session.answer.plain_text()
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """See `ByteStream.ended`."""
        return self._done and not self._ready

    async def next_chunk(self) -> bytes:
        """See `ByteStream.next_chunk`."""
        if self._ready:
            ready, self._ready = self._ready, b""
            return ready
        if self._done:
            return b""
        try:
            return await self._next()
        except SmgError as error:
            return self._end_with(error)

    def _end_with(self, error: SmgError) -> bytes:
        self.close()
        logger.warning("stream ended with an error: %s", error.message, extra=about(self._session.answer))
        return self._style.failed(error)

    async def _next(self) -> bytes:
        """Bytes to send: of the next updates that have any, or a sign of life."""
        while True:
            chunk = self._write(await self._session.next_updates())
            if self._session.answer.finished:
                return chunk + await self._end()
            if chunk:
                self._quiet = False
                return chunk
            if self._owes_sign:
                self._owes_sign = False
                return self._style.keep_alive

    async def _end(self) -> bytes:
        """What ends a stream that has succeeded."""
        if self._before_end is not None:
            await self._before_end()
        usage = self._session.answer.usage() if self._style.usage_at_end else None
        self.close()
        return self._style.done if usage is None else self._writer.usage_chunk(usage) + self._style.done

    async def write_on(self, write: BodyWrite, *, mostly_immediate: bool) -> None:
        """See `ByteStream.write_on`: all but the first chunk and the last, with little in between.

        Where `write` is mostly immediate, the worker's dispatcher writes in the place of this task, which sleeps until
        the client has to be waited for, the answer ends, or outputs come faster than that.
        """
        if self._done:
            return
        self._write_bytes = write
        receive, taker = self._session.answer.receive, self._take if mostly_immediate else None
        try:
            while not self._owes_sign:
                batch = await receive(taker)
                self._raise_fault()
                await self._write_rest()
                if batch and not self._session.answer.finished:
                    self._pass_on(batch)
                    await self._write_rest()
                if self._session.answer.finished:
                    self._ready += await self._end()
                    return
        except SmgError as error:
            self._session.failed(error)
            self._ready = self._end_with(error)

    def _take(self, batch: Batch) -> None:
        """Outputs that came while the task waits: pass them on, and wake it if that needs more than this."""
        try:
            self._pass_on(batch)
        except Exception as fault:  # noqa: BLE001 - it is the task's to handle, and must not end the dispatcher
            self._fault = fault
        if self._fault is not None or self._unsent is not None or self._session.answer.finished:
            self._session.answer.wake_reader()

    async def _write_rest(self) -> None:
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            await unsent

    def _raise_fault(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _pass_on(self, batch: Batch) -> None:
        """Write what these outputs show; the last bytes of an answer stay in `_ready`."""
        self._note_output()
        shown = None if self._plain_text is None else self._plain_text(batch)
        if shown is not None and self._text_writer is not None:
            chunk = self._text_writer.text(*shown)
        else:
            answer = self._session.answer
            chunk = self._write(answer.take(batch))
            if answer.finished:
                self._ready = chunk
                return
        if chunk:
            self._quiet = False
            self._unsent = self._write_bytes(chunk)

    def _write(self, updates: list[ChoiceUpdate]) -> bytes:
        writer, answer, style = self._writer, self._session.answer, self._style
        usage = answer.usage() if style.continuous_usage else None
        if len(updates) == 1:
            return writer.update(updates[0], usage)
        return b"".join([writer.update(update, usage) for update in updates])

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._done = True
        self._alarm.cancel()
        self._session.close()
        if self._on_close is not None:
            self._on_close()
