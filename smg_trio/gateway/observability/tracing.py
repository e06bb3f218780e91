"""Traces of requests, by OpenTelemetry: what `--enable-trace` turns on. Only then is this module imported.

```
POST /v1/chat/completions          server; attributes of HTTP and generative AI, retries as events
├─ prepare                         the request's bytes → token ids
├─ queue                           waiting for a slot; between two attempts
├─ prefill                         sent to an engine → its first output
└─ decode                          first output → last (`pooling` instead of both for embeddings and the like)
```
A span's context comes from the client's ``traceparent`` and ``tracestate`` (W3C) and goes on to the engine in the
request itself. The phases of one request follow each other without gaps, so one look at the clock ends one and begins
the next. Exporting happens in a thread of the SDK's. Attributes hold numbers, names and codes, never what was said.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING, Final

import trio
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from smg_trio import __version__
from smg_trio.core.errors import ConfigError
from smg_trio.gateway.observability.http_metrics import path_label
from smg_trio.gateway.observability.observer import CLIENT_LEFT, CLIENT_LEFT_CODE, Generation, RequestObserver

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError
    from smg_trio.core.events import Usage

logger = logging.getLogger("smg_trio.gateway")

EXPORT_LIMIT_S: Final = 5.0
"""How long the collector may take to accept a batch, attempts included."""
CLOSE_LIMIT_S: Final = 3.0
"""How long the end of the process waits for the last spans to be exported."""
_MAX_TEXT_CHARS: Final = 256
_GRPC_PORT: Final = 4317
_OPERATIONS: Final = {"chat": "chat", "messages": "chat", "responses": "chat", "embeddings": "embeddings"}
_propagator: Final = TraceContextTextMapPropagator()

Attributes = dict[str, str | bool | int | float | Sequence[str]]


class Tracing:
    """Begins traces, and sees that they are exported.

    Args:
        exporter: where finished spans go; called from a thread of the SDK's.
        scheme: of the gateway's own URLs.
    """

    def __init__(self, exporter: SpanExporter, scheme: str = "http") -> None:
        self._scheme = scheme
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "smg-trio"}
        resource = Resource.create({**named, SERVICE_VERSION: __version__})
        # The SDK's own end at exit would wait for a collector that does not answer.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("smg_trio", __version__)

    def begin(self, method: str, route: str, path: str, headers: Mapping[str, str], request_id: str) -> RequestTrace:
        """A request has come; `route` is its route's path. Its parent is what the client names, if it does."""
        route = path_label(route)
        attributes: Attributes = {
            "http.request.method": method,
            "http.route": route,
            "url.path": path[:_MAX_TEXT_CHARS],
            "url.scheme": self._scheme,
            "smg.request_id": request_id,
        }
        if agent := headers.get("user-agent"):
            attributes["user_agent.original"] = agent[:_MAX_TEXT_CHARS]
        parent = _propagator.extract(headers, Context())
        return RequestTrace(self._tracer, f"{method} {route}", SpanKind.SERVER, parent, attributes)

    async def flush(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Export what has ended by now; gives up after `limit_s`."""
        with trio.move_on_after(limit_s):
            await trio.to_thread.run_sync(self._provider.force_flush, int(limit_s * 1000), abandon_on_cancel=True)

    async def close(self) -> None:
        """Export what is left, and end; what is not exported within `CLOSE_LIMIT_S` is lost, with a warning.

        Cancelled, it does not wait at all.
        """
        token, done = trio.lowlevel.current_trio_token(), trio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        # A daemon: it does not keep the process alive. Begun before the first wait, so that it
        # also runs for those who are cancelled.
        Thread(target=shut_down, name="end of tracing", daemon=True).start()
        with trio.move_on_after(CLOSE_LIMIT_S):
            await done.wait()
        if not done.is_set():
            logger.warning("the last traces were not exported within %g s and are dropped", CLOSE_LIMIT_S)


def open_tracing(endpoint: str, scheme: str = "http") -> Tracing:
    """Tracing to an OTLP collector; `endpoint` as `--otlp-traces-endpoint` has it, `scheme` see `Tracing`.

    Raises ConfigError if gRPC is asked for and not installed.
    """
    exporter, shown = _grpc_exporter(endpoint) if uses_grpc(endpoint, os.environ) else _http_exporter(endpoint)
    logger.info("traces go to %s", shown)
    return Tracing(WatchedExporter(exporter, shown), scheme)


def uses_grpc(endpoint: str, environment: Mapping[str, str]) -> bool:
    """Whether to export over gRPC: the endpoint's scheme says so, or OpenTelemetry's variables do."""
    if endpoint.startswith(("grpc://", "grpcs://")):
        return True
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((environment[name] for name in names if environment.get(name)), "") == "grpc"


def _http_exporter(endpoint: str) -> tuple[SpanExporter, str]:
    url = traces_url(endpoint)
    if f":{_GRPC_PORT}/" in url:
        logger.warning(
            "traces go to port %d, where collectors usually expect gRPC; this is OTLP over HTTP "
            "(--otlp-traces-endpoint grpc://HOST:%d for gRPC)", _GRPC_PORT, _GRPC_PORT,
        )  # fmt: skip
    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=url, timeout=EXPORT_LIMIT_S), url


def _grpc_exporter(endpoint: str) -> tuple[SpanExporter, str]:
    try:
        # Imported here: gRPC is an extra of its own, and takes a while to load.
        from opentelemetry.exporter.otlp.proto.grpc import exporter, trace_exporter
    except ImportError as error:
        raise ConfigError(
            "--otlp-traces-endpoint",
            f"OTLP over gRPC is not installed ({error}).",
            "Install smg-trio[tracing-grpc], or name a collector that takes OTLP over HTTP (port 4318).",
        ) from None
    logging.getLogger(exporter.__name__).setLevel(logging.CRITICAL)
    scheme, separator, rest = endpoint.partition("://")
    target = (rest if separator else endpoint).partition("/")[0]
    secure = separator != "" and scheme in ("grpcs", "https")
    made = trace_exporter.OTLPSpanExporter(endpoint=target, insecure=not secure, timeout=EXPORT_LIMIT_S)
    return made, f"{'grpcs' if secure else 'grpc'}://{target}"


def traces_url(endpoint: str) -> str:
    """``host:port`` or a URL, as a URL with the path that collectors take traces at unless it has its own."""
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    return url if path else f"{scheme}://{host}/v1/traces"


class WatchedExporter(SpanExporter):
    """Tells the log once when the collector stops taking spans, and once when it takes them again.

    The exporter below it says so at every attempt, several times each; its own lines are for debugging.
    """

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._url = url
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                logger.warning("trace export to %s is failing; spans are dropped until it recovers", self._url)
            self._lost += len(spans)
        elif self._lost:
            logger.warning("traces are exported to %s again; %d spans were dropped", self._url, self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)


class RequestTrace(RequestObserver):
    """The spans of one request, or of work that outlives its response. Not sampled, it only passes its context on.

    Attributes:
        trace_id: 32 hex digits.
    """

    __slots__ = (
        "_began",
        "_code",
        "_context",
        "_ended",
        "_engine_phase",
        "_failure",
        "_phase",
        "_phase_began",
        "_queued_ns",
        "_span",
        "_status",
        "_tracer",
        "_usage",
        "trace_id",
    )

    def __init__(
        self, tracer: Tracer, name: str, kind: SpanKind, parent: Context, attributes: Attributes | None = None
    ) -> None:
        self._tracer = tracer
        self._began = self._phase_began = time_ns()
        self._span: Span = tracer.start_span(name, parent, kind, attributes, start_time=self._began)
        self._context = trace.set_span_in_context(self._span, Context())
        self._phase = ""
        self._engine_phase = ""
        self._queued_ns = 0
        self._failure: SmgError | None = None
        self._usage: Usage | None = None
        self._status, self._code = 0, ""
        self._ended = False
        self.trace_id = trace.format_trace_id(self._span.get_span_context().trace_id)

    def headers(self) -> Mapping[str, str]:
        """``traceparent`` and ``tracestate`` for an engine, whose spans are children of the request's then."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._context)
        return carrier

    def continued(self, name: str) -> RequestTrace:
        """A span below this one, for work that outlives the response."""
        return RequestTrace(self._tracer, name, SpanKind.INTERNAL, self._context)

    def generation_begins(self, generation: Generation) -> None:
        """See `RequestObserver`."""
        answer, endpoint = generation.answer, generation.endpoint
        self._engine_phase = "pooling" if answer.pooled else "prefill"
        if not self._span.is_recording():
            return
        self._phase = "prepare"
        self._enter("queue")
        attributes: Attributes = {
            "gen_ai.operation.name": _OPERATIONS.get(endpoint, "text_completion"),
            "gen_ai.provider.name": "smg-trio",
            "gen_ai.request.model": answer.model_id,
            "gen_ai.response.model": answer.model_id,
            "gen_ai.response.id": answer.request_id,
            "gen_ai.request.id": answer.request_id,
        }
        if answer.sampling is not None:
            attributes |= {
                "gen_ai.request.max_tokens": answer.sampling.max_tokens,
                "gen_ai.request.temperature": answer.sampling.temperature,
                "gen_ai.request.top_p": answer.sampling.top_p,
                "gen_ai.request.n": answer.choices,
                "gen_ai.request.stream": generation.streaming,
            }
        self._span.set_attributes(attributes)

    def sent(self, waited_from: float, now: float) -> None:
        """See `RequestObserver`."""
        self._enter(self._engine_phase)

    def first_output(self, now: float) -> None:
        """See `RequestObserver`."""
        self._enter("decode")
        if self._usage is not None:
            return  # of a later generation of a response that calls tools
        self._span.set_attribute("gen_ai.latency.time_to_first_token", (self._phase_began - self._began) / 1e9)

    def _enter(self, phase: str) -> None:
        """The phase so far is over and the next one begins."""
        now = time_ns()
        self._close_phase(now)
        self._phase, self._phase_began = phase, now

    def _close_phase(self, now: int, failure: SmgError | None = None) -> None:
        if self._phase and self._span.is_recording():
            span = self._tracer.start_span(self._phase, self._context, start_time=self._phase_began)
            if failure is not None:
                _fail(span, failure)
            span.end(now)
        if self._phase == "queue":
            self._queued_ns += now - self._phase_began
        self._phase = ""

    def retried(self, attempt: int, error: SmgError, delay_s: float) -> None:
        """See `RequestObserver`: the wait for the next attempt begins."""
        now = time_ns()
        self._close_phase(now, error)
        self._phase, self._phase_began = "queue", now
        self._span.add_event(
            "retry", {"smg.attempt": attempt, "error.type": error.code, "smg.delay_s": round(delay_s, 6)}, now
        )

    def generation_failed(self, generation: Generation, error: SmgError) -> None:
        """See `RequestObserver`."""
        self._failure = error

    def generation_ended(self, generation: Generation, usage: Usage, worker_urls: Collection[str], now: float) -> None:
        """See `RequestObserver`."""
        ended = time_ns()
        self._close_phase(ended, self._failure)
        self._phase_began = ended
        self._usage = usage = usage if self._usage is None else self._usage.plus(usage)
        if not self._span.is_recording():
            return
        attributes: Attributes = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
            "gen_ai.usage.completion_tokens": usage.completion_tokens,
            "gen_ai.response.finish_reasons": generation.answer.finish_reasons,
            "gen_ai.latency.time_in_queue": self._queued_ns / 1e9,
            "gen_ai.latency.e2e": (ended - self._began) / 1e9,
            "smg.workers": sorted(worker_urls),
        }
        if usage.cached_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        self._span.set_attributes(attributes)

    def answered(self, status: int, code: str) -> None:
        """See `RequestObserver`. Not heard by what has no response of its own."""
        self._status, self._code = status, code

    def client_left(self) -> None:
        """See `RequestObserver`."""
        self.answered(CLIENT_LEFT, CLIENT_LEFT_CODE)
        self.ended(complete=False)

    def ended(self, complete: bool) -> None:
        """See `RequestObserver`; idempotent."""
        if self._ended:
            return
        self._ended = True
        span = self._span
        if self._status:
            span.set_attribute("http.response.status_code", self._status)
        if not complete:
            span.set_attribute("smg.client_left", True)
        if self._code:
            span.set_attribute("error.type", self._code)
        if self._status >= 500:
            span.set_status(Status(StatusCode.ERROR, self._failure.message if self._failure else None))
        elif self._failure is not None and self._status < 400:
            _fail(span, self._failure)
        span.end()


def _fail(span: Span, error: SmgError) -> None:
    span.set_attribute("error.type", error.code)
    if error.status >= 500:  # what the client did wrong is none of the server's errors
        span.set_status(Status(StatusCode.ERROR, error.message))
