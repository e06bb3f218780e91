"""An answer on its way out: measured, limited in time, and written by one API's writer, streamed or folded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import trio

from smg_trio.api.errors import error_event
from smg_trio.api.sse import DONE, KEEP_ALIVE
from smg_trio.core.errors import GatewayFault, NoReadyWorker, SmgError
from smg_trio.core.events import ChoiceUpdate, TokenLogprob, Usage
from smg_trio.gateway.generation.in_flight import Phase
from smg_trio.gateway.http import BodyWrite
from smg_trio.gateway.observability.access_log import current
from smg_trio.gateway.observability.current_trace import current as current_trace
from smg_trio.gateway.security.key_limits import KeySlot, current_slot
from smg_trio.gateway.state import Gateway
from smg_trio.pipeline.answer import Answer
from smg_trio.pipeline.decode import ChoiceDecoder
from smg_trio.pipeline.prepare import PreparedRequest
from smg_trio.routing.admission import Permit
from smg_trio.routing.retries import Attempts

logger = logging.getLogger("smg_trio.gateway")


class GenerationTimeout(GatewayFault):
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


class Fold(Protocol):
    """Gathers an answer into one body."""

    def feed(self, update: ChoiceUpdate) -> None:
        """Take an update."""
        ...

    def body(self, usage: Usage) -> bytes:
        """The whole answer."""
        ...


def check_budget(place: KeySlot, prepared: Sequence[PreparedRequest]) -> None:
    """Raises BudgetExceeded if these prompts and the answers that they ask for are more than a key has in a minute."""
    prompts = sum(len(one.prompt.token_ids) for one in prepared)
    place.check(prompts, sum(one.n * (one.asked_tokens or 0) for one in prepared))


class GenerationSession:
    """An `Answer` that is admitted, tried again where that helps, counted, timed and ended at the request timeout.

    Nothing is sent before the first `next_updates`. Close it on every path.

    Attributes:
        answer: the present attempt; another object after each retry, until the first output has come.
        heard: the first output has come, so there are no more retries.
        metrics, started: see `InFlightGeneration`.
        note_output: to be called at every further output that does not come through `next_updates`.
    """

    __slots__ = (
        "_access",
        "_closed",
        "_deadline",
        "_expired",
        "_permit",
        "_place",
        "_prepared",
        "_routing_key",
        "_trace",
        "answer",
        "gateway",
        "heard",
        "metrics",
        "note_output",
        "started",
    )

    def __init__(
        self,
        gateway: Gateway,
        prepared: Sequence[PreparedRequest],
        endpoint: str,
        *,
        streaming: bool,
        started: float,
        routing_key: str | None = None,
    ) -> None:
        """Raises BudgetExceeded; then there is nothing to close."""
        self.gateway = gateway
        self.heard = False
        self.answer = Answer(prepared)
        self._place = current_slot.get()
        if self._place is not None:
            check_budget(self._place, prepared)
        self._prepared = prepared
        self._routing_key = routing_key
        self.started = started
        self._closed = False
        self._permit: Permit | None = None
        self._expired: GenerationTimeout | None = None
        model = prepared[0].model.model_id
        self.metrics = gateway.metrics.inference_begins(model, endpoint, streaming=streaming, started=started)
        self.note_output = self.metrics.note_output
        self._access = current.get()
        if self._access is not None:
            self._access.model, self._access.streaming = model, streaming
        if self._place is not None:
            self._place.hold().use(self.answer.usage().prompt_tokens)
        self._trace = current_trace.get()
        if self._trace is not None:
            self._trace.answer_begins(prepared, endpoint, streaming=streaming)
        self._deadline = gateway.deadlines.start(self._expire)
        gateway.answer_begins(self)

    @property
    def request_id(self) -> str:
        """See `InFlightGeneration`."""
        return self._prepared[0].request_id

    @property
    def phase(self) -> Phase:
        """See `InFlightGeneration`."""
        if self.heard:
            return "generating"
        return "queued" if self._permit is None else "waiting"

    @property
    def worker_urls(self) -> Collection[str]:
        """See `InFlightGeneration`."""
        return self.answer.worker_urls

    def usage(self) -> Usage:
        """See `InFlightGeneration`."""
        return self.answer.usage()

    @property
    def pending_outputs(self) -> int:
        """See `InFlightGeneration`."""
        return self.answer.outputs.pending

    def _expire(self) -> None:
        seconds = self.gateway.settings.request_timeout_secs
        self._expired = GenerationTimeout(f"The answer took longer than {seconds:g}s.")
        self.answer.fail(self._expired)

    async def next_updates(self) -> list[ChoiceUpdate]:
        """As `Answer.next_updates`; the first call admits and begins. Raises GenerationTimeout at the deadline."""
        try:
            if self.heard:
                updates = await self.answer.next_updates()
                self.note_output()
                return updates
            return await self._first_updates()
        except SmgError as error:
            self._note_failure(error)
            raise

    def failed(self, error: SmgError) -> None:
        """What was read past `next_updates` ended with an error."""
        self.answer.fail_leases(error)
        self._note_failure(error)

    def _note_failure(self, error: SmgError) -> None:
        metrics = self.metrics
        metrics.failed(error.code)
        self.gateway.errors.note(error, metrics.endpoint, model=metrics.model, worker_urls=self.answer.worker_urls)
        if self._trace is not None:
            self._trace.failed(error)
        if self._access is not None:
            self._access.error = error.code

    async def _first_updates(self) -> list[ChoiceUpdate]:
        gateway = self.gateway
        waited_from = trio.current_time()
        self._permit = await gateway.admission.admit()
        attempts = Attempts(gateway.retry_schedule, gateway.random)
        cause: SmgError | None = None
        while True:
            if self._expired is not None:  # while it waited to be admitted, or between two attempts
                raise self._expired
            try:
                await self.answer.begin(gateway.registry, routing_key=self._routing_key, avoid=attempts.avoid)
                self.metrics.sent(waited_from, trio.current_time())
                if self._trace is not None:
                    self._trace.enter("prefill")
                updates = await self.answer.next_updates()
            except NoReadyWorker as error:
                # Nobody is left to try: then what ended the last attempt is the news.
                raise cause or error from None
            except SmgError as error:
                cause = error
                waited_from = trio.current_time()
                await self._pause_before_retry(attempts, error)
            else:
                self.heard = True
                now = trio.current_time()
                self.metrics.first_output(now)
                if self._trace is not None:
                    self._trace.enter("decode")
                if self._access is not None:
                    self._access.first_output = now
                return updates

    async def _pause_before_retry(self, attempts: Attempts, error: SmgError) -> None:
        """Raises `error` if another attempt cannot help."""
        attempts.avoid.update(self.answer.worker_ids)
        delay_s = attempts.failed(error)
        if delay_s is None:
            if attempts.exhausted(error):
                self.gateway.metrics.retries_exhausted(self.metrics.endpoint)
            raise error
        self.gateway.metrics.retried(self.metrics.endpoint, attempts.made, delay_s)
        if self._trace is not None:
            self._trace.retried(attempts.made, error, delay_s)
        logger.info("attempt %d failed (%s); trying again", attempts.made, error.message, extra=about(self.answer))
        await trio.sleep(delay_s)
        self.answer = Answer(self._prepared)

    def close(self) -> None:
        """Abort what still runs, and note the end; idempotent, never blocks."""
        if self._closed:
            return
        self._closed = True
        self._deadline.cancel()
        self.answer.close()
        if self._permit is not None:
            self._permit.close()
        self.gateway.answer_ends(self)
        usage, worker_urls = self.answer.usage(), self.answer.worker_urls
        if self._place is not None:
            # A prompt that was never handed to an engine costs nothing.
            self._place.use(usage.completion_tokens if self._permit is not None else -usage.prompt_tokens)
            self._place.close()
        self.gateway.metrics.inference_ends(self.metrics, usage, worker_urls)
        if self._trace is not None:
            self._trace.answer_ended(usage, self.answer.finish_reasons, worker_urls)
        if self._access is not None:
            self._access.answer_ended(usage, worker_urls)


def about(answer: Answer) -> dict[str, object]:
    """What a log line about an answer carries beside its words."""
    return {"fields": {"worker": ",".join(sorted(answer.worker_urls))}}


async def fold_answer(measured: GenerationSession, fold: Fold) -> bytes:
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


class GenerationStream:
    """A streamed answer as a `ByteStream`: one wake-up, one chunk of bytes.

    `start` waits for the first output, so that an answer that fails before it has a real HTTP status; its bytes come
    out with the first chunk. After that, or once a keep-alive went out, a fault is bytes of the stream.
    """

    __slots__ = (
        "_alarm",
        "_before_end",
        "_done",
        "_measured",
        "_on_close",
        "_owes_sign",
        "_plain",
        "_quiet",
        "_ready",
        "_style",
        "_text_writer",
        "_writer",
    )

    def __init__(
        self,
        measured: GenerationSession,
        writer: Writer,
        style: StreamStyle,
        *,
        before_end: Callable[[], Awaitable[None]] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Takes over `measured`.

        Args:
            before_end: awaited before the last chunk of a stream that succeeds leaves.
            on_close: called by every `close`; calling it again must be harmless.
        """
        self._measured = measured
        self._writer = writer
        self._style = style
        self._before_end = before_end
        self._on_close = on_close
        self._ready = b""
        self._done = False
        self._quiet = True
        self._owes_sign = False
        self._plain: ChoiceDecoder | None = None
        # Looked up once: asking whether something follows a protocol takes microseconds.
        self._text_writer = writer if isinstance(writer, TextWriter) and not style.continuous_usage else None
        self._alarm = measured.gateway.keep_alives.start(self._note_silence)

    def _note_silence(self) -> None:
        if self._quiet and not self._done:
            self._owes_sign = True
            self._measured.answer.wake_reader()
        self._quiet = True
        if not self._done:
            self._alarm = self._measured.gateway.keep_alives.start(self._note_silence)

    async def start(self, opening: bytes = b"") -> None:
        """Wait for the first output, which is shown after `opening`.

        Raises SmgError; on any exception, cancellation included, the stream is closed.
        """
        try:
            self._ready = opening + await self._next()
            if self._text_writer is not None and self._text_writer.writes_plain_text:
                self._plain = self._measured.answer.plain_decoder
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
        logger.warning("stream ended with an error: %s", error.message, extra=about(self._measured.answer))
        return self._style.failed(error)

    async def _next(self) -> bytes:
        """Bytes to send: of the next updates that have any, or a sign of life."""
        while True:
            chunk = self._write(await self._measured.next_updates())
            if self._measured.answer.finished:
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
        usage = self._measured.answer.usage() if self._style.usage_at_end else None
        self.close()
        return self._style.done if usage is None else self._writer.usage_chunk(usage) + self._style.done

    async def write_on(self, write: BodyWrite) -> None:
        """See `ByteStream.write_on`: all but the first chunk and the last, with little in between."""
        if self._done:
            return
        answer, plain, writer = self._measured.answer, self._plain, self._text_writer
        receive, note_output = answer.outputs.receive_batch, self._measured.note_output
        while not self._owes_sign:
            try:
                batch = await receive()
                if batch:
                    note_output()
                shown = None if plain is None else plain.push_plain(batch)
                if shown is None or writer is None:
                    chunk = self._write(answer.take(batch))
                    if answer.finished:
                        self._ready = chunk + await self._end()
                        return
                else:
                    chunk = writer.text(*shown)
            except SmgError as error:
                self._measured.failed(error)
                self._ready = self._end_with(error)
                return
            if chunk:
                self._quiet = False
                unsent = write(chunk)
                if unsent is not None:
                    await unsent

    def _write(self, updates: list[ChoiceUpdate]) -> bytes:
        writer, answer, style = self._writer, self._measured.answer, self._style
        usage = answer.usage() if style.continuous_usage else None
        if len(updates) == 1:
            return writer.update(updates[0], usage)
        return b"".join([writer.update(update, usage) for update in updates])

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._done = True
        self._alarm.cancel()
        self._measured.close()
        if self._on_close is not None:
            self._on_close()
