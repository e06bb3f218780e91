"""This gateway's metrics by the names that vLLM's own server has for them (0.32.0): `--metrics-compat vllm`.

One series per model, under ``engine="0"``: schedulers read one sample of a name and take a pod for one server, whose
queue is that of all its engines and of the gateway before them. Each engine by itself is in ``smg_engine_*``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.core.engines import EngineCounts
from smg_trio.core.workers import RankPhase
from smg_trio.gateway.observability.series import PER_TOKEN_BUCKETS_S, cumulative
from smg_trio.gateway.observability.vllm_requests import (
    INTER_TOKEN_BOUNDS_S,
    MEANINGS,
    ModelSeries,
    VllmRequestMetrics,
)

if TYPE_CHECKING:
    from smg_trio.core.workers import RankSnapshot
    from smg_trio.gateway.observability.generation_metrics import EndpointSeries
    from smg_trio.gateway.observability.http_metrics import HttpMetrics
    from smg_trio.gateway.observability.in_flight import InFlightGeneration
    from smg_trio.gateway.observability.media_metrics import MediaMetrics
    from smg_trio.routing.registry import Registry

INTER_TOKEN_UNION_S: Final = tuple(sorted({*PER_TOKEN_BUCKETS_S, *INTER_TOKEN_BOUNDS_S}))
"""Bounds that both servers' histograms of times per token can be read from, so that a gap is counted once."""
_LABELS: Final = ("model_name", "engine")
_ENGINE: Final = "0"
_FALLBACK_WINDOW: Final = 1_000_000


class VllmMetrics(Collector):
    """All of them; nothing is counted that is not asked for here, but for `VllmRequestMetrics`.

    Args:
        workers, in_flight: what is looked into.
        endpoints: the gateway's own series by model and endpoint, whose counts these are too.
        http, media: count responses, and images looked up among those processed before.
    """

    def __init__(
        self,
        workers: Registry,
        in_flight: Collection[InFlightGeneration],
        endpoints: Mapping[tuple[str, str, bool], EndpointSeries],
        http: HttpMetrics,
        media: MediaMetrics,
    ) -> None:
        self._workers = workers
        self._in_flight = in_flight
        self._endpoints = endpoints
        self._http = http
        self._media = media
        self._models: dict[str, ModelSeries] = {}
        self._totals: dict[str, EngineCounts] = {}
        self._seen: dict[tuple[str, int], EngineCounts] = {}
        self._sleep_levels: dict[str, int] = {}

    def request(self, model: str, started: float) -> VllmRequestMetrics:
        """The observer of a request for the model, which came at `started`."""
        return VllmRequestMetrics(self._series, model, started)

    def sleeps(self, model: str, level: int | None) -> None:
        """The model's engines were put to sleep, or (None) are awake again."""
        if level is None:
            self._sleep_levels.pop(model, None)
        else:
            self._sleep_levels[model] = level

    def forget_model(self, model: str) -> None:
        """The model is served no more: its series end."""
        for known in (self._models, self._totals, self._sleep_levels):
            known.pop(model, None)

    def _series(self, model: str) -> ModelSeries:
        series = self._models.get(model)
        if series is None:
            window = self._workers.max_model_len(model) or _FALLBACK_WINDOW
            series = self._models[model] = ModelSeries(window)
        return series

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        ranks: dict[str, list[RankSnapshot]] = {}
        seen: dict[tuple[str, int], EngineCounts] = {}
        for worker in self._workers.workers():
            spec = worker.spec
            of_model = ranks.setdefault(spec.model_id, [])
            for rank in worker.snapshot().ranks:
                of_model.append(rank)
                key = (spec.worker_id, rank.rank)
                total = self._totals.setdefault(spec.model_id, EngineCounts())
                total.add(rank.counts.since(self._seen.get(key, EngineCounts())))
                seen[key] = rank.counts
        self._seen = seen
        for model, found in ranks.items():
            if any(rank.info is not None for rank in found):
                self._series(model)
        yield from self._scheduler(ranks)
        yield from _cache_config(ranks)
        yield from self._adapters(ranks)
        yield from self._sleep_state(ranks)
        yield from self._tokens()
        yield from self._engine_counters()
        yield from self._requests()
        yield from self._media_cache(ranks)
        yield from self._http_server()

    def _scheduler(self, ranks: Mapping[str, Sequence[RankSnapshot]]) -> Iterator[Metric]:
        running = _gauge("num_requests_running", "Requests that the engines are working on.")
        waiting = _gauge("num_requests_waiting", "Requests that wait, in the gateway or in an engine.")
        reasons = _gauge("num_requests_waiting_by_reason", "The same by reason; together they are all.", "reason")
        usage = _gauge("kv_cache_usage_perc", "Used part of the KV cache, 0 to 1: the mean of the model's engines.")
        for model, found in ranks.items():
            labels = (model, _ENGINE)
            states = [_state(rank) for rank in found]
            deferred = sum(rank.load.deferred for rank in found)
            queued = sum(one for _, one in states) + self._queued(model)
            running.add_metric(labels, sum(one for one, _ in states))
            waiting.add_metric(labels, queued)
            reasons.add_metric((*labels, "capacity"), queued - deferred)
            reasons.add_metric((*labels, "deferred"), deferred)
            usage.add_metric(labels, _usage(found))
        yield from (running, waiting, reasons, usage)

    def _queued(self, model: str) -> int:
        """Engine requests to be that wait for admission."""
        waiting = [one.answer for one in self._in_flight if one.phase == "queued" and one.answer.model_id == model]
        return sum(max(1, answer.choices) for answer in waiting)

    def _adapters(self, ranks: Mapping[str, Sequence[RankSnapshot]]) -> Iterator[Metric]:
        """What a scheduler with LoRA affinity reads: the time is the value, so that it can tell the latest series."""
        able = [info for found in ranks.values() for rank in found if (info := rank.info) and info.supports_lora]
        names: dict[bool, list[str]] = {True: [], False: []}
        for one in self._in_flight:
            name, runs = one.answer.adapter, one.phase == "generating"
            if name and name not in names[runs]:
                names[runs].append(name)
        if not able and not names[True] and not names[False]:
            return
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "LoRA adapters of requests in flight.", labels=labels)
        most = max((info.max_loras for info in able), default=0)
        family.add_metric((str(most), ",".join(names[False]), ",".join(names[True])), time.time())
        yield family

    def _sleep_state(self, ranks: Mapping[str, Sequence[RankSnapshot]]) -> Iterator[Metric]:
        family = _gauge(
            "engine_sleep_state", "1 for the state that /sleep and /wake_up left engines in.", "sleep_state"
        )
        for model in ranks:
            level = self._sleep_levels.get(model)
            states = {"awake": level is None, "weights_offloaded": level == 1, "discard_all": level == 2}
            for name, holds in states.items():
                family.add_metric((model, _ENGINE, name), float(holds))
        yield family

    def _tokens(self) -> Iterator[Metric]:
        prompt = _counter("prompt_tokens", "Prompt tokens, those from a prefix cache included.")
        sources = _counter("prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "source")
        cached = _counter("prompt_tokens_cached", "Prompt tokens that engines took from their prefix caches.")
        generated = _counter("generation_tokens", "Tokens generated, counted while answers run.")
        meaning = "Time between two outputs of an answer, mostly of a token each."
        gaps = HistogramMetricFamily("vllm:inter_token_latency_seconds", meaning, labels=_LABELS)
        for model in self._models:
            found = [series for (name, _, _), series in self._endpoints.items() if name == model]
            labels = (model, _ENGINE)
            all_prompt, all_cached = sum(one.input.value for one in found), sum(one.cached.value for one in found)
            prompt.add_metric(labels, all_prompt)
            cached.add_metric(labels, all_cached)
            external = min(all_cached, self._totals.get(model, EngineCounts()).external_hits)
            for source, tokens in _sources(all_prompt, all_cached, external).items():
                sources.add_metric((*labels, source), tokens)
            generated.add_metric(labels, sum(series.output.value for series in found))
            counts = _gap_counts(found)
            gaps.add_metric(labels, cumulative(INTER_TOKEN_BOUNDS_S, counts), sum(series.itl.sum for series in found))
        yield from (prompt, sources, cached, generated, gaps)

    def _engine_counters(self) -> Iterator[Metric]:
        for name, attribute, meaning in _ENGINE_COUNTERS:
            family = _counter(name, meaning)
            for model, counts in self._totals.items():
                if counts.drafts or not name.startswith("spec_decode"):
                    family.add_metric((model, _ENGINE), getattr(counts, attribute))
            if family.samples:
                yield family
        tiers = _counter("prompt_tokens_cached_by_source", "Prompt tokens found in caches, by where.", "source")
        for model, counts in self._totals.items():
            tiers.add_metric((model, _ENGINE, "device"), counts.prefix_hits)
            tiers.add_metric((model, _ENGINE, "external_unspecified"), counts.external_hits)
        yield tiers
        family = _counter("spec_decode_num_accepted_tokens_per_pos", "Drafts accepted up to a position.", "position")
        for model, counts in self._totals.items():
            for position, accepted in enumerate(counts.accepted_per_position):
                family.add_metric((model, _ENGINE, str(position)), accepted)
        if family.samples:
            yield family

    def _media_cache(self, ranks: Mapping[str, object]) -> Iterator[Metric]:
        """Nothing where there are several models: one cache serves them all."""
        if len(ranks) == 1:
            (model,) = ranks
            looked_up, hits = self._media.lookups()
            for name, count, meaning in (
                ("mm_cache_queries", looked_up, "Images and videos looked up among those processed before."),
                ("mm_cache_hits", hits, "Of these, those that were there."),
            ):
                family = _counter(name, meaning)
                family.add_metric((model, _ENGINE), count)
                yield family

    def _http_server(self) -> Iterator[Metric]:
        """What the instrumentation of vLLM's HTTP server shows; responses are not told apart by method here."""
        responses = CounterMetricFamily("http_requests", "HTTP responses.", labels=("handler", "status"))
        counts: dict[tuple[str, str], float] = {}
        for path, status, count in self._http.responses():
            key = (path, f"{status[0]}xx")
            counts[key] = counts.get(key, 0.0) + count
        for labels, count in counts.items():
            responses.add_metric(labels, count)
        yield responses
        meaning = "From the head of an HTTP request to the end of its response."
        durations = HistogramMetricFamily("http_request_duration_seconds", meaning, labels=("handler", "method"))
        for method, path, found in self._http.durations():
            durations.add_metric((path, method), cumulative(found.bounds, found.counts), found.sum)
        yield durations

    def _requests(self) -> Iterator[Metric]:
        finished = _counter("request_success", "Engine requests that have ended, by how.", "finished_reason")
        for model, series in self._models.items():
            for reason, counter in series.finished.items():
                finished.add_metric((model, _ENGINE, reason.value), counter.value)
        yield finished
        for name, meaning in MEANINGS.items():
            family = HistogramMetricFamily(f"vllm:{name}", meaning, labels=_LABELS)
            for model, series in self._models.items():
                found = series.histograms[name]
                family.add_metric((model, _ENGINE), cumulative(found.bounds, found.counts), found.sum)
            yield family


_ENGINE_COUNTERS: Final = (
    ("prefix_cache_queries", "prefix_queries", "Prompt tokens that engines looked up in their prefix caches."),
    ("prefix_cache_hits", "prefix_hits", "Of these, those that were there."),
    ("external_prefix_cache_queries", "external_queries", "Prompt tokens looked up behind a KV connector."),
    ("external_prefix_cache_hits", "external_hits", "Of these, those that were there."),
    ("num_preemptions", "preemptions", "Times a running request lost its KV blocks to others."),
    ("spec_decode_num_drafts", "drafts", "Verification steps of speculative decoding."),
    ("spec_decode_num_draft_tokens", "draft_tokens", "Tokens proposed."),
    ("spec_decode_num_accepted_tokens", "accepted_tokens", "Of these, those accepted."),
)


def _sources(prompt: float, cached: float, external: float) -> dict[str, float]:
    return {
        "local_compute": prompt - cached,
        "local_cache_hit": cached - external,
        "external_kv_transfer": external,
    }


def _gauge(name: str, meaning: str, *further: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vllm:{name}", meaning, labels=(*_LABELS, *further))


def _counter(name: str, meaning: str, *further: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"vllm:{name}", meaning, labels=(*_LABELS, *further))


def _state(rank: RankSnapshot) -> tuple[int, int]:
    """How many requests run and wait at an engine: what it says, and what was sent since it last said something.

    An engine that says nothing (``--disable-log-stats``, or before its first step) is taken to run what fits.
    """
    load, sent = rank.load, rank.in_flight
    waiting = load.waiting + load.deferred
    if load.running or waiting:
        return load.running, max(waiting, sent - load.running)
    seats = rank.info.max_num_seqs if rank.info is not None else 0
    running = min(sent, seats or sent)
    return running, sent - running


def _usage(ranks: Sequence[RankSnapshot]) -> float:
    """The mean of the ready engines, by the size of their caches."""
    ready = [(rank.load.kv_usage, rank.info) for rank in ranks if rank.phase is RankPhase.READY]
    sizes = [(usage, (info.num_gpu_blocks if info else 0) or 1) for usage, info in ready]
    blocks = sum(size for _, size in sizes)
    return sum(usage * size for usage, size in sizes) / blocks if blocks else 0.0


def _cache_config(ranks: Mapping[str, Sequence[RankSnapshot]]) -> Iterator[Metric]:
    """What engines have registered of their caches; the blocks of all together. vLLM gives no model here."""
    labels = ("engine", "block_size", "num_gpu_blocks")
    family = GaugeMetricFamily(
        "vllm:cache_config_info", "1, labelled with the KV cache's configuration.", labels=labels
    )
    for index, found in enumerate(ranks.values()):
        infos = [info for rank in found if (info := rank.info) is not None and info.block_size]
        if infos:
            blocks = sum(info.num_gpu_blocks for info in infos)
            family.add_metric((str(index), str(infos[0].block_size), str(blocks)), 1.0)
    yield family


def _gap_counts(found: Sequence[EndpointSeries]) -> list[int]:
    """Times between outputs in vLLM's buckets: of the finer ones in which they were counted."""
    counts = [0] * (len(INTER_TOKEN_BOUNDS_S) + 1)
    for series in found:
        for bound, count in zip((*series.itl.bounds, float("inf")), series.itl.counts, strict=True):
            counts[bisect_left(INTER_TOKEN_BOUNDS_S, bound)] += count
    return counts
