"""One line per request: what it says, when it is written, and what is never in it."""

from __future__ import annotations

import io
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from smg_trio.core.errors import EngineDead
from smg_trio.core.events import Usage
from smg_trio.gateway.observability.access_log import AccessLog
from tests.e2e.harness import ENDLESS, HELLO, HI, MODEL, PATIENCE_S, SLOW, Bench, open_gateway
from tests.gateway.conftest import SetUp
from tests.gateway.observability.generations import ObservedGeneration
from tests.waiting import until

ALWAYS = {
    "timestamp",
    "level",
    "logger",
    "message",
    "request_id",
    "method",
    "route",
    "status",
    "duration_s",
    "client_left",
}
ANSWER = ALWAYS | {"model", "streaming", "prompt_tokens", "completion_tokens", "ttft_s", "worker"}


def access_lines(out: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == "smg_trio.access"]


async def wait_lines(out: io.StringIO, count: int) -> list[dict[str, Any]]:
    """The lines, once there are as many as that."""
    with trio.fail_after(PATIENCE_S):
        while len(lines := access_lines(out)) < count:
            await trio.lowlevel.checkpoint()
    return lines


# ---- through a whole gateway ------------------------------------------------------------------------------

BODIES = [
    ("/v1/chat/completions", {"messages": HI}, 5),
    ("/v1/completions", {"prompt": "hi"}, 5),
    ("/v1/messages", {"messages": HI, "max_tokens": 9}, 5),
    ("/v1/responses", {"input": "hi", "store": False}, 5),
    ("/generate", {"text": "hi"}, 5),
]


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_every_answer_has_one_line_streamed_or_not(tmp_path: Path, set_up: SetUp, http2: bool) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, http2=http2) as bench:
        expected = 0
        for path, body, tokens in BODIES:
            for stream in (False, True):
                answer = await bench.http.post(path, json={"model": MODEL, "stream": stream} | body)
                assert answer.status_code == 200, answer.text
                expected += 1
                line = (await wait_lines(out, expected))[-1]
                assert set(line) == ANSWER, (path, stream)
                assert (line["method"], line["route"], line["status"]) == ("POST", path, 200)
                assert (line["model"], line["streaming"], line["completion_tokens"]) == (MODEL, stream, tokens)
                assert line["prompt_tokens"] > 0
                assert 0 < line["ttft_s"] <= line["duration_s"] < PATIENCE_S
                assert line["client_left"] is False
                assert line["worker"] == bench.urls[0]
                assert line["request_id"] == answer.headers["x-request-id"]
        assert len(access_lines(out)) == expected


async def test_each_turn_of_a_websocket_has_a_line_and_so_has_the_connection(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, ENDLESS, engine=SLOW) as bench:
        url = f"ws://127.0.0.1:{bench.port}/v1/responses"
        async with open_websocket_url(url, extra_headers=[(b"x-request-id", b"mine")]) as socket:
            await take_turn(socket, "response.incomplete", input="hi", max_output_tokens=3)
            await take_turn(socket, "error", input="hi", temperature=-1)
            await take_turn(socket, "response.completed", input="hi", generate=False)
            await take_turn(socket, "response.output_text.delta", input="hi")
            await take_turn(socket, "error", type="response.cancel")
            await take_turn(socket, "response.output_text.delta", input="hi")
            bench.engine.die()
            await next_event(socket, "response.failed")
        lines = await wait_lines(out, 6)
    *turns, connection = lines
    shown = [(one["status"], one.get("error", ""), one["client_left"]) for one in turns]
    assert shown == [
        (200, "", False),
        (400, "invalid_value", False),
        (200, "", False),
        (200, "", True),
        (200, "engine_dead", False),
    ]
    assert {(one["method"], one["route"]) for one in lines} == {("WEBSOCKET", "/v1/responses")}
    assert set(turns[0]) == ANSWER
    assert (turns[0]["completion_tokens"], turns[0]["streaming"], turns[0]["worker"]) == (3, True, bench.urls[0])
    assert set(turns[2]) == ALWAYS
    assert (connection["status"], connection["request_id"]) == (101, "mine")
    assert len({one["request_id"] for one in lines}) == 6


async def test_a_watcher_of_the_live_page_has_a_line(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        async with open_websocket_url(f"ws://127.0.0.1:{bench.port}/dashboard/feed") as socket:
            await socket.get_message()
            assert not access_lines(out)
        (line,) = await wait_lines(out, 1)
    assert (line["method"], line["route"], line["status"]) == ("WEBSOCKET", "/dashboard/feed", 101)


async def take_turn(socket: WebSocketConnection, until: str, **fields: Any) -> None:
    """Begin a turn, and read its events up to one of that type."""
    await socket.send_message(json.dumps({"type": "response.create"} | fields))
    await next_event(socket, until)


async def next_event(socket: WebSocketConnection, kind: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while json.loads(await socket.get_message())["type"] != kind:
            pass


async def test_a_request_id_cannot_forge_fields_of_its_line(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up()
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        forged = "a] model=secret key=admin [b"
        for path in ("/v1/models", "/nowhere"):
            answer = await bench.http.get(path, headers={"x-request-id": forged})
            assert answer.headers["x-request-id"] == forged
        lines = [line for line in out.getvalue().splitlines() if "smg_trio.access" in line]
    assert len(lines) == 2
    assert all(line.endswith(f" [{json.dumps(forged)}]") for line in lines)


POOLED = [
    ("/v1/embeddings", {"input": ["hi", "a"]}, 3),
    ("/classify", {"input": "hi"}, 2),
    ("/score", {"queries": "hi", "documents": ["a"]}, 3),
    ("/rerank", {"query": "hi", "documents": ["a"]}, 3),
]


@pytest.mark.parametrize("task", ["embed", "classify"])
async def test_a_pooled_answer_s_line_says_as_much_as_others_do(tmp_path: Path, set_up: SetUp, task: str) -> None:
    out = set_up(as_json=True)
    wanted = [one for one in POOLED if (one[0] == "/classify") is (task == "classify")]
    async with open_gateway(tmp_path, HELLO, engine={"supported_tasks": (task,)}) as bench:
        for number, (path, body, tokens) in enumerate(wanted, 1):
            answer = await bench.http.post(path, json={"model": MODEL} | body)
            assert answer.status_code == 200, answer.text
            line = (await wait_lines(out, number))[-1]
            assert set(line) == ANSWER - {"ttft_s"}, path
            assert (line["route"], line["status"], line["model"], line["streaming"]) == (path, 200, MODEL, False)
            assert (line["prompt_tokens"], line["completion_tokens"]) == (tokens, 0), path
            assert line["worker"] == bench.urls[0]


async def test_a_refused_request_has_one_line_with_the_reason(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, api_key=("k",), max_payload_size=300) as bench:
        key = {"authorization": "Bearer k"}
        post = bench.http.post
        await post("/v1/chat/completions", json={"model": MODEL, "messages": HI})
        await post("/v1/chat/completions", json={"model": "other", "messages": HI}, headers=key)
        await post("/v1/chat/completions", content=b"{", headers=key)
        await bench.http.get("/no/such%20thing%0A", params={"secret": "hunter2"}, headers=key)
        await bench.http.put("/v1/models", headers=key)
        await bench.http.get("/v1/models", headers=key)
        lines = await wait_lines(out, 6)
    assert [(line["method"], line["route"], line["status"], line.get("error")) for line in lines] == [
        ("POST", "/v1/chat/completions", 401, "invalid_api_key"),
        ("POST", "/v1/chat/completions", 404, "model_not_found"),
        ("POST", "/v1/chat/completions", 400, lines[2].get("error")),
        ("GET", "/no/such%20thing%0A", 404, "not_found"),
        ("PUT", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models", 200, None),
    ]
    assert all(set(line) <= ALWAYS | {"error", "key"} and line["request_id"] for line in lines)
    assert "hunter2" not in out.getvalue()


async def test_a_body_that_is_too_large_has_a_line(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, max_payload_size=300) as bench:

        async def chunks() -> Any:
            for _ in range(9):
                yield b"x" * 50

        answer = await bench.http.post("/v1/chat/completions", content=chunks())
        assert answer.status_code == 413
        lines = access_lines(out)
    assert [(line["route"], line["status"]) for line in lines] in ([], [("/v1/chat/completions", 413)])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_said_to_have_left(tmp_path: Path, set_up: SetUp, stream: bool) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, ENDLESS) as bench:
        body = {"model": MODEL, "messages": HI, "stream": stream}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_post, bench, body)
            await until(lambda: bench.engine.received and bench.gateway.answers)
            nursery.cancel_scope.cancel()
        [line] = await wait_lines(out, 1)
        await bench.wait_idle()
    assert line["client_left"] is True
    assert line["streaming"] is stream
    assert line["status"] in ((200, 499) if stream else (499,))


async def _post(bench: Bench, body: dict[str, Any]) -> None:
    await bench.http.post("/v1/chat/completions", json=body)


async def test_a_stream_that_fails_is_200_with_its_error(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, ENDLESS) as bench:
        body = {"model": MODEL, "messages": HI, "stream": True}
        async with bench.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            chunks = answer.aiter_text()
            await anext(chunks)
            bench.kill(bench.engine)
            async for _ in chunks:
                pass
        [line] = await wait_lines(out, 1)
    assert (line["status"], line["client_left"]) == (200, False)
    assert line["error"]
    warnings = [json.loads(text) for text in out.getvalue().splitlines() if "stream ended with an error" in text]
    assert [(one["request_id"], one["worker"]) for one in warnings] == [(line["request_id"], line["worker"])]


async def test_probes_that_go_well_are_seen_at_debug_only(tmp_path: Path, set_up: SetUp) -> None:
    for level, expected in (("info", ["/readiness"]), ("debug", ["/health", "/readiness"])):
        out = set_up(level, as_json=True)
        (tmp_path / level).mkdir()
        async with open_gateway(tmp_path / level, HELLO, connect=False) as bench:
            await bench.http.get("/health")
            assert (await bench.http.get("/readiness")).status_code == 503
            await wait_lines(out, len(expected))
        assert [line["route"] for line in access_lines(out)] == expected


async def test_no_access_log_means_none(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up("debug", as_json=True)
    async with open_gateway(tmp_path, HELLO, access_log=False) as bench:
        assert (await bench.chat()).status_code == 200
        assert (await bench.http.get("/nowhere")).status_code == 404
    assert access_lines(out) == []


@pytest.mark.parametrize("as_json", [False, True])
async def test_no_line_at_any_level_holds_what_was_said_or_a_key(tmp_path: Path, set_up: SetUp, as_json: bool) -> None:
    out = set_up("debug", as_json=as_json)
    says = 'E["answertext"|"<EOS>"]'
    async with open_gateway(tmp_path, says, words='E["prompttext"]', api_key=("hunter2",)) as bench:
        key = {"authorization": "Bearer hunter2"}
        said = [{"role": "user", "content": "prompttext"}]
        for body in ({}, {"stream": True}, {"max_tokens": 10**6}, {"stop": "prompttext"}, {"tools": "prompttext"}):
            asked = {"model": MODEL, "messages": said} | body
            await bench.http.post("/v1/chat/completions", json=asked, headers=key)
        await bench.http.post("/v1/chat/completions", json={"messages": said}, headers={"x-api-key": "hunter3"})
        await bench.http.post("/v1/completions", json={"model": MODEL, "prompt": ["prompttext"]}, headers=key)
        await bench.http.post("/tokenize", json={"model": MODEL, "prompt": "prompttext"}, headers=key)
    assert "/v1/chat/completions" in out.getvalue()
    for word in ("prompttext", "answertext", "hunter"):
        assert word not in out.getvalue()


async def test_a_worker_s_lines_name_it_and_no_request(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO) as bench:
        url = f"ipc://{tmp_path}/s/added"
        body = {"url": url, "runtime_type": "vllm", "model_id": MODEL}
        answer = await bench.http.post("/workers", json=body, headers={"x-request-id": "adding"})
        assert answer.status_code == 202
        await until(lambda: f"waiting for engines to connect to {url}" in out.getvalue())
    lines = [json.loads(text) for text in out.getvalue().splitlines()]
    bound = [line for line in lines if line["message"] == "bound local transport sockets"]
    assert [(line["worker"], line.get("request_id")) for line in bound] == [(bench.urls[0], None), (url, None)]
    connected = [line for line in lines if line["message"] == "engines connected"]
    assert [(line["worker"], line["engine_count"]) for line in connected] == [(bench.urls[0], 1)]


async def test_each_request_of_a_connection_has_its_own_id(tmp_path: Path, set_up: SetUp) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO) as bench:
        for name in ("one", "two"):
            await bench.http.post(
                "/v1/chat/completions", json={"model": MODEL, "messages": HI}, headers={"x-request-id": name}
            )
        lines = await wait_lines(out, 2)
    assert [line["request_id"] for line in lines] == ["one", "two"]


# ---- alone ------------------------------------------------------------------------------------------------


async def test_nothing_is_followed_that_nobody_would_see(set_up: SetUp) -> None:
    for level, enabled, followed in (("info", True, True), ("warn", True, False), ("info", False, False)):
        set_up(level)
        assert (AccessLog(enabled=enabled).begin("GET", "/x") is not None) is followed


async def test_a_line_is_written_once_when_the_response_is_over(set_up: SetUp) -> None:
    out = set_up(as_json=True)
    line = AccessLog(enabled=True).begin("GET", "/x")
    assert line is not None
    line.answered(200, "")
    assert access_lines(out) == []
    line.ended(complete=False)
    line.client_left()
    assert [(line["status"], line["client_left"]) for line in access_lines(out)] == [(200, True)]


class _Nowhere(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_line_costs_some_ten_microseconds_and_nothing_above_its_level(set_up: SetUp, as_json: bool) -> None:
    log, generation = AccessLog(enabled=True), ObservedGeneration()

    def cost_us(rounds: int) -> float:
        """Of the cheapest of several runs: others use this machine too."""
        best = float("inf")
        for _ in range(7):
            began = time.process_time()
            for _ in range(rounds):
                line = log.begin("POST", "/v1/chat/completions")
                if line is not None:
                    line.generation_begins(generation)
                    line.first_output(1.0)
                    line.generation_ended(generation, Usage(10, 20), {"ipc:///w"}, 2.0)
                    line.answered(200, "")
                    line.ended(complete=True)
            best = min(best, (time.process_time() - began) / rounds)
        return best * 1e6

    set_up("info", out=_Nowhere(), as_json=as_json)
    assert logging.getLogger("smg_trio.access").isEnabledFor(logging.INFO)
    on = cost_us(1_000)
    set_up("warn", out=_Nowhere(), as_json=as_json)
    off = cost_us(1_000)
    # Generous: an order of magnitude would show, a busy machine does not.
    assert on < 60, on
    assert off < 3, off


async def test_people_read_what_happened_and_nothing_that_did_not(set_up: SetUp) -> None:
    out = set_up()
    line = AccessLog(enabled=True).begin("POST", "/x")
    assert line is not None
    line.answered(404, "")
    line.ended(complete=True)
    assert out.getvalue().partition("access: ")[2].startswith("POST /x 404 duration=0.0")
    for word in ("tokens", "model", "stream", "ttft", "worker", "error", "left"):
        assert word not in out.getvalue()
    line = AccessLog(enabled=True).begin("POST", "/x")
    assert line is not None
    generation = ObservedGeneration(streaming=True)
    line.generation_begins(generation)
    line.first_output(trio.current_time())
    line.generation_failed(generation, EngineDead("gone"))
    line.generation_ended(generation, Usage(10, 20), {"ipc:///b", "ipc:///a"}, trio.current_time())
    line.answered(200, "")
    line.ended(complete=False)
    assert " tokens=10+20 model=m stream worker=ipc:///a,ipc:///b error=engine_dead client left\n" in out.getvalue()
