"""What vLLM's own server counts per request, by its names: for `--metrics-compat vllm`.

Names, types, labels and buckets are those of vLLM 0.32.0's `vllm/v1/metrics/loggers.py` and
`vllm/v1/metrics/buckets.py`; what each value means is in `vllm/v1/metrics/stats.py`. Everything is counted at the
stages of a request, nothing per token.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Final

from smg_trio.core.errors import ClientFault
from smg_trio.core.outputs import FinishReason
from smg_trio.gateway.observability.observer import Generation, ObservedAnswer, RequestObserver
from smg_trio.gateway.observability.series import CounterSeries, HistogramSeries

if TYPE_CHECKING:
    from collections.abc import Collection

    from smg_trio.core.errors import SmgError
    from smg_trio.core.events import Usage
    from smg_trio.pipeline.engine_requests import RequestCounts

_LATENCY_BOUNDS_S: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_TTFT_BOUNDS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_BOUNDS_S: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_N_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)

MEANINGS: Final = {
    "time_to_first_token_seconds": "From request to the first output of the engine.",
    "e2e_request_latency_seconds": "From request to the end of the answer.",
    "request_queue_time_seconds": "In the gateway's queue and, where the engine says so, in the engine's.",
    "request_prefill_time_seconds": "From the engine's first schedule to the first output.",
    "request_decode_time_seconds": "From the first output to the end.",
    "request_inference_time_seconds": "From the engine's first schedule to the end.",
    "request_time_per_output_token_seconds": "Mean time per output token after the first, of each request.",
    "request_prompt_tokens": "Prompt tokens of each request.",
    "request_generation_tokens": "Tokens generated for each request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens of each request that were not in the prefix cache.",
    "request_max_num_generation_tokens": "Tokens of the longest choice of each prompt.",
    "request_params_n": "Choices asked for.",
    "request_params_max_tokens": "Most tokens that each request might generate.",
}
"""The histograms, without ``vllm:``."""


def token_bounds(max_model_len: int) -> list[float]:
    """Bounds of the buckets of token counts: 1, 2, 5, 10, … up to the context window."""
    bounds: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > max_model_len:
                return bounds
            bounds.append(float(digit * power))
        power *= 10


def _bounds_of(name: str, max_model_len: int) -> list[float] | tuple[float, ...]:
    if name == "time_to_first_token_seconds":
        return _TTFT_BOUNDS_S
    if name == "request_time_per_output_token_seconds":
        return INTER_TOKEN_BOUNDS_S
    if name == "request_params_n":
        return _N_BOUNDS
    return _LATENCY_BOUNDS_S if name.endswith("_seconds") else token_bounds(max_model_len)


class ModelSeries:
    """The series of one model, all from 0.

    Attributes:
        histograms: by name, those of `MEANINGS`.
        finished: engine requests that have ended, by reason.
    """

    def __init__(self, max_model_len: int) -> None:
        self.histograms = {name: HistogramSeries(_bounds_of(name, max_model_len)) for name in MEANINGS}
        self.finished = {reason: CounterSeries() for reason in FinishReason}

    def observe(self, name: str, value: float) -> None:
        """Count a value of the histogram of that name."""
        self.histograms[name].observe(value)


class VllmRequestMetrics(RequestObserver):
    """Measures one inference request. Each choice counts as a request, as the engine sees it."""

    __slots__ = ("_failed", "_first_at", "_model", "_queue_s", "_sent", "_series_of", "_started")

    def __init__(self, series_of: Callable[[str], ModelSeries], model: str, started: float) -> None:
        """`series_of`: the series of a model, not asked before its engines have a request."""
        self._series_of = series_of
        self._model = model
        self._started = started
        self._queue_s = 0.0
        self._sent: float | None = None
        self._first_at: float | None = None
        self._failed = FinishReason.ABORT

    def sent(self, waited_from: float, now: float) -> None:
        """See `RequestObserver`."""
        self._queue_s += now - waited_from
        self._sent = now

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        self._first_at = now
        self._series_of(self._model).observe("time_to_first_token_seconds", now - self._started)

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        if not isinstance(error, ClientFault):
            self._failed = FinishReason.ERROR

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        requests = generation.answer.request_counts()
        if not requests or self._sent is None:
            return
        series = self._series_of(self._model)
        for request in requests:
            series.finished[request.finish_reason or self._failed].value += 1.0
            series.observe("e2e_request_latency_seconds", now - self._started)
            series.observe("request_prompt_tokens", request.prompt_tokens)
            series.observe("request_generation_tokens", request.completion_tokens)
            series.observe("request_prefill_kv_computed_tokens", request.prompt_tokens - request.cached_tokens)
            self._observe_stages(series, request, now)
        _observe_asked(series, generation.answer, requests)

    def _observe_stages(self, series: ModelSeries, request: RequestCounts, now: float) -> None:
        series.observe("request_queue_time_seconds", self._queue_s + (request.queue_s or 0.0))
        if self._first_at is None or self._sent is None:
            return
        prefill_s = max(0.0, self._first_at - self._sent - (request.queue_s or 0.0))
        decode_s, further = now - self._first_at, request.completion_tokens - 1
        series.observe("request_prefill_time_seconds", prefill_s)
        series.observe("request_decode_time_seconds", decode_s)
        series.observe("request_inference_time_seconds", prefill_s + decode_s)
        series.observe("request_time_per_output_token_seconds", decode_s / further if further > 0 else 0.0)


def _observe_asked(series: ModelSeries, answer: ObservedAnswer, requests: list[RequestCounts]) -> None:
    """What was asked for: per prompt, and of generated answers only."""
    sampling = answer.sampling
    if sampling is None:
        return
    for _, choices in groupby(requests, key=lambda request: request.prompt):
        tokens = [choice.completion_tokens for choice in choices]
        series.observe("request_params_n", len(tokens))
        series.observe("request_max_num_generation_tokens", max(tokens))
        for _ in tokens:
            series.observe("request_params_max_tokens", sampling.max_tokens)
