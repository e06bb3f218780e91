"""Who used what: metrics per key holder, and a file with one line per generation that billing can read.

Generations are noted when they end, complete or not: never a token at a time. The number of series is bounded: the
first holders that are seen have their own, others are counted together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import trio
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.gateway.observability.observer import Generation, RequestObserver
from smg_trio.gateway.observability.series import CounterFamily, CounterSeries

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from smg_trio.core.errors import SmgError
    from smg_trio.core.events import Usage
    from smg_trio.gateway.observability.usage_log import UsageLog

OTHER: Final = "other"
"""The identity of all that have no series of their own."""


class UsageMetrics:
    """Counters per identity, for `most` of them; none where that is 0."""

    def __init__(self, registry: CollectorRegistry, most: int) -> None:
        self._most = most
        self._tokens = CounterFamily(
            registry, "smg_identity_tokens", "Tokens of key holders and identities, by direction.",
            ("identity", "token_type"),
        )  # fmt: skip
        self._requests = CounterFamily(
            registry, "smg_identity_generations", "Generations of key holders and identities that have ended.",
            ("identity",),
        )  # fmt: skip
        self._series: dict[str, tuple[CounterSeries, CounterSeries, CounterSeries]] = {}

    def note(self, identity: str, prompt_tokens: int, completion_tokens: int) -> None:
        """A generation of `identity` has ended."""
        if not self._most:
            return
        series = self._series.get(identity)
        if series is None:
            series = self._open(identity if len(self._series) < self._most else OTHER)
        generations, prompts, completions = series
        generations.value += 1
        prompts.value += prompt_tokens
        completions.value += completion_tokens

    def _open(self, identity: str) -> tuple[CounterSeries, CounterSeries, CounterSeries]:
        found = (
            self._requests.at(identity),
            self._tokens.at(identity, "input"),
            self._tokens.at(identity, "output"),
        )
        if identity != OTHER:
            self._series[identity] = found
        return found


class UsageObserver(RequestObserver):
    """Follows one generation of somebody, and notes what it cost when it has ended."""

    __slots__ = ("_error", "_first_output_at", "_identity", "_log", "_metrics", "_request_id", "_started")

    def __init__(self, metrics: UsageMetrics, log: UsageLog | None, identity: str, request_id: str) -> None:
        self._metrics = metrics
        self._log = log
        self._identity = identity
        self._request_id = request_id
        self._started = trio.current_time()
        self._first_output_at: float | None = None
        self._error = ""

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        self._first_output_at = now

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        self._error = error.code

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`. A prompt that was never handed to an engine costs nothing."""
        prompt_tokens = 0 if generation.phase == "queued" else usage.prompt_tokens
        if self._identity:
            self._metrics.note(self._identity, prompt_tokens, usage.completion_tokens)
        if self._log is not None:
            self._log.write(self._line(generation, usage, prompt_tokens, worker_urls, now))

    def _line(
        self, generation: Generation, usage: Usage, prompt_tokens: int, worker_urls: Collection[str], now: float
    ) -> bytes:
        answer, first, duration_s = generation.answer, self._first_output_at, now - self._started
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "request_id": self._request_id,
            "response_id": answer.request_id,
            "identity": self._identity,
            "model": answer.model_id,
            "endpoint": generation.endpoint,
            "status": "failed" if self._error else "ok" if answer.finished else "left",
            "prompt_tokens": prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "ttft_s": None if first is None else round(first - self._started, 6),
            "duration_s": round(duration_s, 6),
            "workers": sorted(worker_urls),
        }
        if self._error:
            line["error"] = self._error
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


class LostLines(Collector):
    """Lines of the usage log that were given up; nothing where there is no such log."""

    def __init__(self, log: UsageLog | None) -> None:
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        if self._log is not None:
            yield CounterMetricFamily(
                "smg_usage_log_lost_lines", "Lines of --usage-log that could not be written.", value=self._log.lost
            )
