from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event

import pytest
import trio
import trio.testing
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from smg_trio.core.errors import EngineDead
from smg_trio.core.events import Usage
from smg_trio.gateway.observability.tracing import RequestTrace, Tracing, WatchedExporter
from tests.gateway.observability.generations import ObservedGeneration


def begun(tracing: Tracing, route: str = "/x") -> RequestTrace:
    """The trace of a request that has come."""
    return tracing.begin("POST", route, route, {}, "r")


def end(trace: RequestTrace, status: int) -> None:
    trace.answered(status, "")
    trace.ended(complete=True)


class Moody(SpanExporter):
    """Takes spans or refuses them, as it is told."""

    def __init__(self) -> None:
        self.takes = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE


class Stuck(SpanExporter):
    """Waits for its release, whatever else happens."""

    def __init__(self) -> None:
        self.released = Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait()
        return SpanExportResult.SUCCESS


def test_lost_spans_are_told_of_once_and_so_is_that_they_are_lost_no_more(caplog: pytest.LogCaptureFixture) -> None:
    moody = Moody()
    exporter = WatchedExporter(moody, "http://collector")
    for takes in (True, False, False, False, True, True):
        moody.takes = takes
        exporter.export([ReadableSpan("a"), ReadableSpan("b")])
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "trace export to http://collector is failing; spans are dropped until it recovers"
    assert second == "traces are exported to http://collector again; 6 spans were dropped"


async def test_the_end_waits_for_a_stuck_collector_only_so_long(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck()
    tracing = Tracing(stuck)
    end(begun(tracing), 200)
    began = trio.current_time()
    with caplog.at_level(logging.WARNING, "smg_trio"):
        await tracing.close()
    assert trio.current_time() - began == 3.0
    assert "dropped" in caplog.text
    stuck.released.set()


async def test_closing_exports_what_has_ended() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    trace = begun(tracing, "/workers/<worker_id>")
    end(trace, 200)
    end(trace, 500)
    await tracing.close()
    (span,) = exporter.get_finished_spans()
    assert span.name == "POST /workers/{worker_id}"
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 200


async def test_the_time_in_the_queue_is_that_of_all_waits() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    trace, generation = begun(tracing), ObservedGeneration()
    trace.generation_begins(generation)
    trace.sent(0.0, 0.1)
    trace.retried(1, EngineDead("gone"), 0.5)
    trace.sent(0.6, 0.7)
    trace.first_output(0.8)
    trace.generation_ended(generation, Usage(1, 2, 1), {"ipc:///w"}, 0.9)
    end(trace, 200)
    await tracing.close()
    *phases, root = exporter.get_finished_spans()
    waits = [span for span in phases if span.name == "queue"]
    assert len(waits) == 2
    total = sum((span.end_time or 0) - (span.start_time or 0) for span in waits)
    assert root.attributes is not None
    assert root.attributes["gen_ai.latency.time_in_queue"] == total / 1e9
    assert root.attributes["gen_ai.usage.cache_read.input_tokens"] == 1
