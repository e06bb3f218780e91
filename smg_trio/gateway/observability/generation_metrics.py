"""What is measured of one inference request, from its arrival to the end of its answer.

```
started ── preparation ── begun ── queue ── sent ── prefill ── first output ── decode ── ended
```
Nothing is looked up while an answer runs: its series are found once per model and endpoint. A wake-up costs one look at
the clock and one count (`GenerationMetrics.note_output`), which the reader of the answer calls directly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from smg_trio.gateway.observability.observer import Generation, RequestObserver
from smg_trio.gateway.observability.series import LATENCY_BUCKETS_S, PER_TOKEN_BUCKETS_S, CounterFamily, HistogramFamily
from smg_trio.gateway.observability.worker_gauges import MODE

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from smg_trio.core.errors import SmgError
    from smg_trio.core.events import Usage

_ROUTER: Final = "zmq"
_LABELS: Final = ("router_type", "backend_type", "connection_mode", "model", "endpoint")
_RETRY_LABELS: Final = ("worker_type", "endpoint")
_WORKER_TYPE: Final = "regular"
STAGES: Final = ("preparation", "queue", "prefill", "decode")
RECENT_ANSWERS: Final = 4096


class RouterFamilies:
    """The families of inference requests.

    Attributes:
        recent: the last answers that have ended, oldest first.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        bounds: Sequence[float] = LATENCY_BUCKETS_S,
        gap_bounds: Sequence[float] = PER_TOKEN_BUCKETS_S,
    ) -> None:
        """Bounds are upper ones, in seconds: of the buckets of everything but times per token, and of `itl`."""

        def counter(name: str, meaning: str, *labels: str) -> CounterFamily:
            return CounterFamily(registry, f"smg_router_{name}", meaning, (*_LABELS, *labels))

        def histogram(name: str, meaning: str) -> HistogramFamily:
            return HistogramFamily(registry, f"smg_router_{name}_seconds", meaning, _LABELS, bounds)

        def per_token(name: str, meaning: str, bounds: Sequence[float] = PER_TOKEN_BUCKETS_S) -> HistogramFamily:
            return HistogramFamily(registry, f"smg_router_{name}_seconds", meaning, _LABELS, bounds)

        self.requests = counter("requests", "Inference requests.", "streaming")
        self.errors = counter("request_errors", "Inference requests that ended in an error.", "error_type")
        self.tokens = counter("tokens", "Tokens in prompts and answers, counted while answers run.", "token_type")
        self.cached = counter("cached_tokens", "Prompt tokens that engines took from their prefix caches.")
        self.duration = histogram("request_duration", "From request to the last byte handed to the server.")
        self.ttft = histogram("ttft", "From request to the first output of the engine.")
        self.generation = histogram("generation_duration", "From the engine's first output to the end.")
        self.tpot = per_token("tpot", "Mean time per output token after the first, one value per answer.")
        gaps = "Time between two outputs of an answer as it gets them, mostly of a token each."
        self.itl = per_token("itl", gaps, gap_bounds)
        self.stages = HistogramFamily(
            registry,
            "smg_router_stage_duration_seconds",
            "Stages of inference requests: preparation (to the prompt's token ids), queue (for a slot, and between "
            "attempts), prefill (sent to first output), decode (first output to the end).",
            ("router_type", "stage"),
            bounds,
        )
        self.retries = CounterFamily(registry, "smg_worker_retries", "Retries of requests.", _RETRY_LABELS)
        self.exhausted = CounterFamily(
            registry, "smg_worker_retries_exhausted", "Requests that failed at their last attempt.", _RETRY_LABELS
        )
        self.backoff = HistogramFamily(
            registry, "smg_worker_retry_backoff_seconds", "Delays before retries.", ("attempt",), bounds
        )
        self.recent: deque[GenerationMetrics] = deque(maxlen=RECENT_ANSWERS)

    def forget(self, model: str) -> None:
        """Drop every series of a model."""
        for family in (self.requests, self.errors, self.tokens, self.cached):
            family.drop("model", model)
        for timing in (self.duration, self.ttft, self.generation, self.tpot, self.itl):
            timing.drop("model", model)


class EndpointSeries:
    """The series of one model at one endpoint, all from 0."""

    __slots__ = (
        "_families",
        "_labels",
        "cached",
        "decode",
        "duration",
        "endpoint",
        "generation",
        "input",
        "itl",
        "model",
        "output",
        "prefill",
        "preparation",
        "queue",
        "requests",
        "tpot",
        "ttft",
    )

    def __init__(self, families: RouterFamilies, model: str, endpoint: str, *, over_http: bool = False) -> None:
        self._families = families
        self.model, self.endpoint = model, endpoint
        labels = self._labels = (_ROUTER, "regular", MODE[over_http], model, endpoint)
        self.requests = (families.requests.at(*labels, "false"), families.requests.at(*labels, "true"))
        self.input = families.tokens.at(*labels, "input")
        self.output = families.tokens.at(*labels, "output")
        self.cached = families.cached.at(*labels)
        self.duration = families.duration.at(*labels)
        self.ttft = families.ttft.at(*labels)
        self.generation = families.generation.at(*labels)
        self.tpot = families.tpot.at(*labels)
        self.itl = families.itl.at(*labels)
        self.preparation, self.queue, self.prefill, self.decode = [
            families.stages.at(_ROUTER, stage) for stage in STAGES
        ]

    def failed(self, error_type: str) -> None:
        """Count an error."""
        self._families.errors.at(*self._labels, error_type).inc()

    def retried(self, attempt: int, delay_s: float) -> None:
        """Count a further attempt, made `delay_s` seconds after the `attempt`-th one failed."""
        self._families.retries.at(_WORKER_TYPE, self.endpoint).inc()
        self._families.backoff.at(str(attempt)).observe(delay_s)

    def retries_exhausted(self) -> None:
        """Count a request that failed at its last attempt, of several."""
        self._families.exhausted.at(_WORKER_TYPE, self.endpoint).inc()

    def ended(self, generation: GenerationMetrics) -> None:
        """Remember an answer that has ended."""
        self._families.recent.append(generation)


class GenerationMetrics(RequestObserver):
    """The measurements of one inference request; times are seconds of the loop's clock.

    Attributes:
        started: when it came.
        failure: what it failed with, an error's code; "" while it has not.
        first_at, ttft_s: when the first output came, and how long after the request; None before.
        duration_s, ended_at, usage, engines: set at the end.
    """

    __slots__ = (
        "_beaten_to",
        "_bounds",
        "_cached",
        "_gaps",
        "_input",
        "_last_beat",
        "_output",
        "_sent",
        "_series",
        "duration_s",
        "ended_at",
        "engines",
        "failure",
        "first_at",
        "started",
        "ttft_s",
        "usage",
    )
    duration_s: float
    ended_at: float
    usage: Usage
    engines: Collection[tuple[str, int]]

    def __init__(self, series: EndpointSeries, started: float) -> None:
        self._series = series
        self.started = started
        self.first_at: float | None = None
        self.ttft_s: float | None = None
        self.failure = ""
        self._sent: float | None = None
        self._input = self._output = self._cached = 0
        self._gaps, self._bounds = series.itl.counts, series.itl.bounds
        self._last_beat = self._beaten_to = 0.0

    @property
    def model(self) -> str:
        """The model's id."""
        return self._series.model

    @property
    def endpoint(self) -> str:
        """Which API was asked, in a word."""
        return self._series.endpoint

    @property
    def inter_token_s(self) -> float | None:
        """Mean time per token after the first, of an answer that has ended; None if there were fewer than two."""
        if self.ttft_s is None or self.usage.completion_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.usage.completion_tokens - 1)

    def begun(self, now: float) -> None:
        """Its prompt is ready."""
        self._series.preparation.observe(now - self.started)

    def sent(self, waited_from: float, now: float) -> None:
        """See `RequestObserver`."""
        self._sent = now
        self._series.queue.observe(now - waited_from)

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        series = self._series
        self.first_at = now
        self.ttft_s = now - self.started
        series.ttft.observe(self.ttft_s)
        if self._sent is not None:
            series.prefill.observe(now - self._sent)
        self._last_beat = self._beaten_to = perf_counter()

    def note_output(self) -> None:
        """Further output came. The gaps' sum is taken from the first and the last note_output, later."""
        now = perf_counter()
        self._gaps[bisect_left(self._bounds, now - self._last_beat)] += 1
        self._last_beat = now

    def retried(self, attempt: int, error: SmgError, delay_s: float) -> None:
        """See `RequestObserver`."""
        self._series.retried(attempt, delay_s)

    def retries_exhausted(self) -> None:
        """The last attempt of several has failed."""
        self._series.retries_exhausted()

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        self.failure = error.code
        self._series.failed(error.code)

    def catch_up(self, usage: Usage) -> None:
        """Count the tokens of an answer in flight that have not been counted; `usage` is what it has come to."""
        if self.first_at is not None:
            self._count(usage)

    def _count(self, usage: Usage) -> None:
        series = self._series
        series.input.value += usage.prompt_tokens - self._input
        series.output.value += usage.completion_tokens - self._output
        cached = usage.cached_tokens or 0
        series.cached.value += cached - self._cached
        self._input, self._output, self._cached = usage.prompt_tokens, usage.completion_tokens, cached
        series.itl.sum += self._last_beat - self._beaten_to
        self._beaten_to = self._last_beat

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        series = self._series
        series.ended(self)
        self.duration_s, self.ended_at = now - self.started, now
        self.usage, self.engines = usage, generation.answer.engines
        series.duration.observe(self.duration_s)
        self._count(usage)
        if self.first_at is None:
            return
        since_first = now - self.first_at
        series.generation.observe(since_first)
        series.decode.observe(since_first)
        if usage.completion_tokens > 1:
            series.tpot.observe(since_first / (usage.completion_tokens - 1))
