"""A small collector: takes OTLP over HTTP or gRPC on the loopback and keeps the spans."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass
class SeenSpan:
    """One span as the collector got it; times are nanoseconds since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    error: bool
    message: str
    trace_state: str


@dataclass
class Collector:
    """What it listens on, and what came."""

    address: str
    spans: list[SeenSpan] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    def take(self, request: Any) -> None:
        """Keep what was exported."""
        for resource in request.resource_spans:
            self.resource = _attributes(resource.resource.attributes)
            self.spans += [_seen(span) for scope in resource.scope_spans for span in scope.spans]

    def roots(self) -> list[SeenSpan]:
        """The spans whose parents are not here, as they ended."""
        known = {span.span_id for span in self.spans}
        return [span for span in self.spans if span.parent_id not in known]

    def children(self, span: SeenSpan) -> list[SeenSpan]:
        """The spans below it, in order of their beginnings."""
        return sorted((one for one in self.spans if one.parent_id == span.span_id), key=lambda one: one.start)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _seen(span: Any) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        kind=span.kind,
        attributes=_attributes(span.attributes),
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        error=span.status.code == 2,
        message=span.status.message,
        trace_state=span.trace_state,
    )


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector in a thread."""
    found: Collector

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            request = ExportTraceServiceRequest.FromString(data)
            found.paths.append(self.path)
            found.take(request)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Run a collector that takes OTLP over gRPC."""

    class Servicer(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            found.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Servicer(), server)
    found = Collector(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait(5)


@contextmanager
def deaf_collector() -> Iterator[str]:
    """The address of a collector that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
