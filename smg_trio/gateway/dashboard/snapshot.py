"""What the feed sends: one JSON object about the whole gateway. Pure.

Schema 1, described in `docs/dashboard.md`:

```
{"type": "snapshot", "schema": 1, "sequence": n, "time": epoch seconds, "interval_s": 1.0,
 "gateway": {version, uptime_s, ready, reason, draining, ready_workers, workers, policy, models: [id],
             model_files: [{id, source, directory, revision}], memory_bytes, cpu_share, loop_lag_s},
 "admission": {in_flight, waiting, limit, admitted, refused},
 "rates": null | {input_tokens_per_s, output_tokens_per_s, answers_per_s},
 "latency": {window_s, answers, failed, ttft_s, inter_token_s, end_to_end_s: null | {p50, p90, p99}},
 "workers": [an object of GET /workers + tokens_per_s: null | {input, output} (of each rank, too), circuit_breaker,
              overloaded],
 "requests": {total, shown: [{id, model, endpoint, phase, age_s, workers, prompt_tokens, completion_tokens}]},
 "errors": [{time, status, code, message, endpoint, model, workers, request_id}]}
```

There is no text of prompts or answers in it, and no key. Errors' messages and names of models are other people's
words: clients that show them treat them as text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from smg_trio.api.workers import application_value, worker_value
from smg_trio.core.records import record

if TYPE_CHECKING:
    from smg_trio.core.events import Usage
    from smg_trio.core.workers import PendingWorker, WorkerSnapshot
    from smg_trio.gateway.dashboard.rates import Rates, TokenRate
    from smg_trio.gateway.observability.observer import Phase
    from smg_trio.gateway.observability.recent_errors import ErrorSeen
    from smg_trio.routing.admission import AdmissionStatistics

SCHEMA = 1
WINDOW_S = 60.0
"""Percentiles are of answers that ended within so many seconds."""
MAX_REQUESTS = 100
"""Answers in flight that are listed; the oldest, which are those one looks for."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class ModelFilesSeen(NamedTuple):
    """Where one model's files are from; `revision`: the repository's commit, None for a plain directory."""

    id: str
    source: str
    directory: str
    revision: str | None


@record
class WorkerSeen:
    """One worker. `load`: open leases; `circuit_breaker`: its state in a word, None where there is none."""

    snapshot: WorkerSnapshot
    load: int
    circuit_breaker: str | None
    overloaded: bool


@record
class AnswerSeen:
    """One answer in flight."""

    request_id: str
    model: str
    endpoint: str
    phase: Phase
    age_s: float
    worker_urls: Sequence[str]
    usage: Usage


@record
class LatencySample:
    """One answer that has ended. Seconds; None where there was no first, or no second token."""

    failed: bool
    ttft_s: float | None
    inter_token_s: float | None
    end_to_end_s: float


@record
class Observation:
    """The gateway at one moment.

    Attributes:
        time: seconds since the epoch.
        in_flight: how many answers are; `answers` holds the oldest of them.
        ended: answers that ended within the window.
        in_flight_ttft_s: times to first token of answers in flight that had it within the window.
        cpu_share: of one processor since the observation before; None at the first.
        loop_lag_s: how late a timer of the event loop was; None at the first.
    """

    time: float
    version: str
    uptime_s: float
    ready: bool
    reason: str
    draining: bool
    ready_workers: int
    policy: str
    models: Sequence[str]
    model_files: Sequence[ModelFilesSeen]
    memory_bytes: int
    cpu_share: float | None
    loop_lag_s: float | None
    admission: AdmissionStatistics
    workers: Sequence[WorkerSeen]
    applications: Sequence[PendingWorker]
    in_flight: int
    answers: Sequence[AnswerSeen]
    ended: Sequence[LatencySample]
    in_flight_ttft_s: Sequence[float]
    errors: Sequence[ErrorSeen]


def snapshot_value(seen: Observation, rates: Rates | None, *, sequence: int, interval_s: float) -> dict[str, Any]:
    """The object; see the module."""
    return {
        "type": "snapshot",
        "schema": SCHEMA,
        "sequence": sequence,
        "time": round(seen.time, 3),
        "interval_s": interval_s,
        "gateway": _gateway(seen),
        "admission": _admission(seen.admission),
        "rates": None if rates is None else _rates(rates),
        "latency": _latency(seen.ended, seen.in_flight_ttft_s),
        "workers": [
            *(_worker(worker, rates) for worker in seen.workers),
            *(application_value(application) for application in seen.applications),
        ],
        "requests": {"total": seen.in_flight, "shown": [_answer(answer) for answer in seen.answers]},
        "errors": [_error(error) for error in seen.errors],
    }


def _gateway(seen: Observation) -> dict[str, Any]:
    return {
        "version": seen.version,
        "uptime_s": round(seen.uptime_s, 1),
        "ready": seen.ready,
        "reason": seen.reason,
        "draining": seen.draining,
        "ready_workers": seen.ready_workers,
        "workers": len(seen.workers) + len(seen.applications),
        "policy": seen.policy,
        "models": list(seen.models),
        "model_files": [files._asdict() for files in seen.model_files],
        "memory_bytes": seen.memory_bytes,
        "cpu_share": None if seen.cpu_share is None else round(seen.cpu_share, 3),
        "loop_lag_s": None if seen.loop_lag_s is None else round(seen.loop_lag_s, 6),
    }


def _admission(seen: AdmissionStatistics) -> dict[str, Any]:
    return {
        "in_flight": seen.in_flight,
        "waiting": seen.waiting,
        "limit": seen.limit,
        "admitted": seen.admitted,
        "refused": seen.refused_full + seen.refused_timeout,
    }


def _rates(rates: Rates) -> dict[str, Any]:
    return {
        "input_tokens_per_s": round(rates.total.input, 2),
        "output_tokens_per_s": round(rates.total.output, 2),
        "answers_per_s": round(rates.finished, 2),
    }


def _latency(ended: Sequence[LatencySample], in_flight_ttft_s: Sequence[float]) -> dict[str, Any]:
    good = [sample for sample in ended if not sample.failed]
    return {
        "window_s": WINDOW_S,
        "answers": len(good),
        "failed": len(ended) - len(good),
        "ttft_s": quantiles([*in_flight_ttft_s, *(one.ttft_s for one in good if one.ttft_s is not None)]),
        "inter_token_s": quantiles([sample.inter_token_s for sample in good if sample.inter_token_s is not None]),
        "end_to_end_s": quantiles([sample.end_to_end_s for sample in good]),
    }


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """`QUANTILES` of the values, each one of them (nearest rank); None of none."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {name: max(math.ceil(share * len(ordered)), 1) - 1 for name, share in QUANTILES.items()}
    return {name: round(ordered[rank], 6) for name, rank in ranks.items()}


def _worker(worker: WorkerSeen, rates: Rates | None) -> dict[str, Any]:
    value = worker_value(worker.snapshot, worker.load)
    url = worker.snapshot.spec.url
    value["tokens_per_s"] = None if rates is None else _tokens_per_s(rates.of_worker(url))
    for rank in value["ranks"]:
        rank["tokens_per_s"] = None if rates is None else _tokens_per_s(rates.of_engine(url, rank["rank"]))
    value["circuit_breaker"] = worker.circuit_breaker
    value["overloaded"] = worker.overloaded
    return value


def _tokens_per_s(rate: TokenRate) -> dict[str, float]:
    return {"input": round(rate.input, 2), "output": round(rate.output, 2)}


def _answer(answer: AnswerSeen) -> dict[str, Any]:
    return {
        "id": answer.request_id,
        "model": answer.model,
        "endpoint": answer.endpoint,
        "phase": answer.phase,
        "age_s": round(answer.age_s, 3),
        "workers": list(answer.worker_urls),
        "prompt_tokens": answer.usage.prompt_tokens,
        "completion_tokens": answer.usage.completion_tokens,
    }


def _error(error: ErrorSeen) -> dict[str, Any]:
    return {
        "time": round(error.time, 3),
        "status": error.status,
        "code": error.code,
        "message": error.message,
        "endpoint": error.endpoint,
        "model": error.model,
        "workers": list(error.worker_urls),
        "request_id": error.request_id,
    }
