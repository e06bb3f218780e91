"""One relayed request from admission to its end: tried at another worker where that helps, limited in time, observed.

A worker is tried again only before the first byte of its response is passed on: no connection, a connection that ends
without a response, a refused key, and (if another worker is free) 429, 502, 503 and 504. What a worker answers after
the last attempt goes to the client as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core.errors import NoReadyWorker, SmgError
from smg_trio.gateway.generation.session import GenerationTimeout
from smg_trio.gateway.observability.observer import Observers, Phase
from smg_trio.gateway.relay.answer import RelayedAnswer
from smg_trio.routing.retries import Attempts
from smg_trio.upstream.client import UpstreamRequest
from smg_trio.upstream.discovery import read_refusal
from smg_trio.upstream.errors import UpstreamAnswered, UpstreamBusy, UpstreamKeyRefused, UpstreamTooLarge

if TYPE_CHECKING:
    from smg_trio.gateway.request_context import RequestContext
    from smg_trio.gateway.state import Gateway
    from smg_trio.routing.admission import Permit
    from smg_trio.routing.lease import HttpLease
    from smg_trio.upstream.client import Exchange
    from smg_trio.upstream.response_reader import ResponseHead

logger = logging.getLogger("smg_trio.gateway")

MAX_ERROR_BYTES: Final = 1024 * 1024
MAX_BODY_BYTES: Final = 256 * 1024 * 1024
_SENT: Final = UpstreamRequest(method="GET", path="/")
_BUSY: Final = frozenset({429, 502, 503, 504})
_KEY_REFUSED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """A request that is going to be relayed.

    Attributes:
        endpoint: which API, in a word.
        model: as workers name it; "" for a request about something that a worker keeps.
        text: see `routing_text`.
        request: for the worker, without its key.
        stream: server-sent events are asked for.
        asked_tokens: the most tokens that may be generated, as far as the request says so.
        generation: it is admitted, measured and limited in time, as what engines answer is.
        pooled: see `EngineRequests.pooled`.
        routing_key: see `Registry.lease`.
        pinned: URL of the only worker that can answer.
        failed: what ends a stream that fails.
    """

    endpoint: str
    model: str
    text: bytes
    request: UpstreamRequest
    stream: bool
    asked_tokens: int
    generation: bool
    pooled: bool
    routing_key: str | None
    pinned: str | None
    failed: Callable[[SmgError], bytes]


class RelaySession:
    """Nothing is sent before `open`. Close it on every path; that never blocks, and ends what the worker does for it.

    Attributes:
        answer: see `RelayedAnswer`.
        heard: the response has begun, so there are no more attempts.
        request_id, endpoint, streaming: see `Generation`.
        metrics, started: see `InFlightGeneration`.
        note_output: to be called at every further read of a stream.
    """

    def __init__(self, gateway: Gateway, context: RequestContext, plan: RelayPlan, started: float) -> None:
        """Raises BudgetExceeded; then there is nothing to close."""
        self.gateway = gateway
        self.plan = plan
        self.request_id = context.request_id
        self.endpoint = plan.endpoint
        self.streaming = plan.stream
        self.started = started
        self.heard = False
        self.exchange: Exchange | None = None
        self.answer = RelayedAnswer(plan.model, context.request_id, plan.asked_tokens, pooled=plan.pooled)
        self._lease: HttpLease | None = None
        self._permit: Permit | None = None
        self._expired: GenerationTimeout | None = None
        self._observer = Observers()
        self._closed = False
        self._ready_body: bytes | None = None
        if not plan.generation:
            self.note_output: Callable[[], None] = lambda: None
            return
        context.check_budget(self.answer)
        self.answer.counts_events = context.slot is not None and context.holder.limits.tokens_per_minute is not None
        self.metrics = gateway.metrics.generation_begins(
            plan.model, plan.endpoint, streaming=plan.stream, started=started, over_http=True
        )
        self.note_output = self.metrics.note_output
        self._observer = Observers((self.metrics, gateway.errors, *context.observer.members))
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
        if self.exchange is not None:
            self.exchange.fail(self._expired)

    # ---- until the response begins --------------------------------------------------------------------

    async def open(self) -> ResponseHead:
        """Admit, send, and try again where that helps, until a response has begun that is the client's.

        Raises SmgError.
        """
        try:
            return await self._open()
        except SmgError as error:
            self._observer.generation_failed(self, error)
            raise

    async def _open(self) -> ResponseHead:
        waited_from = trio.current_time()
        if self.plan.generation:
            self._permit = await self.gateway.admission.admit()
        attempts = Attempts(self.gateway.random)
        cause: SmgError | None = None
        while True:
            if self._expired is not None:
                raise self._expired
            try:
                lease = self._choose(attempts)
            except NoReadyWorker as error:
                raise cause or error from None
            self._observer.sent(waited_from, trio.current_time())
            try:
                head = await self._ask(lease, attempts)
            except SmgError as error:
                self._give_back(error)
                cause = error
                waited_from = trio.current_time()
                await self._pause_before_retry(attempts, error, lease.worker.spec.worker_id)
            else:
                self.heard = True
                self.plan = replace(self.plan, request=_SENT)  # a stream outlives its request by far
                return head

    def _choose(self, attempts: Attempts) -> HttpLease:
        plan, registry = self.plan, self.gateway.registry
        if plan.pinned is None:
            lease = registry.http.lease(plan.model, plan.text, routing_key=plan.routing_key, avoid=attempts.avoid)
        else:
            pinned = registry.http.lease_pinned(plan.pinned)
            if pinned is None:
                raise NoReadyWorker("The worker that keeps the response is not ready; try again later.")
            lease = pinned
        self._lease = self.answer.lease = lease
        return lease

    async def _ask(self, lease: HttpLease, attempts: Attempts) -> ResponseHead:
        """Send the request and look at the head of the response. Raises what another attempt may help against."""
        worker, request = lease.worker, self.plan.request
        exchange = self.exchange = worker.begin(worker.with_key(request))
        head = await exchange.start()
        if head.status in _KEY_REFUSED:
            worker.refused_key(head.status)
            raise UpstreamKeyRefused(f"Worker {worker.spec.worker_id} refuses the key that this gateway has for it.")
        if head.status in _BUSY:
            body = await self._read_whole(exchange, MAX_ERROR_BYTES)
            shuts_down = read_refusal(body)[0] == "shutting_down"
            if shuts_down:
                worker.shuts_down()
            if self._another(attempts, worker.spec.worker_id):
                if head.status == 429 or shuts_down:
                    lease.close()  # without a word on it
                raise UpstreamBusy(f"Worker {worker.spec.worker_id} answered {head.status}.")
            self._ready_body = body
        return head

    def _another(self, attempts: Attempts, worker_id: str) -> bool:
        """Whether another worker would take the request, and there is an attempt left for it."""
        left = attempts.made + 1 < self.gateway.registry.retry_schedule([worker_id]).max_attempts
        return (
            left and self.plan.pinned is None
            and self.gateway.registry.http.can_take(self.plan.model, attempts.avoid | {worker_id})
        )  # fmt: skip

    def _give_back(self, error: SmgError) -> None:
        """The attempt has failed: end it at its worker."""
        lease, self._lease = self._lease, None
        if lease is not None:
            if self.exchange is not None:
                lease.worker.leave(self.exchange)
            lease.worker.suspect(error)
            lease.failed(error)
            lease.close()

    async def _pause_before_retry(self, attempts: Attempts, error: SmgError, worker_id: str) -> None:
        """Raises `error` if another attempt cannot help."""
        helpless = isinstance(error, UpstreamKeyRefused) and not self._another(attempts, worker_id)
        delay_s = attempts.failed(error, [worker_id], self.gateway.registry.retry_schedule([worker_id]))
        if delay_s is None or helpless:
            if attempts.exhausted(error) and self.plan.generation:
                self.metrics.retries_exhausted()
            raise error
        self._observer.retried(attempts.made, error, delay_s)
        about = {"fields": {"worker": ",".join(self.answer.worker_urls)}}
        logger.info("attempt %d failed (%s); trying again", attempts.made, error.message, extra=about)
        await trio.sleep(delay_s)

    # ---- from then on ---------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """See `Exchange.read`; its errors are noted."""
        assert self.exchange is not None, "it is open"
        try:
            return await self.exchange.read()
        except SmgError as error:
            self.failed(error)
            raise

    async def whole(self, head: ResponseHead) -> bytes:
        """All of the body. Raises SmgError, UpstreamTooLarge among them."""
        assert self.exchange is not None, "it is open"
        body = self._ready_body
        if body is None:
            limit = MAX_BODY_BYTES if head.status < 400 else MAX_ERROR_BYTES
            try:
                body = await self._read_whole(self.exchange, limit)
            except SmgError as error:
                self.failed(error)
                raise
        self.answer.body = body
        self.succeeded(head.status)
        return body

    async def _read_whole(self, exchange: Exchange, limit: int) -> bytes:
        pieces, size = [], 0
        while not exchange.complete:
            pieces.append(await exchange.read())
            size += len(pieces[-1])
            if size > limit:
                raise UpstreamTooLarge(f"The worker's response is larger than {limit} bytes.")
        return b"".join(pieces)

    def first_read(self) -> None:
        """The first bytes of a stream have come."""
        self._observer.first_output(trio.current_time())

    def succeeded(self, status: int) -> None:
        """The response is complete; its status may still speak against the worker."""
        self.answer.finished = True
        if self._lease is None:
            return
        if status < 500:
            if status != 429:
                self._lease.succeeded()
            return
        error = UpstreamAnswered(f"Worker {self._lease.worker.spec.worker_id} answered {status}.")
        self._lease.failed(error)
        self._observer.generation_failed(self, error)

    def failed(self, error: SmgError) -> None:
        """The response cannot be read to its end."""
        if self._lease is not None:
            self._lease.failed(error)
            self._lease.worker.suspect(error)
        self._observer.generation_failed(self, error)

    def close(self) -> None:
        """End it at the worker unless it is complete, and note the end; idempotent, never blocks."""
        if self._closed:
            return
        self._closed = True
        lease, self._lease = self._lease, None
        if lease is not None:
            if self.exchange is not None:
                lease.worker.leave(self.exchange)
            lease.close()
        if self._permit is not None:
            self._permit.close()
        if self.plan.generation:
            self._deadline.cancel()
            self.answer.read_usage()
            self.gateway.answer_ends(self)
            self._observer.generation_ended(self, self.answer.usage(), self.answer.worker_urls, trio.current_time())
