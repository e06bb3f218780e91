"""Prometheus metrics. Names and labels are the reference gateway's where it has them.

What happens is counted per request, and once per wake-up of an answer. What is, is read when Prometheus asks: from the
workers, the admission queue, the HTTP server and the answers in flight, whose tokens are counted then too, so that a
long answer's show before it ends. The values of all labels are this gateway's own words (models and workers as
registered, route templates, codes), never a client's, so the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

from smg_trio.gateway.observability.discovery_metrics import DiscoveryMetrics
from smg_trio.gateway.observability.encoding_counters import EncodingCounters
from smg_trio.gateway.observability.generation_metrics import EndpointSeries, GenerationMetrics, RouterFamilies
from smg_trio.gateway.observability.http_metrics import HttpMetrics
from smg_trio.gateway.observability.media_metrics import MediaMetrics
from smg_trio.gateway.observability.plugin_gauges import PluginGauges
from smg_trio.gateway.observability.policy_gauges import PolicyGauges
from smg_trio.gateway.observability.process_gauges import LiveGauges, ProcessGauges
from smg_trio.gateway.observability.series import LATENCY_BUCKETS_S, PER_TOKEN_BUCKETS_S, HistogramFamily
from smg_trio.gateway.observability.usage import LostLines, UsageMetrics
from smg_trio.gateway.observability.vllm_metrics import INTER_TOKEN_UNION_S, VllmMetrics
from smg_trio.gateway.observability.worker_gauges import ResilienceGauges, WorkerGauges

if TYPE_CHECKING:
    from smg_trio.core.plugin_calls import PluginCalls
    from smg_trio.gateway.observability.in_flight import InFlightGeneration
    from smg_trio.gateway.observability.usage_log import UsageLog
    from smg_trio.gateway.request_body.incoming import BodyMemory
    from smg_trio.gateway.security.certificates import Certificate
    from smg_trio.http.statistics import ServerStatistics
    from smg_trio.pipeline.encoding_cache import EncodingCache
    from smg_trio.routing.admission import AdmissionQueue
    from smg_trio.routing.registry import Registry

_LAG_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAG_INTERVAL_S: Final = 1.0


class Metrics:
    """All metrics of one gateway, on a registry of their own.

    Args:
        workers, admission, encodings, bodies, in_flight, plugins, usage_log: what is looked into.
        bounds: upper bounds of the buckets of durations in seconds, but for times per token.
        identities: how many of them have usage metrics of their own.
        vllm_names: whether what vLLM's server shows is shown by its names, too.

    Attributes:
        media: of images and videos in requests.
        mcp: of what MCP servers are asked: by ``operation`` (``list``, ``call``) and ``result`` (``ok``, ``error``).
        discovery: of workers that are found instead of named.
        usage: what each identity used.
        vllm: the metrics by vLLM's names; None where they are not asked for.
        recent: the last answers that have ended, oldest first: what percentiles are made of while somebody looks.
    """

    def __init__(
        self,
        workers: Registry,
        admission: AdmissionQueue,
        encodings: EncodingCache,
        bodies: BodyMemory,
        in_flight: Collection[InFlightGeneration] = (),
        bounds: Sequence[float] = LATENCY_BUCKETS_S,
        plugins: Sequence[PluginCalls] = (),
        usage_log: UsageLog | None = None,
        identities: int = 0,
        *,
        vllm_names: bool = False,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self.http = HttpMetrics(registry, bounds)
        self.media = MediaMetrics(registry)
        self.mcp = HistogramFamily(
            registry, "smg_mcp_request_duration_seconds", "Time until an MCP server has listed its tools or run one.",
            ("operation", "result"), bounds,
        )  # fmt: skip
        self.discovery = DiscoveryMetrics(registry)
        self._router = RouterFamilies(registry, bounds, INTER_TOKEN_UNION_S if vllm_names else PER_TOKEN_BUCKETS_S)
        self.usage = UsageMetrics(registry, identities)
        self._endpoints: dict[tuple[str, str, bool], EndpointSeries] = {}
        self._in_flight = in_flight
        self.recent = self._router.recent
        lag = "How late a task woke that sleeps for a second: what everything else on the event loop waits, too."
        self._lag = HistogramFamily(registry, "smg_event_loop_lag_seconds", lag, (), _LAG_BUCKETS_S).at()
        self._process = ProcessGauges(bodies)
        for collector in (
            WorkerGauges(workers),
            ResilienceGauges(workers, admission),
            PolicyGauges(workers),
            EncodingCounters(encodings),
            LiveGauges(in_flight),
            PluginGauges(plugins),
            LostLines(usage_log),
            self._process,
        ):
            registry.register(collector)
        self.vllm: VllmMetrics | None = None
        if vllm_names:
            self.vllm = VllmMetrics(workers, in_flight, self._endpoints, self.http, self.media)
            registry.register(self.vllm)
        for library in (ProcessCollector, PlatformCollector, GCCollector):
            library(registry=registry)

    def exposition(self) -> bytes:
        """All metrics as Prometheus text."""
        for generation in self._in_flight:
            generation.metrics.catch_up(generation.answer.usage())
        return generate_latest(self.registry)

    def follow_server(self, statistics: Callable[[], ServerStatistics]) -> None:
        """Show the counts of the HTTP server, too."""
        self._process.server = statistics

    def follow_certificates(self, certificates: Mapping[str, Certificate]) -> None:
        """Show until when the listeners' certificates are valid, too."""
        self._process.certificates = certificates

    async def watch_loop(self) -> None:
        """Measure once a second, until cancelled, how late the event loop does what is due."""
        while True:
            due = trio.current_time() + _LAG_INTERVAL_S
            await trio.sleep_until(due)
            self._lag.observe(max(0.0, trio.current_time() - due))

    def generation_begins(
        self, model: str, endpoint: str, *, streaming: bool, started: float, over_http: bool = False
    ) -> GenerationMetrics:
        """Count an inference request, which came at `started`; the observer that is returned measures it.

        `over_http`: a worker behind HTTP answers it.
        """
        series = self._endpoints.get((model, endpoint, over_http))
        if series is None:
            series = EndpointSeries(self._router, model, endpoint, over_http=over_http)
            self._endpoints[model, endpoint, over_http] = series
        series.requests[streaming].value += 1.0
        metrics = GenerationMetrics(series, started)
        metrics.begun(trio.current_time())
        return metrics

    def forget_model(self, model: str) -> None:
        """The model is served no more: its series end."""
        for key in [key for key in self._endpoints if key[0] == model]:
            del self._endpoints[key]
        self._router.forget(model)
        if self.vllm is not None:
            self.vllm.forget_model(model)
