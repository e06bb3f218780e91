"""What is counted of HTTP requests: begun, answered, over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from smg_trio.gateway.observability.observer import CLIENT_LEFT, CLIENT_LEFT_CODE, RequestObserver
from smg_trio.gateway.observability.series import (
    LATENCY_BUCKETS_S,
    CounterFamily,
    CounterSeries,
    HistogramFamily,
    HistogramSeries,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

UNMATCHED: Final = "unmatched"
"""The path of everything that is no route."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
_PARAMETER: Final = re.compile(r"<(?:\w+:)?(\w+)>")


def path_label(path: str) -> str:
    """A route's path as a label has it: ``/workers/<worker_id>`` is ``/workers/{worker_id}``."""
    return _PARAMETER.sub(r"{\1}", path)


class HttpMetrics:
    """The families, and the series of each route."""

    def __init__(self, registry: CollectorRegistry, bounds: Sequence[float] = LATENCY_BUCKETS_S) -> None:
        self._requests = CounterFamily(
            registry, "smg_http_requests", "HTTP requests by method and route.", ("method", "path")
        )
        self._responses = CounterFamily(
            registry,
            "smg_http_responses",
            "HTTP responses by route, status and error code; a stream counts when it begins, a client that left before "
            "there was a response as 499.",
            ("path", "status_code", "error_code"),
        )
        self._duration = HistogramFamily(
            registry,
            "smg_http_request_duration_seconds",
            "From the head of an HTTP request to the end of its response.",
            ("method", "path"),
            bounds,
        )
        self._routes: dict[tuple[str, str], _RouteSeries] = {}

    def begins(self, method: str, path: str) -> HttpExchange:
        """Count a request to a route; `path` is the route's own, so that series stay bounded."""
        series = self._routes.get((method, path))
        if series is None:
            series = self._routes[method, path] = self._open(method, path_label(path))
        series.requests.value += 1.0
        return HttpExchange(series)

    def refused(self, method: str, status: int, code: str, path: str = UNMATCHED) -> None:
        """Count a request that was answered before it reached an endpoint; `code`: of the error, if it is one."""
        exchange = self.begins(method if method in _METHODS else "other", path)
        exchange.answered(status, code)
        exchange.ended(complete=True)

    def responses(self) -> Iterator[tuple[str, str, float]]:
        """Path, status and number of all responses so far."""
        for (path, status, _), count in self._responses.values():
            yield path, status, count

    def durations(self) -> Iterator[tuple[str, str, HistogramSeries]]:
        """Method, path and durations of every route that was asked."""
        for (method, path), series in self._routes.items():
            yield method, path_label(path), series.duration

    def _open(self, method: str, path: str) -> _RouteSeries:
        return _RouteSeries(
            self._requests.at(method, path), self._duration.at(method, path), partial(self._responses.at, path)
        )


class _RouteSeries:
    """One route's series, looked up once."""

    __slots__ = ("_find", "_responses", "duration", "requests")

    def __init__(
        self, requests: CounterSeries, duration: HistogramSeries, find: Callable[[str, str], CounterSeries]
    ) -> None:
        self.requests = requests
        self.duration = duration
        self._find = find
        self._responses: dict[tuple[int, str], CounterSeries] = {}

    def responses(self, status: int, code: str) -> CounterSeries:
        """The counter of responses with that status and error code."""
        series = self._responses.get((status, code))
        if series is None:
            series = self._responses[status, code] = self._find(str(status), code)
        return series


class HttpExchange(RequestObserver):
    """One request, from `HttpMetrics.begins` on."""

    __slots__ = ("_began", "_series")

    def __init__(self, series: _RouteSeries) -> None:
        self._series = series
        self._began = perf_counter()

    def answered(self, status: int, code: str) -> None:
        """See `RequestObserver`: count the response."""
        self._series.responses(status, code).value += 1.0

    def ended(self, complete: bool) -> None:
        """See `RequestObserver`: note how long it took."""
        self._series.duration.observe(perf_counter() - self._began)

    def client_left(self) -> None:
        """See `RequestObserver`."""
        self.answered(CLIENT_LEFT, CLIENT_LEFT_CODE)
        self.ended(complete=False)
