"""A generation from admission to its end: tried again where that helps, limited in time, and observed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, Protocol

import trio

from smg_trio.core.errors import GatewayFault, NoReadyWorker, SmgError
from smg_trio.gateway.observability.observer import Observers, Phase
from smg_trio.pipeline.engine_requests import AnyAnswer, EngineRequests, Update
from smg_trio.routing.retries import Attempts

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceUpdate, Usage
    from smg_trio.gateway.request_context import RequestContext
    from smg_trio.gateway.state import Gateway
    from smg_trio.routing.admission import Permit

logger = logging.getLogger("smg_trio.gateway")


class GenerationTimeout(GatewayFault):
    """The answer took longer than `--request-timeout-secs`."""

    code = "request_timeout"
    status = 504


class GenerationSession(Generic[Update]):
    """An answer that is admitted, tried again where that helps, counted, timed and ended at the request timeout.

    Nothing is sent before the first `next_updates`. Close it on every path.

    Attributes:
        answer: the present attempt; another object after each retry, until the first output has come.
        heard: the first output has come, so there are no more retries.
        request_id, endpoint, streaming: see `Generation`.
        metrics, started: see `InFlightGeneration`.
        note_output: to be called at every further output that does not come through `next_updates`.
    """

    __slots__ = (
        "_closed",
        "_deadline",
        "_expired",
        "_observer",
        "_permit",
        "_routing_key",
        "answer",
        "endpoint",
        "gateway",
        "heard",
        "metrics",
        "note_output",
        "request_id",
        "started",
        "streaming",
    )

    def __init__(
        self,
        gateway: Gateway,
        context: RequestContext,
        answer: EngineRequests[Any, Update],
        endpoint: str,
        *,
        streaming: bool,
        started: float,
        routing_key: str | None = None,
    ) -> None:
        """Raises BudgetExceeded; then there is nothing to close.

        Args:
            gateway: whose workers answer.
            context: of the request that is answered; its observer hears of the generation.
            answer: not yet begun.
            endpoint: which API was asked, in a word, for metrics and logs.
            streaming: whether the client gets the answer piece by piece.
            started: when the request came, on the loop's clock.
            routing_key: see `Registry.lease`.
        """
        try:
            context.check_budget(answer)
        except BaseException:
            answer.release()
            raise
        if context.on_generation is not None:
            context.on_generation()
        self.gateway = gateway
        self.request_id = context.request_id
        self.answer = answer
        self.endpoint = endpoint
        self.streaming = streaming
        self.started = started
        self.heard = False
        self._routing_key = routing_key
        self._closed = False
        self._permit: Permit | None = None
        self._expired: GenerationTimeout | None = None
        self.metrics = gateway.metrics.generation_begins(
            answer.model_id, endpoint, streaming=streaming, started=started
        )
        self.note_output = self.metrics.note_output
        self._observer = Observers((self.metrics, gateway.errors, *context.observer.members))
        if gateway.metrics.vllm is not None:
            self._observer.add(gateway.metrics.vllm.request(answer.model_id, started))
        self._observer.generation_begins(self)
        self._deadline = gateway.deadlines.start(self._expire)
        gateway.answer_begins(self)

    @property
    def phase(self) -> Phase:
        """See `Generation`."""
        if self.heard:
            return "generating"
        return "queued" if self._permit is None else "waiting"

    def _expire(self) -> None:
        seconds = self.gateway.settings.request_timeout_secs
        self._expired = GenerationTimeout(f"The answer took longer than {seconds:g}s.")
        self.answer.fail(self._expired)

    async def next_updates(self) -> list[Update]:
        """As `EngineRequests.next_updates`; the first call admits and begins. Raises GenerationTimeout at the deadline.

        Cancelled, it is not to be called again before the first output has come.
        """
        try:
            if self.heard:
                updates = await self.answer.next_updates()
                self.note_output()
                return updates
            return await self._first_updates()
        except SmgError as error:
            self._observer.generation_failed(self, error)
            raise

    def failed(self, error: SmgError) -> None:
        """What was read past `next_updates` ended with an error."""
        self.answer.fail_leases(error)
        self._observer.generation_failed(self, error)

    async def _first_updates(self) -> list[Update]:
        """Admit and try until there is output. The session is admitted once, however many attempts it takes."""
        gateway = self.gateway
        waited_from = trio.current_time()
        self._permit = await gateway.admission.admit()
        attempts = Attempts(gateway.random)
        cause: SmgError | None = None
        while True:
            if self._expired is not None:
                # The deadline passed while it waited to be admitted, or between two attempts: it could only fail the
                # attempt before, which is not read any more.
                raise self._expired
            try:
                await self.answer.begin(gateway.registry, routing_key=self._routing_key, avoid=attempts.avoid)
                self._observer.sent(waited_from, trio.current_time())
                updates = await self.answer.next_updates()
            except NoReadyWorker as error:
                # No worker is left to try: then the client is to know what ended the last attempt, not that.
                raise cause or error from None
            except SmgError as error:
                # Nothing of this attempt has been shown, so another one can take its place unnoticed.
                cause = error
                waited_from = trio.current_time()
                await self._pause_before_retry(attempts, error)
            else:
                self.heard = True
                self.answer.release()
                if not self.answer.pooled:  # whose first output is the whole answer, not the first of many
                    self._observer.first_output(trio.current_time())
                return updates

    async def _pause_before_retry(self, attempts: Attempts, error: SmgError) -> None:
        """Raises `error` if another attempt cannot help."""
        failed = self.answer.worker_ids
        delay_s = attempts.failed(error, failed, self.gateway.registry.retry_schedule(failed))
        if delay_s is None:
            if attempts.exhausted(error):
                self.metrics.retries_exhausted()
            raise error
        self._observer.retried(attempts.made, error, delay_s)
        logger.info("attempt %d failed (%s); trying again", attempts.made, error.message, extra=about(self.answer))
        await trio.sleep(delay_s)
        self.answer = self.answer.again()

    def close(self) -> None:
        """Abort what still runs, and note the end; idempotent, never blocks."""
        if self._closed:
            return
        self._closed = True
        self._deadline.cancel()
        answer = self.answer
        answer.close()
        answer.release()
        if self._permit is not None:
            self._permit.close()
        self.gateway.answer_ends(self)
        self._observer.generation_ended(self, answer.usage(), answer.worker_urls, trio.current_time())


def about(answer: AnyAnswer) -> dict[str, object]:
    """What a log line about an answer carries beside its words."""
    return {"fields": {"worker": ",".join(sorted(answer.worker_urls))}}


class Fold(Protocol):
    """Gathers an answer into one body."""

    def feed(self, update: ChoiceUpdate) -> None:
        """Take an update."""
        ...

    def body(self, usage: Usage) -> bytes:
        """The whole answer."""
        ...


async def fold_answer(session: GenerationSession[ChoiceUpdate], fold: Fold) -> bytes:
    """Wait for the whole answer and return its body. Raises SmgError; cancelled or not, nothing is left running."""
    try:
        while not session.answer.finished:
            for update in await session.next_updates():
                fold.feed(update)
        return fold.body(session.answer.usage())
    finally:
        session.close()
