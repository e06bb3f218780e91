"""Prometheus metrics. Counters are counted per request, never per token; gauges are read from the workers when scraped.

Names and labels are the reference gateway's where it has them; `connection_mode` is always "zmq" here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.core.events import Usage
from smg_trio.core.workers import WorkerState
from smg_trio.routing.registry import Registry

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WORKER_LABELS = ("worker_type", "connection_mode", "model")
_ROUTER_LABELS = ("router_type", "backend_type", "connection_mode", "model", "endpoint")
_MODE = "zmq"
Family = TypeVar("Family", Counter, Histogram)


class Metrics:
    """All metrics of one gateway, on a registry of their own."""

    def __init__(self, workers: Registry) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[object, tuple[str, ...]], Counter | Histogram] = {}
        self.registry.register(_WorkerGauges(workers))
        make = self.registry
        self._http_responses = Counter(
            "smg_http_responses",
            "HTTP responses by route, status and error code.",
            ("path", "status_code", "error_code"),
            registry=make,
        )
        self._requests = Counter(
            "smg_router_requests", "Inference requests.", (*_ROUTER_LABELS, "streaming"), registry=make
        )
        self._errors = Counter(
            "smg_router_request_errors",
            "Inference requests that ended in an error.",
            (*_ROUTER_LABELS, "error_type"),
            registry=make,
        )
        self._duration = Histogram(
            "smg_router_request_duration_seconds",
            "From request to the last byte handed to the server.",
            _ROUTER_LABELS,
            buckets=_LATENCY_BUCKETS_S,
            registry=make,
        )
        self._ttft = Histogram(
            "smg_router_ttft_seconds",
            "From request to the first output of the engine.",
            _ROUTER_LABELS,
            buckets=_LATENCY_BUCKETS_S,
            registry=make,
        )
        self._tpot = Histogram(
            "smg_router_tpot_seconds",
            "Mean time per output token after the first.",
            _ROUTER_LABELS,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
            registry=make,
        )
        self._tokens = Counter(
            "smg_router_tokens", "Tokens in prompts and answers.", (*_ROUTER_LABELS, "token_type"), registry=make
        )

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
        labels = ("zmq", "regular", _MODE, model, endpoint)
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


class InferenceMetrics:
    """The measurements of one inference request; times are seconds of the loop's clock."""

    __slots__ = ("_first", "_labels", "_metrics")

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._metrics = metrics
        self._labels = labels
        self._first: float | None = None

    def first_output(self, started: float, now: float) -> None:
        """The first output came from the engine."""
        self._first = now
        self._metrics.note_first_output(self._labels, now - started)

    def failed(self, error_type: str) -> None:
        """The request ended in an error."""
        self._metrics.note_error(self._labels, error_type)

    def ended(self, started: float, now: float, usage: Usage) -> None:
        """The answer is over, complete or not."""
        since_first = None if self._first is None else now - self._first
        self._metrics.note_end(self._labels, now - started, since_first, usage)


class _WorkerGauges(Collector):
    """Reads the workers when Prometheus asks."""

    def __init__(self, workers: Registry) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        pool = GaugeMetricFamily("smg_worker_pool_size", "Workers registered.", labels=_WORKER_LABELS)
        selections = CounterMetricFamily(
            "smg_worker_selection", "Times a worker was chosen.", labels=(*_WORKER_LABELS, "policy", "worker")
        )
        health = GaugeMetricFamily("smg_worker_health", "1 if the worker is ready, else 0.", labels=("worker",))
        active = GaugeMetricFamily("smg_worker_requests_active", "Answers in flight.", labels=("worker",))
        engine = _engine_gauges()
        counts: dict[str, int] = {}
        for worker in self._workers.workers():
            spec = worker.spec
            counts[spec.model_id] = counts.get(spec.model_id, 0) + 1
            labels = ("regular", _MODE, spec.model_id, self._workers.policy_name, spec.url)
            selections.add_metric(labels, self._workers.selections(spec.worker_id))
            health.add_metric((spec.url,), float(worker.state is WorkerState.READY))
            active.add_metric((spec.url,), self._workers.load(spec.worker_id))
            for rank in worker.snapshot().ranks:
                rank_labels = (spec.url, spec.model_id, str(rank.rank))
                engine["running"].add_metric(rank_labels, rank.load.running)
                engine["waiting"].add_metric(rank_labels, rank.load.waiting)
                engine["usage"].add_metric(rank_labels, rank.load.kv_usage)
                engine["in_flight"].add_metric(rank_labels, rank.in_flight)
        for model, count in counts.items():
            pool.add_metric(("regular", _MODE, model), count)
        yield from (pool, selections, health, active, *engine.values())


def _engine_gauges() -> dict[str, GaugeMetricFamily]:
    labels = ("worker", "model", "dp_rank")
    return {
        "running": GaugeMetricFamily("smg_engine_running_requests", "Running, by the engine's word.", labels=labels),
        "waiting": GaugeMetricFamily("smg_engine_waiting_requests", "Waiting, by the engine's word.", labels=labels),
        "usage": GaugeMetricFamily("smg_engine_token_usage", "Share of the KV cache in use, 0..1.", labels=labels),
        "in_flight": GaugeMetricFamily("smg_engine_inflight_requests", "In flight, by our count.", labels=labels),
    }
