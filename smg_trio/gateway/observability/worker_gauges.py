"""Metrics that are read from the workers and the admission queue when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.core.workers import RankPhase, WorkerState
from smg_trio.routing.breaker import BreakerState, BreakerStatistics

if TYPE_CHECKING:
    from smg_trio.routing.admission import AdmissionQueue
    from smg_trio.routing.registry import Registry

MODE = {False: "zmq", True: "http"}
"""`WorkerSpec.over_http` → connection mode."""
_WORKER_LABELS = ("worker_type", "connection_mode", "model")
_BREAKER_STATES = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}


class WorkerGauges(Collector):
    """What the workers and their engines do."""

    def __init__(self, workers: Registry) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        pool = GaugeMetricFamily("smg_worker_pool_size", "Workers registered.", labels=_WORKER_LABELS)
        selections = CounterMetricFamily(
            "smg_worker_selection", "Times a worker was chosen.", labels=(*_WORKER_LABELS, "policy", "worker")
        )
        health = GaugeMetricFamily("smg_worker_health", "1 if the worker is ready, else 0.", labels=("worker",))
        errors = CounterMetricFamily(
            "smg_worker_errors",
            "Requests at a worker that its engines failed.",
            labels=(*_WORKER_LABELS[:2], "worker", "error_type"),
        )
        active = GaugeMetricFamily("smg_worker_requests_active", "Requests in flight.", labels=("worker",))
        refused = CounterMetricFamily(
            "smg_zmq_refused_messages",
            "Messages to a worker's sockets that were ignored: strangers, or engines that speak something else.",
            labels=("worker", "socket"),
        )
        engine = _engine_gauges()
        counts: dict[tuple[str, str], int] = {}
        for worker in self._workers.all_workers():
            spec, snapshot = worker.spec, worker.snapshot()
            mode, model = MODE[spec.over_http], snapshot.model_id
            counts[mode, model] = counts.get((mode, model), 0) + 1
            labels = ("regular", mode, model, self._workers.policy_name, spec.url)
            selections.add_metric(labels, self._workers.selections(spec.worker_id))
            health.add_metric((spec.url,), float(worker.state is WorkerState.READY))
            active.add_metric((spec.url,), self._workers.load(spec.worker_id))
            for code, count in self._workers.errors(spec.worker_id).items():
                errors.add_metric(("regular", mode, spec.url, code), count)
            for socket, count in snapshot.refused.items():
                refused.add_metric((spec.url, socket), count)
            for rank in snapshot.ranks:
                rank_labels = (spec.url, spec.model_id, str(rank.rank))
                engine["ready"].add_metric(rank_labels, float(rank.phase is RankPhase.READY))
                engine["losses"].add_metric(rank_labels, rank.losses)
                engine["running"].add_metric(rank_labels, rank.load.running)
                engine["waiting"].add_metric(rank_labels, rank.load.waiting)
                engine["usage"].add_metric(rank_labels, rank.load.kv_usage)
                engine["in_flight"].add_metric(rank_labels, rank.in_flight)
        for (mode, model), count in counts.items():
            pool.add_metric(("regular", mode, model), count)
        yield from (pool, selections, health, errors, active, refused, _probes(self._workers.probes), *engine.values())


def _probes(seen: Mapping[bool, int]) -> CounterMetricFamily:
    probes = CounterMetricFamily("smg_worker_health_checks", "Probes of all workers.", labels=("worker_type", "result"))
    for alive, count in seen.items():
        probes.add_metric(("regular", "success" if alive else "failure"), count)
    return probes


def _engine_gauges() -> dict[str, GaugeMetricFamily | CounterMetricFamily]:
    labels = ("worker", "model", "dp_rank")
    return {
        "ready": GaugeMetricFamily("smg_engine_ready", "1 if the engine takes requests, else 0.", labels=labels),
        "losses": CounterMetricFamily("smg_engine_losses", "Engines lost: died or given up.", labels=labels),
        "running": GaugeMetricFamily(
            "smg_engine_running_requests", "Running requests the engine reports.", labels=labels
        ),
        "waiting": GaugeMetricFamily(
            "smg_engine_waiting_requests", "Waiting requests the engine reports.", labels=labels
        ),
        "usage": GaugeMetricFamily("smg_engine_token_usage", "Share of the KV cache in use, 0..1.", labels=labels),
        "in_flight": GaugeMetricFamily(
            "smg_engine_inflight_requests", "Requests in flight, counted by the gateway.", labels=labels
        ),
    }


class ResilienceGauges(Collector):
    """Breakers, overload protection, admission."""

    def __init__(self, workers: Registry, admission: AdmissionQueue) -> None:
        self._workers = workers
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from self._breakers()
        yield from self._overload()
        yield from self._admissions()

    def _breakers(self) -> Iterator[Metric]:
        families = _breaker_families()
        for worker in self._workers.all_workers():
            breaker = self._workers.breaker(worker.spec.worker_id)
            if breaker is not None:
                _add_breaker(families, worker.spec.url, breaker)
        yield from families.values()

    def _overload(self) -> Iterator[Metric]:
        overloaded = GaugeMetricFamily(
            "smg_workers_overloaded", "Workers whose engines report an overload.", labels=("model",)
        )
        counts: dict[str, int] = {}
        for worker in self._workers.all_workers():
            model = worker.snapshot().model_id
            counts[model] = counts.get(model, 0) + self._workers.overloaded(worker.spec.worker_id)
        for model, count in counts.items():
            overloaded.add_metric((model,), count)
        shed = CounterMetricFamily(
            "smg_worker_overload_shed", "Requests refused because every worker was overloaded.", labels=("stage",)
        )
        shed.add_metric(("selection",), self._workers.shed)
        fallback = CounterMetricFamily(
            "smg_worker_overload_fallback",
            "Requests that the least loaded worker took though every worker was overloaded.",
            labels=("stage",),
        )
        fallback.add_metric(("selection",), self._workers.overload_fallbacks)
        yield from (overloaded, shed, fallback)

    def _admissions(self) -> Iterator[Metric]:
        seen = self._admission.statistics()
        rejected = CounterMetricFamily(
            "smg_admission_queue_rejected", "Requests that found no free slot.", labels=("reason",)
        )
        rejected.add_metric(("full",), seen.refused_full)
        rejected.add_metric(("timeout",), seen.refused_timeout)
        results = CounterMetricFamily("smg_http_rate_limit", "Requests admitted or refused.", labels=("result",))
        results.add_metric(("allowed",), seen.admitted)
        results.add_metric(("rejected",), seen.refused_full + seen.refused_timeout)
        if seen.limit is not None:
            yield GaugeMetricFamily("smg_admission_limit", "Admission slots.", value=seen.limit)
        yield GaugeMetricFamily("smg_admission_queue_limit", "Admission queue capacity.", value=seen.queue_size)
        yield GaugeMetricFamily("smg_admission_inflight", "Requests that hold a slot.", value=seen.in_flight)
        yield GaugeMetricFamily("smg_admission_queue_depth", "Requests that wait for a slot.", value=seen.waiting)
        yield from (rejected, results)


def _breaker_families() -> dict[str, GaugeMetricFamily | CounterMetricFamily]:
    gauge, counter, name = GaugeMetricFamily, CounterMetricFamily, "smg_worker_cb_"
    return {
        "state": gauge(f"{name}state", "Circuit breaker: 0 closed, 1 open, 2 half open.", labels=("worker",)),
        "failures": gauge(f"{name}consecutive_failures", "Failures in a row, while closed.", labels=("worker",)),
        "successes": gauge(f"{name}consecutive_successes", "Successes in a row, while half open.", labels=("worker",)),
        "transitions": counter(f"{name}transitions", "Changes of state.", labels=("worker", "from", "to")),
        "outcomes": counter(f"{name}outcomes", "Requests by their word on the worker.", labels=("worker", "outcome")),
    }


def _add_breaker(
    families: dict[str, GaugeMetricFamily | CounterMetricFamily], url: str, breaker: BreakerStatistics
) -> None:
    families["state"].add_metric((url,), _BREAKER_STATES[breaker.state])
    families["failures"].add_metric((url,), breaker.failures)
    families["successes"].add_metric((url,), breaker.successes)
    for (before, after), count in breaker.transitions.items():
        families["transitions"].add_metric((url, before.value, after.value), count)
    for ok, count in breaker.judged.items():
        families["outcomes"].add_metric((url, "success" if ok else "failure"), count)
