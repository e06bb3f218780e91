"""Traces: what a collector sees of requests, what engines are told, and that it costs nothing where it is off."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from smg_trio.core.errors import ConfigError
from smg_trio.gateway.observability.logs import JsonFormatter
from smg_trio.gateway.observability.tracing import CLOSE_LIMIT_S, open_tracing, traces_url, uses_grpc
from smg_trio.gateway.run import run_gateway
from smg_trio.settings.checks import check_settings
from smg_trio.settings.settings import Settings
from smg_trio.testing.commands import EngineRequest

from .harness import (
    ENDLESS,
    HELLO,
    HI,
    MODEL,
    PATIENCE_S,
    TOKENSPEED,
    Bench,
    events,
    launched_gateway,
    open_gateway,
)
from .trace_sink import Collector, SeenSpan, collector, deaf_collector, grpc_collector

HANG = "E[] fin=hang"
SERVER, INTERNAL = 2, 1
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=x,other=y"}
TRACE_HEADERS_FIELD = 14


@asynccontextmanager
async def traced(tmp_path: Path, says: Any = HELLO, **options: Any) -> AsyncIterator[tuple[Bench, Collector]]:
    with collector() as found:
        async with open_gateway(
            tmp_path, says, enable_trace=True, otlp_traces_endpoint=found.address, **options
        ) as bench:
            yield bench, found


async def flushed(bench: Bench, found: Collector, requests: int = 1) -> None:
    """Wait until the collector has the spans of so many requests: theirs are the last to end."""
    await bench.wait_idle()
    assert bench.gateway.tracing is not None
    with trio.fail_after(PATIENCE_S):
        await bench.gateway.tracing.flush()
        while sum(span.kind == SERVER for span in found.spans) < requests:
            await trio.lowlevel.checkpoint()
            await bench.gateway.tracing.flush()


def trace_headers(request: EngineRequest) -> Any:
    # Fields at the end that say nothing are left out.
    return request.payload[TRACE_HEADERS_FIELD] if len(request.payload) > TRACE_HEADERS_FIELD else None


def assert_ordered(root: SeenSpan, children: list[SeenSpan]) -> None:
    """The phases follow each other without gaps, within the request."""
    assert root.start == children[0].start
    for before, after in pairwise(children):
        assert before.start <= before.end == after.start
    assert children[-1].start <= children[-1].end <= root.end


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_s_spans_are_below_the_client_s_and_tell_what_it_cost(tmp_path: Path, stream: bool) -> None:
    async with traced(tmp_path, engine={"step_time_s": 0.005}) as (bench, found):
        body = {"messages": HI, "stream": stream, "max_tokens": 9, "temperature": 0.5, "top_p": 0.75}
        headers = PARENT | {"x-request-id": "mine", "user-agent": "agent/1"}
        answer = await bench.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200
        await flushed(bench, found)
        (root,) = found.roots()
        assert (root.name, root.kind, root.error) == ("POST /v1/chat/completions", SERVER, False)
        assert (root.trace_id, root.parent_id, root.trace_state) == (TRACE_ID, PARENT_ID, PARENT["tracestate"])
        children = found.children(root)
        assert [child.name for child in children] == ["prepare", "queue", "prefill", "decode"]
        assert all(child.trace_id == TRACE_ID and child.kind == INTERNAL for child in children)
        assert_ordered(root, children)
        assert children[3].end - children[3].start > 0
        seen = dict(root.attributes)
        latencies = [seen.pop(f"gen_ai.latency.{name}") for name in ("time_in_queue", "time_to_first_token", "e2e")]
        assert 0 <= latencies[0] <= latencies[1] <= latencies[2] <= (root.end - root.start) / 1e9
        answer_id = seen.pop("gen_ai.response.id")
        assert answer_id == seen.pop("gen_ai.request.id") == "chatcmpl-mine"
        assert seen == {
            "http.request.method": "POST", "http.route": "/v1/chat/completions", "url.path": "/v1/chat/completions",
            "url.scheme": "http", "http.response.status_code": 200, "user_agent.original": "agent/1",
            "smg.request_id": "mine", "smg.workers": bench.urls, "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "smg-trio", "gen_ai.request.model": MODEL, "gen_ai.response.model": MODEL,
            "gen_ai.request.max_tokens": 9, "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.75,
            "gen_ai.request.n": 1, "gen_ai.request.stream": stream, "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 13, "gen_ai.usage.output_tokens": 5,
            "gen_ai.usage.prompt_tokens": 13, "gen_ai.usage.completion_tokens": 5,
            "gen_ai.usage.cache_read.input_tokens": 0,
        }  # fmt: skip
        # The engine's own spans, if it makes any, are children of the request's.
        (request,) = bench.engine.received
        assert trace_headers(request) == {
            "traceparent": f"00-{TRACE_ID}-{root.span_id}-01",
            "tracestate": PARENT["tracestate"],
        }
        assert found.resource["service.name"] == "smg-trio"
        assert set(found.paths) == {"/v1/traces"}
        assert "hi" not in str([span.attributes for span in found.spans])


async def test_every_inference_endpoint_is_traced_and_without_a_parent_each_request_is_a_trace(tmp_path: Path) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": HI, "n": 2},
        "/v1/completions": {"prompt": ["hi", "ho"]},
        "/v1/messages": {"messages": HI, "max_tokens": 9},
        "/v1/responses": {"input": "hi"},
        "/generate": {"text": "hi"},
        "/tokenize": {"prompt": "hi"},
    }
    async with traced(tmp_path) as (bench, found):
        for path, body in bodies.items():
            assert (await bench.http.post(path, json={"model": MODEL} | body)).status_code == 200
        await bench.http.get("/health")
        await flushed(bench, found, len(bodies))
        roots = {root.name: root for root in found.roots()}
        assert set(roots) == {f"POST {path}" for path in bodies}
        assert len({root.trace_id for root in roots.values()}) == len(bodies)
        for name, root in roots.items():
            phases = [child.name for child in found.children(root)]
            assert phases == ([] if name == "POST /tokenize" else ["prepare", "queue", "prefill", "decode"])
        assert roots["POST /v1/chat/completions"].attributes["gen_ai.response.finish_reasons"] == ["stop", "stop"]
        assert roots["POST /v1/completions"].attributes["gen_ai.operation.name"] == "text_completion"
        by_trace = {root.trace_id: root.span_id for root in roots.values()}
        for request in bench.engine.received:
            _, trace_id, span_id, flags = trace_headers(request)["traceparent"].split("-")
            assert by_trace[trace_id] == span_id
            assert int(flags, 16) & 1


async def test_pooling_has_a_phase_of_its_own(tmp_path: Path) -> None:
    async with traced(tmp_path, engine={"supported_tasks": ("embed",)}) as (bench, found):
        answer = await bench.http.post("/v1/embeddings", json={"input": "hi"}, headers=PARENT)
        assert answer.status_code == 200, answer.text
        await flushed(bench, found)
        (root,) = found.roots()
        children = found.children(root)
        assert [child.name for child in children] == ["prepare", "queue", "pooling"]
        assert_ordered(root, children)
        assert root.attributes["gen_ai.operation.name"] == "embeddings"
        assert root.attributes["gen_ai.usage.input_tokens"] > 0
        assert root.span_id in trace_headers(bench.engine.received[0])["traceparent"]


async def test_failures_are_the_status_of_the_span_and_of_the_phase_they_ended(tmp_path: Path) -> None:
    async with traced(tmp_path, 'E["a"] fin=error', engine={"step_time_s": 0.005}) as (bench, found):
        assert (await bench.chat()).status_code == 500
        assert (await bench.chat(temperature=-1)).status_code == 400
        bench.say('E["a"|"a"|"a"|"a"] fin=error')
        answer = await bench.chat(stream=True)
        assert "error" in events(answer.text)[-2]
        await flushed(bench, found, 3)
        failed, refused, streamed = found.roots()
        assert (failed.error, failed.attributes["error.type"]) == (True, "engine_rejected")
        assert failed.message
        assert failed.attributes["http.response.status_code"] == 500
        # A client's fault is none of the server's.
        assert (refused.error, refused.attributes["error.type"]) == (False, "invalid_value")
        assert refused.attributes["http.response.status_code"] == 400
        assert found.children(refused) == []
        assert (streamed.error, streamed.attributes["http.response.status_code"]) == (True, 200)
        assert streamed.attributes["error.type"] == "engine_rejected"
        assert (await bench.http.post("/v1/completions", json={"prompt": [2**31]})).status_code == 400
        await flushed(bench, found, 4)
        assert not any(span.error for span in found.spans if span.trace_id == found.roots()[3].trace_id)
        for root in (failed, streamed):
            children = found.children(root)
            assert [child.error for child in children] == [False] * (len(children) - 1) + [True]


async def test_another_attempt_is_an_event_and_further_phases(tmp_path: Path) -> None:
    async with traced(tmp_path, ENDLESS, words=HELLO, workers=2, policy="round_robin") as (bench, found):
        dead, living = bench.engines
        dead.choose_script = bench.script(HANG)
        living.choose_script = bench.script(HELLO)
        statuses: list[int] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                statuses.append((await bench.chat()).status_code)

            for _ in range(2):
                nursery.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await dead.wait_received()
                bench.kill(dead)
        assert statuses == [200, 200]
        await flushed(bench, found, 2)
        (root,) = [root for root in found.roots() if root.events]
        (name, attributes) = root.events[0]
        assert (name, attributes["smg.attempt"], attributes["error.type"]) == ("retry", 1, "engine_dead")
        children = found.children(root)
        assert [child.name for child in children] == ["prepare", "queue", "prefill", "queue", "prefill", "decode"]
        assert [child.error for child in children] == [False, False, True, False, False, False]
        assert_ordered(root, children)
        assert not root.error


async def test_a_client_that_leaves_ends_its_span(tmp_path: Path) -> None:
    async with traced(tmp_path, ENDLESS, engine={"step_time_s": 0.005}) as (bench, found):
        async with bench.http.stream("POST", "/v1/chat/completions", json={"messages": HI, "stream": True}) as stream:
            await anext(stream.aiter_lines())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.chat)
            with trio.fail_after(PATIENCE_S):
                await bench.engine.wait_received(2)
            nursery.cancel_scope.cancel()
        await flushed(bench, found, 2)
        assert [root.attributes["smg.client_left"] for root in found.roots()] == [True, True]
        assert [root.attributes["http.response.status_code"] for root in found.roots()] == [200, 499]
        assert not any(root.error for root in found.roots())


async def test_a_background_response_goes_on_below_the_request_that_began_it(tmp_path: Path) -> None:
    async with traced(tmp_path) as (bench, found):
        answer = await bench.http.post("/v1/responses", json={"input": "hi", "background": True})
        path = f"/v1/responses/{answer.json()['id']}"
        with trio.fail_after(PATIENCE_S):
            while (await bench.http.get(path)).json()["status"] != "completed":
                await trio.lowlevel.checkpoint()
        await flushed(bench, found)
        (root,) = [root for root in found.roots() if root.name == "POST /v1/responses"]
        (work,) = found.children(root)
        assert (work.name, work.kind) == ("background response", INTERNAL)
        assert [child.name for child in found.children(work)] == ["prepare", "queue", "prefill", "decode"]
        assert work.attributes["gen_ai.usage.output_tokens"] == 5


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "nonsense"},
        {"traceparent": f"00-{'0' * 32}-{PARENT_ID}-01"},
        {"traceparent": f"ff-{TRACE_ID}-{PARENT_ID}-01"},
        {"traceparent": "00-" + "a" * 4000, "tracestate": "x" * 4000},
        {"tracestate": "a=b"},
    ],
    ids=lambda headers: str(headers)[:40],
)
async def test_a_broken_trace_context_is_none(tmp_path: Path, headers: dict[str, str]) -> None:
    async with traced(tmp_path) as (bench, found):
        answer = await bench.http.post("/v1/completions", json={"prompt": "hi"}, headers=headers)
        assert answer.status_code == 200
        await flushed(bench, found)
        (root,) = found.roots()
        assert root.parent_id == ""
        assert root.trace_id != TRACE_ID
        sent = trace_headers(bench.engine.received[0])
        assert list(sent) == ["traceparent"]
        assert sent["traceparent"].startswith(f"00-{root.trace_id}-{root.span_id}-")


async def test_what_the_client_does_not_sample_is_passed_on_and_not_exported(tmp_path: Path) -> None:
    async with traced(tmp_path) as (bench, found):
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
        assert (await bench.http.post("/v1/completions", json={"prompt": "hi"}, headers=headers)).status_code == 200
        assert (await bench.chat()).status_code == 200
        await flushed(bench, found)
        assert TRACE_ID not in {span.trace_id for span in found.spans}
        assert trace_headers(bench.engine.received[0])["traceparent"].startswith(f"00-{TRACE_ID}-")
        assert trace_headers(bench.engine.received[0])["traceparent"].endswith("-00")


async def test_engines_without_a_field_for_it_are_served_too(tmp_path: Path) -> None:
    async with traced(tmp_path, protocol=TOKENSPEED) as (bench, found):
        assert (await bench.chat()).status_code == 200
        await flushed(bench, found)
        assert len(found.spans) == 5


class Lines(logging.Handler):
    """Keeps what the product logs, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(json.loads(self.format(record)))


async def test_a_request_s_log_lines_carry_its_trace_and_nobody_else_s(tmp_path: Path) -> None:
    lines = Lines()
    product = logging.getLogger("smg_trio")
    level = product.level
    product.addHandler(lines)
    product.setLevel(logging.INFO)
    try:
        async with traced(tmp_path, 'E["a"] fin=error') as (bench, found):
            for stream in (False, True):
                await bench.http.post("/v1/chat/completions", json={"messages": HI, "stream": stream}, headers=PARENT)
                # On the same connection, without a trace of its own.
                await bench.http.get("/nothing/here")
            await flushed(bench, found, 2)
    finally:
        product.removeHandler(lines)
        product.setLevel(level)
    access = [line for line in lines.seen if line["logger"] == "smg_trio.access"]
    assert [line.get("trace_id") for line in access] == [TRACE_ID, None, TRACE_ID, None]
    assert all(root.trace_id == TRACE_ID for root in found.roots())


async def test_each_turn_of_a_websocket_is_a_trace_below_the_handshake_s(tmp_path: Path) -> None:
    async with traced(tmp_path, HELLO) as (bench, found):
        url = f"ws://127.0.0.1:{bench.port}/v1/responses"
        headers = [(name.encode(), value.encode()) for name, value in PARENT.items()]
        async with open_websocket_url(url, extra_headers=headers) as socket:
            for _ in range(2):
                await socket.send_message(json.dumps({"type": "response.create", "input": "hi"}))
                with trio.fail_after(PATIENCE_S):
                    while json.loads(await socket.get_message())["type"] != "response.completed":
                        pass
        await flushed(bench, found, 2)
        for root, request in zip(found.roots(), bench.engine.received, strict=True):
            assert (root.name, root.kind, root.error) == ("WEBSOCKET /v1/responses", SERVER, False)
            assert (root.trace_id, root.parent_id) == (TRACE_ID, PARENT_ID)
            assert root.attributes["http.response.status_code"] == 200
            assert [child.name for child in found.children(root)] == ["prepare", "queue", "prefill", "decode"]
            assert trace_headers(request)["traceparent"] == f"00-{TRACE_ID}-{root.span_id}-01"


# ---- off ---------------------------------------------------------------------------------------------------


async def test_without_it_nothing_is_passed_on_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "smg_trio"):
        async with open_gateway(tmp_path, HELLO) as bench:
            for _ in range(3):
                answer = await bench.http.post("/v1/completions", json={"prompt": "hi"}, headers=PARENT)
                assert answer.status_code == 200
            assert [trace_headers(request) for request in bench.engine.received] == [None] * 3
    assert sum("--enable-trace" in record.getMessage() for record in caplog.records) == 1


_SERVES_WITHOUT = """
import sys, trio, functools
from smg_trio.settings.settings import Settings
from smg_trio.gateway.run import GatewayShutdown, run_gateway
async def main():
    shutdown = GatewayShutdown()
    settings = Settings(host="127.0.0.1", port=0, prometheus_host="127.0.0.1", prometheus_port=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(functools.partial(run_gateway, settings, shutdown=shutdown))
        shutdown.ask()
trio.run(main)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "google", "requests")))
"""


def test_without_it_opentelemetry_is_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVES_WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


async def test_where_opentelemetry_is_missing_the_refusal_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("smg_trio.gateway.observability.tracing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError) as refusal:
        await run_gateway(Settings(enable_trace=True, port=0, prometheus_port=0))
    assert refusal.value.option == "--enable-trace"
    assert "smg-trio[tracing]" in refusal.value.remedy


# ---- the collector -------------------------------------------------------------------------------------------


async def test_a_collector_that_does_not_answer_costs_requests_nothing_and_the_end_little(tmp_path: Path) -> None:
    with deaf_collector() as address:
        flags = ("--enable-trace", "--otlp-traces-endpoint", address)
        async with launched_gateway(tmp_path, HELLO, flags=flags) as (process, _):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", verify=False) as http:
                for _ in range(20):
                    answer = await http.post("/v1/completions", json={"prompt": "hi"})
                    assert answer.status_code == 200
            process.signal()
            assert await process.wait(CLOSE_LIMIT_S + 7) == 0
            assert "dropped" in "".join(process.log)


async def test_a_collector_may_take_them_over_grpc(tmp_path: Path) -> None:
    with grpc_collector() as found:
        settings = {"enable_trace": True, "otlp_traces_endpoint": f"grpc://{found.address}"}
        async with open_gateway(tmp_path, HELLO, **settings) as bench:
            assert (await bench.http.post("/v1/completions", json={"prompt": "hi"})).status_code == 200
            await flushed(bench, found)
    (root,) = found.roots()
    assert root.name == "POST /v1/completions"
    assert len(found.children(root)) == 4
    assert found.resource["service.name"] == "smg-trio"


@pytest.mark.parametrize(
    ("endpoint", "environment", "expected"),
    [
        ("grpc://c:4317", {}, True),
        ("grpcs://c:4317", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ("c:4317", {}, False),
        ("http://c:4317", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        ("c:1", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, False),
    ],
)
def test_the_scheme_or_the_sdk_s_variables_choose_grpc(
    endpoint: str, environment: dict[str, str], expected: bool
) -> None:
    assert uses_grpc(endpoint, environment) is expected
    check_settings(Settings(otlp_traces_endpoint=endpoint))


def test_grpc_that_is_not_installed_is_said_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(ConfigError) as refusal:
        open_tracing("grpc://localhost:4317")
    assert "smg-trio[tracing-grpc]" in refusal.value.remedy


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("localhost:4318", "http://localhost:4318/v1/traces"),
        ("[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("https://collector", "https://collector/v1/traces"),
        ("https://collector:1/", "https://collector:1/v1/traces"),
        ("http://collector/custom/path", "http://collector/custom/path"),
    ],
)
def test_an_address_becomes_the_url_traces_go_to(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
    check_settings(Settings(otlp_traces_endpoint=endpoint))


@pytest.mark.parametrize("endpoint", ["", "  ", "ftp://collector:4317", "grpc://", "http://", "/v1/traces", "a b:1"])
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_settings(Settings(otlp_traces_endpoint=endpoint))
    assert refusal.value.option == "--otlp-traces-endpoint"
