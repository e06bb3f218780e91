"""Prometheus metrics. Counters are counted per request, never per token; gauges are read from the workers when scraped.

Names and labels are the reference gateway's where it has them; `connection_mode` is always "zmq" here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from smg_trio.core.events import Usage
from smg_trio.gateway.encoding_counters import EncodingCounters
from smg_trio.gateway.worker_gauges import MODE, ResilienceGauges, WorkerGauges
from smg_trio.pipeline.encoding_cache import EncodingCache
from smg_trio.routing.admission import AdmissionQueue
from smg_trio.routing.registry import Registry

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_ROUTER_LABELS = ("router_type", "backend_type", "connection_mode", "model", "endpoint")
_RETRY_LABELS = ("worker_type", "endpoint")
RECENT_ANSWERS = 4096
Family = TypeVar("Family", Counter, Histogram)


class Metrics:
    """All metrics of one gateway, on a registry of their own.

    Attributes:
        recent: the last answers that have ended, oldest first: what percentiles are made of while somebody looks.
    """

    def __init__(self, workers: Registry, admission: AdmissionQueue, encodings: EncodingCache) -> None:
        self.registry = CollectorRegistry()
        self.recent: deque[InferenceMetrics] = deque(maxlen=RECENT_ANSWERS)
        self._children: dict[tuple[object, tuple[str, ...]], Counter | Histogram] = {}
        self.registry.register(WorkerGauges(workers))
        self.registry.register(ResilienceGauges(workers, admission))
        self.registry.register(EncodingCounters(encodings))
        self._http_responses = self._counter(
            "smg_http_responses",
            "HTTP responses by route, status and error code.",
            ("path", "status_code", "error_code"),
        )
        self._requests = self._counter("smg_router_requests", "Inference requests.", (*_ROUTER_LABELS, "streaming"))
        self._errors = self._counter(
            "smg_router_request_errors", "Inference requests that ended in an error.", (*_ROUTER_LABELS, "error_type")
        )
        self._duration = self._histogram(
            "smg_router_request_duration_seconds", "From request to the last byte handed to the server."
        )
        self._ttft = self._histogram("smg_router_ttft_seconds", "From request to the first output of the engine.")
        self._tpot = self._histogram(
            "smg_router_tpot_seconds", "Mean time per output token after the first.", buckets=_PER_TOKEN_BUCKETS_S
        )
        self._tokens = self._counter(
            "smg_router_tokens", "Tokens in prompts and answers.", (*_ROUTER_LABELS, "token_type")
        )
        self._retries = self._counter("smg_worker_retries", "Further attempts at requests.", _RETRY_LABELS)
        self._exhausted = self._counter(
            "smg_worker_retries_exhausted", "Requests that failed at their last attempt.", _RETRY_LABELS
        )
        self._backoff = self._histogram(
            "smg_worker_retry_backoff_seconds", "Delays before further attempts.", ("attempt",)
        )

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _histogram(
        self,
        name: str,
        meaning: str,
        labels: tuple[str, ...] = _ROUTER_LABELS,
        buckets: tuple[float, ...] = _LATENCY_BUCKETS_S,
    ) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)

    def _child(self, metric: Family, *labels: str) -> Family:
        """The series of these labels. The library takes a lock and a copy to find it; a dict does not."""
        key = (metric, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return cast(Family, child)

    def exposition(self) -> bytes:
        """All metrics as Prometheus text."""
        return generate_latest(self.registry)

    def http_response(self, path: str, status: int, error_code: str) -> None:
        """Count a response; `path` is a route template, so series stay bounded."""
        self._child(self._http_responses, path, str(status), error_code).inc()

    def inference_begins(self, model: str, endpoint: str, *, streaming: bool) -> InferenceMetrics:
        """Count an inference request and return what the rest of it is noted on."""
        labels = ("zmq", "regular", MODE, model, endpoint)
        self._child(self._requests, *labels, "true" if streaming else "false").inc()
        return InferenceMetrics(self, labels)

    def note_error(self, labels: tuple[str, ...], error_type: str) -> None:
        """Count a failed inference request."""
        self._child(self._errors, *labels, error_type).inc()

    def note_first_output(self, labels: tuple[str, ...], seconds: float) -> None:
        """Note a time to first token."""
        self._child(self._ttft, *labels).observe(seconds)

    def note_end(self, labels: tuple[str, ...], seconds: float, since_first: float | None, usage: Usage) -> None:
        """Note a whole answer."""
        self._child(self._duration, *labels).observe(seconds)
        self._child(self._tokens, *labels, "input").inc(usage.prompt_tokens)
        self._child(self._tokens, *labels, "output").inc(usage.completion_tokens)
        if since_first is not None and usage.completion_tokens > 1:
            self._child(self._tpot, *labels).observe(since_first / (usage.completion_tokens - 1))

    def note_retry(self, endpoint: str, attempt: int, delay_s: float) -> None:
        """Count a further attempt, made `delay_s` seconds after the `attempt`-th one failed."""
        self._child(self._retries, "regular", endpoint).inc()
        self._child(self._backoff, str(attempt)).observe(delay_s)

    def note_exhausted(self, endpoint: str) -> None:
        """Count a request that failed at its last attempt."""
        self._child(self._exhausted, "regular", endpoint).inc()


class InferenceMetrics:
    """The measurements of one inference request; times are seconds of the loop's clock.

    Attributes:
        failure: what it failed with, an error's code; "" while it has not.
        first_at, ttft_s: when the first output came, and how long after the request; None before.
        duration_s, ended_at, usage, worker_urls: set at the end.
    """

    __slots__ = (
        "_labels",
        "_metrics",
        "duration_s",
        "ended_at",
        "failure",
        "first_at",
        "ttft_s",
        "usage",
        "worker_urls",
    )
    duration_s: float
    ended_at: float
    usage: Usage
    worker_urls: Collection[str]

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._metrics = metrics
        self._labels = labels
        self.first_at: float | None = None
        self.ttft_s: float | None = None
        self.failure = ""

    @property
    def model(self) -> str:
        """The model's id."""
        return self._labels[-2]

    @property
    def endpoint(self) -> str:
        """Which API was asked, in a word."""
        return self._labels[-1]

    @property
    def inter_token_s(self) -> float | None:
        """Mean time per token after the first, of an answer that has ended; None if there were fewer than two."""
        if self.ttft_s is None or self.usage.completion_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.usage.completion_tokens - 1)

    def first_output(self, started: float, now: float) -> None:
        """The first output came from the engine."""
        self.first_at = now
        self.ttft_s = now - started
        self._metrics.note_first_output(self._labels, self.ttft_s)

    def retried(self, attempt: int, delay_s: float) -> None:
        """The `attempt`-th attempt failed; another one follows after `delay_s`."""
        self._metrics.note_retry(self._labels[-1], attempt, delay_s)

    def retries_exhausted(self) -> None:
        """The last attempt failed, of several."""
        self._metrics.note_exhausted(self._labels[-1])

    def failed(self, error_type: str) -> None:
        """The request ended in an error."""
        self.failure = error_type
        self._metrics.note_error(self._labels, error_type)

    def ended(self, started: float, now: float, usage: Usage, worker_urls: Collection[str] = ()) -> None:
        """The answer is over, complete or not; `worker_urls` are of those that made it."""
        since_first = None if self.first_at is None else now - self.first_at
        self.duration_s, self.ended_at, self.usage, self.worker_urls = now - started, now, usage, worker_urls
        self._metrics.note_end(self._labels, self.duration_s, since_first, usage)
        self._metrics.recent.append(self)
