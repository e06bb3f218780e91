"""Metrics of the process itself: its HTTP connections, its event loop, the answers in flight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio import __version__
from smg_trio.gateway.observability.series import bound_text

if TYPE_CHECKING:
    from smg_trio.gateway.observability.in_flight import InFlightGeneration
    from smg_trio.gateway.request_body.incoming import BodyMemory
    from smg_trio.gateway.security.certificates import Certificate
    from smg_trio.http.statistics import ServerStatistics

_AGES_S: Final = (0.0, 1.0, 10.0, 60.0, 300.0, 1800.0, inf)


class ProcessGauges(Collector):
    """Gauges of the process, read when they are asked for.

    Attributes:
        server: asks the HTTP server for its counts; None while there is none.
        certificates: in force, by listener.
        bodies: the memory of request bodies.
    """

    def __init__(self, bodies: BodyMemory) -> None:
        self.bodies = bodies
        self.server: Callable[[], ServerStatistics] | None = None
        self.certificates: Mapping[str, Certificate] = {}

    def collect(self) -> Iterator[Metric]:
        """See `Collector`. To be called on the event loop."""
        build = GaugeMetricFamily("smg_build_info", "1, labelled with the running version.", labels=("version",))
        build.add_metric((__version__,), 1.0)
        yield build
        loop = trio.lowlevel.current_statistics()
        yield GaugeMetricFamily("smg_event_loop_tasks", "Tasks of the event loop.", value=loop.tasks_living)
        yield GaugeMetricFamily(
            "smg_event_loop_runnable_tasks", "Of these, the ones that are runnable.", value=loop.tasks_runnable
        )
        held = "Bytes of the request bodies that are being read or parsed."
        yield GaugeMetricFamily("smg_http_request_body_bytes", held, value=self.bodies.held)
        most = "Limit of these bytes (--max-payload-memory)."
        yield GaugeMetricFamily("smg_http_request_body_limit_bytes", most, value=self.bodies.limit)
        if self.server is not None:
            yield from _connections(self.server())
        if self.certificates:
            yield _expiries(self.certificates)


def _expiries(certificates: Mapping[str, Certificate]) -> Metric:
    expiry = GaugeMetricFamily(
        "smg_tls_certificate_expiry_timestamp_seconds",
        "When the listener's certificate expires, in seconds since the epoch; of a chain, the one that does first.",
        labels=("listener",),
    )
    for listener, certificate in certificates.items():
        if certificate.validity is not None:
            expiry.add_metric((listener,), certificate.validity.ends)
    return expiry


def _connections(seen: ServerStatistics) -> Iterator[Metric]:
    gauge, counter, name = GaugeMetricFamily, CounterMetricFamily, "smg_http_"
    yield gauge(f"{name}connections_active", "HTTP connections that are open.", value=seen.connections_open)
    yield gauge(f"{name}connections_idle", "Of these, the ones between requests.", value=seen.connections_idle)
    yield counter(f"{name}connections", "HTTP connections taken so far.", value=seen.connections_accepted)
    yield counter(
        f"{name}connections_refused", "HTTP connections closed because there were too many.",
        value=seen.connections_refused,
    )  # fmt: skip
    yield counter(
        f"{name}faults",
        "HTTP requests that the server answered itself: broken, too large or too slow, or beyond the connection limit.",
        value=seen.faults,
    )


class LiveGauges(Collector):
    """What the inference requests in flight tell when they are asked."""

    def __init__(self, in_flight: Collection[InFlightGeneration]) -> None:
        self._in_flight = in_flight

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        now = trio.current_time()
        ages = GaugeMetricFamily(
            "smg_http_inflight_request_age_count",
            "Inference requests in flight by age in seconds: from gt, below le.",
            labels=("gt", "le"),
        )
        taken = [now - one.started for one in self._in_flight]
        for low, high in pairwise(_AGES_S):
            ages.add_metric((bound_text(low), bound_text(high)), sum(low <= age < high for age in taken))
        yield ages
        yield GaugeMetricFamily(
            "smg_detokenizer_pending_outputs",
            "Outputs of engines that have come and are not text yet, of all answers.",
            value=sum(one.answer.pending_outputs for one in self._in_flight),
        )
