"""Requests that go to workers behind HTTP: bytes and headers both ways, retries, faults, limits; scripted servers."""

from __future__ import annotations

import json
import logging
import re
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.workers import WorkerState
from smg_trio.gateway.run import run_gateway
from smg_trio.settings.settings import Settings
from tests.certificates import Authority
from tests.upstream.scripted import Call, free_port, scripted
from tests.waiting import until

from .fronts import ANSWER, answering, asked, front_of, open_front, serving, wait_http_ready
from .harness import HI, Bench
from .test_retries import metric, metrics

SSE = [
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b": comment\n\nda",
    b'ta: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
]
BODY = b'{ "model" : "m", "x_unknown": 1.50, "messages":[{"role":"user","content":"h\\u00e9"}]  , "stream":%s}'


async def streaming(call: Call) -> None:
    """A whole stream."""
    await call.begin("content-type: text/event-stream; charset=utf-8", "x-own: 1", "x-own: 2")
    for piece in SSE:
        await call.chunk(piece)
    await call.end()


def post(front: Bench, body: bytes = BODY % b"false", path: str = "/v1/chat/completions", **headers: str) -> Any:
    """One request with a body as it is."""
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return front.http.post(path, content=body, headers=sent)


PATHS = [
    "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/responses", "/generate", "/v1/embeddings", "/v1/score", "/v1/rerank",
    "/v1/classify", "/tokenize", "/detokenize",
]  # fmt: skip


async def test_every_endpoint_sends_the_clients_bytes_and_no_credential_of_the_client(tmp_path: Path) -> None:
    secret = "the-clients-key"
    settings = {"api_key": (secret,), "worker_api_key": "the-workers-key", "forward_headers": ("X-Extra",)}
    async with front_of(tmp_path, answering, **settings) as (front, (server,)):
        body = BODY % b"false"
        for path in PATHS:
            response = await post(
                front,
                body,
                path,
                authorization=f"Bearer {secret}",
                x_api_key=secret,
                cookie="a=b",
                x_forwarded_for="1.2.3.4",
                x_request_id=f"id-of-{path}",
                x_extra="kept",
                x_other="dropped",
                traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )
            assert (path, response.status_code) == (path, 200)
            assert response.content == ANSWER
            assert response.headers["x-request-id"] == f"id-of-{path}"
        got = asked(server)
        assert [one.path for one in got] == PATHS
        for one in got:
            assert one.body == body
            assert secret not in str(one.headers)
            assert {"cookie", "x-api-key", "x-forwarded-for", "x-other"}.isdisjoint(name for name, _ in one.headers)
            assert one.header("authorization") == "Bearer the-workers-key"
            assert one.header("x-extra") == "kept"
            assert one.header("x-request-id") == f"id-of-{one.path}"
            assert one.header("traceparent") == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            assert one.header("x-smg-hops") == "1"
            assert one.header("accept-encoding") == "identity"
        assert all(one.header("authorization") == "Bearer the-workers-key" for one in server.received)


async def test_a_stream_passes_byte_for_byte_and_its_usage_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "smg_trio.access")
    async with front_of(tmp_path, streaming) as (front, (server,)):
        response = await post(front, BODY % b"true")
        assert response.content == b"".join(SSE)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers.get_list("x-own") == ["1", "2"]
        assert response.headers["x-smg-routed-worker"] == front.gateway.registry.http.workers()[0].spec.worker_id
        await front.wait_idle()
        text = await metrics(front)
        labels = {"connection_mode": "http", "model": "m", "endpoint": "chat"}
        assert metric(text, "smg_router_requests_total", **labels, streaming="true") == 1
        assert metric(text, "smg_router_tokens_total", **labels, token_type="input") == 5
        assert metric(text, "smg_router_tokens_total", **labels, token_type="output") == 2
        assert metric(text, "smg_router_ttft_seconds_count", **labels) == 1
        assert metric(text, "smg_worker_pool_size", connection_mode="http", model="m") == 1
        assert metric(text, "smg_worker_health") == 1
        line = next(one for one in caplog.records if one.name == "smg_trio.access")
        assert "tokens=5+2" in line.__dict__["fields"].words()
        assert server.url in line.__dict__["fields"].words()


async def test_a_whole_answer_is_counted_and_a_stream_without_usage_is_not_guessed_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "smg_trio.access")

    async def script(call: Call) -> None:
        if b'"stream":true' in call.request.body:
            await call.begin()
            await call.chunk(SSE[0])
            await call.end()
        else:
            await answering(call)

    async with front_of(tmp_path, script) as (front, _):
        await post(front)
        await post(front, BODY % b"true")
        await front.wait_idle()
        words = [one.__dict__["fields"].words() for one in caplog.records if one.name == "smg_trio.access"]
        assert "tokens=7+3" in words[0]
        assert "tokens=" not in words[1]
        assert metric(await metrics(front), "smg_router_tokens_total", token_type="output") == 3


@pytest.mark.parametrize("status", ["400 Bad", "404 Gone", "422 No", "429 Slow", "500 Oops", "503 Busy"])
async def test_the_workers_own_refusal_is_the_clients(tmp_path: Path, status: str) -> None:
    async def script(call: Call) -> None:
        await call.answer(
            b'{"error":"own"}', status, "content-type: application/json", "retry-after: 7", "set-cookie: a=1",
            "set-cookie: b=2", "x-smg-error-code: forged", "server: secret", "x-ratelimit-limit-tokens: 1",
        )  # fmt: skip

    async with front_of(tmp_path, script) as (front, (server,)):
        response = await post(front, BODY % b"true")
        assert response.status_code == int(status[:3])
        assert response.content == b'{"error":"own"}'
        assert response.headers["content-type"] == "application/json"
        assert response.headers["retry-after"] == "7"
        assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert {"x-smg-error-code", "x-ratelimit-limit-tokens"}.isdisjoint(response.headers)
        assert response.headers.get("server") != "secret"
        assert len(asked(server)) == 1


async def test_compressed_answers_stay_what_they_say_they_are(tmp_path: Path) -> None:
    import gzip

    packed = gzip.compress(ANSWER)

    async def script(call: Call) -> None:
        await call.answer(packed, "200 OK", "content-type: application/json", "content-encoding: gzip")

    async with front_of(tmp_path, script) as (front, _):
        assert (await post(front)).content == ANSWER  # the client's library unpacks it


@pytest.mark.parametrize("status", ["502 Bad", "503 Busy", "504 Late", "429 Slow"])
async def test_a_busy_worker_is_passed_over_for_one_that_is_free(tmp_path: Path, status: str) -> None:
    async def busy(call: Call) -> None:
        await call.answer(b"{}", status)

    async with front_of(tmp_path, busy, answering, policy="round_robin") as (front, (first, second)):
        for _ in range(4):
            assert (await post(front)).status_code == 200
        assert len(asked(second)) == 4
        assert 1 <= len(asked(first)) <= 4


async def test_a_500_and_a_400_are_not_tried_elsewhere(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.answer(b"{}", "500 Oops" if call.number % 2 else "400 Bad")

    async with front_of(tmp_path, script, script) as (front, servers):
        assert {(await post(front)).status_code for _ in range(6)} == {400, 500}
        assert sum(len(asked(one)) for one in servers) == 6


async def test_a_dead_worker_costs_no_request_and_is_known_at_once(tmp_path: Path) -> None:
    async def closes(call: Call) -> bool:
        return True

    async with front_of(tmp_path, closes, answering, policy="round_robin") as (front, (first, _)):
        for _ in range(6):
            assert (await post(front)).status_code == 200
        first.stop_listening()
        for _ in range(6):
            assert (await post(front)).status_code == 200
        dead = front.gateway.registry.http.workers()[0]
        with trio.fail_after(5):
            await dead.wait_state(WorkerState.NOT_READY)
        assert "reached" in dead.snapshot().reason


async def test_nobody_can_be_reached(tmp_path: Path) -> None:
    async with front_of(tmp_path, answering) as (front, (server,)):
        server.stop_listening()
        front.gateway.registry.http.workers()[0].client.pool.close()
        response = await post(front)
        assert response.status_code in (502, 503)
        assert str(server.port) not in response.text
        assert response.json()["error"]["code"] in ("upstream_unreachable", "no_available_workers")


async def test_a_worker_that_closes_without_an_answer(tmp_path: Path) -> None:
    async def closes(call: Call) -> bool:
        return True

    async with front_of(tmp_path, closes, retry_max_retries=3) as (front, (server,)):
        response = await post(front)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "upstream_disconnected"
        assert str(server.port) not in response.text
        assert 3 <= len(asked(server)) <= 6  # twice where a connection of the probes was used again


@pytest.mark.parametrize(
    ("path", "ending"),
    [
        ("/v1/chat/completions", rb'data: \{"error":.*"upstream_truncated".*\}\n\n$'),
        ("/v1/messages", rb'event: error\ndata: \{"type":"error",.*\}\n\n$'),
        ("/v1/responses", rb'event: error\ndata: \{"type": "error", "code": "upstream_truncated".*\}\n\n$'),
    ],
)
async def test_a_stream_that_breaks_off_ends_with_an_error_event(tmp_path: Path, path: str, ending: bytes) -> None:
    async def breaks(call: Call) -> bool:
        await call.begin()
        await call.chunk(SSE[0])
        return True

    async with front_of(tmp_path, breaks, answering) as (front, _):
        found = [await post(front, BODY % b"true", path) for _ in range(2)]
        (broken,) = [one for one in found if one.content != ANSWER]
        assert broken.status_code == 200
        assert broken.content.startswith(SSE[0])
        assert re.search(ending, broken.content, re.DOTALL)
        assert b"[DONE]" not in broken.content
        await front.wait_idle()


async def test_a_whole_answer_that_breaks_off_is_a_502(tmp_path: Path) -> None:
    async def breaks(call: Call) -> bool:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{")
        return True

    async with front_of(tmp_path, breaks) as (front, (server,)):
        response = await post(front)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "upstream_truncated"
        assert len(asked(server)) == 1


@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_a_client_that_leaves_ends_the_request_at_the_worker(tmp_path: Path, stream: bytes) -> None:
    closed = trio.Event()

    async def endless(call: Call) -> None:
        if stream == b"true":
            await call.begin()
            await call.chunk(SSE[0])
        await call.wait_closed()
        closed.set()

    async with front_of(tmp_path, endless) as (front, (server,)):
        with trio.move_on_after(0.2):
            async with front.http.stream(
                "POST", "/v1/chat/completions", content=BODY % stream, headers={"content-type": "application/json"}
            ) as response:
                async for _ in response.aiter_raw():
                    break
        with trio.fail_after(2):
            await closed.wait()
        await front.wait_idle()
        assert len(asked(server)) == 1


async def test_a_refused_key_is_not_the_clients_fault(tmp_path: Path) -> None:
    async def refuses(call: Call) -> None:
        await call.answer(b"{}", "401 No")

    async with front_of(tmp_path, refuses) as (front, _):
        response = await post(front)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "upstream_key_refused"
        worker = front.gateway.registry.http.workers()[0]
        assert worker.state is WorkerState.NOT_READY
        assert "api_key" in worker.snapshot().reason
        assert (await post(front)).status_code == 503


async def test_a_worker_that_shuts_down_gets_nothing_more_and_ends_what_it_has(tmp_path: Path) -> None:
    go_on = trio.Event()

    async def script(call: Call) -> None:
        if len(asked(servers[0])) == 1:
            await call.begin()
            await call.chunk(SSE[0])
            await go_on.wait()
            await call.chunk(SSE[2])
            await call.end()
        else:
            await call.answer(b'{"error":{"message":"bye","code":"shutting_down"}}', "503 Busy")

    async with front_of(tmp_path, script, answering, policy="round_robin") as (front, servers):
        got: list[httpx.Response] = []

        async def stream() -> None:
            got.append(await post(front, BODY % b"true"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream)
            await until(lambda: asked(servers[0]))
            for _ in range(4):
                assert (await post(front)).status_code == 200
            assert len(asked(servers[0])) == 2
            assert front.gateway.registry.http.workers()[0].state is WorkerState.NOT_READY
            go_on.set()
        assert got[0].content == SSE[0] + SSE[2]
        worker_id = front.gateway.registry.http.workers()[0].spec.worker_id
        assert front.gateway.registry.breaker(worker_id).judged[False] == 0  # type: ignore[union-attr]


async def test_failures_open_the_breaker(tmp_path: Path) -> None:
    async def fails(call: Call) -> None:
        await call.answer(b"{}", "500 Oops")

    async with front_of(tmp_path, fails, cb_failure_threshold=3) as (front, (server,)):
        assert [(await post(front)).status_code for _ in range(5)] == [500, 500, 500, 503, 503]
        assert len(asked(server)) == 3


async def test_a_request_in_a_circle_ends(tmp_path: Path) -> None:
    async with front_of(tmp_path, answering) as (front, (server,)):
        response = await post(front, x_smg_hops="3")
        assert response.status_code == 508
        assert not asked(server)
        assert (await post(front, x_smg_hops="2")).status_code == 200
        assert asked(server)[0].header("x-smg-hops") == "3"


async def test_streams_over_http2_and_from_a_worker_with_tls(tmp_path: Path) -> None:
    worker, own = Authority(tmp_path / "worker"), Authority(tmp_path / "own")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(worker.cert, worker.key)
    settings = {"upstream_ca": str(worker.ca), "http2": True, **own.settings}
    async with scripted(serving(streaming), tls=context) as server:
        url = f"https://localhost:{server.port}"
        async with open_front(tmp_path, url, **settings) as front:
            for _ in range(2):
                response = await post(front, BODY % b"true")
                assert response.http_version == "HTTP/2"
                assert response.content == b"".join(SSE)
            await front.wait_idle()
            assert metric(await metrics(front), "smg_router_ttft_seconds_count", endpoint="chat") == 2
        async with open_front(tmp_path / "own", url, ready=0) as front:
            worker_seen = front.gateway.registry.http.workers()[0]
            await until(lambda: "TLS" in worker_seen.snapshot().reason)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"worker_urls": ("http://h:1", "http://h:1/")}, "--worker-urls"),
        ({"worker_urls": ("http://127.0.0.1:5",), "port": 5}, "--worker-urls"),
        ({"worker_urls": ("http://u:secret@h",)}, "--worker-urls"),
        ({"forward_headers": ("Authorization",)}, "--forward-headers"),
        ({"forward_headers": ("a b",)}, "--forward-headers"),
        ({"worker_api_key": ""}, "--worker-api-key"),
        ({"worker_api_key_file": "/nowhere/key"}, "--worker-api-key-file"),
        ({"upstream_ca": "/nowhere/ca.pem"}, "--upstream-ca"),
        ({"health_check_endpoint": "health"}, "--health-check-endpoint"),
        ({"upstream_idle_secs": 0.0}, "--upstream-idle-secs"),
    ],
)
async def test_settings_that_cannot_work(settings: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await run_gateway(Settings(**settings))
    assert caught.value.option == option
    assert "secret" not in caught.value.message


async def test_models_are_found_listed_and_renamed(tmp_path: Path) -> None:
    models = {"data": [{"id": "a/b", "owned_by": "sglang", "max_model_len": 77, "created": 5}, {"id": "ad"}]}
    server = scripted(serving(answering, json.dumps(models).encode()))
    async with server as one, open_front(tmp_path, one.url, model_alias=("gpt-x=a/b",)) as front:
        listed = (await front.http.get("/v1/models")).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in listed] == [("a/b", 77), ("ad", None)]
        assert (await front.http.get("/v1/models/a/b")).json()["created"] == 5
        assert (await front.http.get("/v1/models/c")).status_code == 404
        body = b'{"model": "zz", "n": [{"model": "zz"}], "model" : "gpt-x" , "messages": []}'
        assert (await post(front, body)).status_code == 200
        assert asked(one)[0].body == body.replace(b'"gpt-x"', b'"a/b"')
        response = await post(front, json.dumps({"model": "other", "messages": HI}).encode())
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        worker = (await front.http.get("/workers")).json()["workers"][0]
        assert worker["connection_mode"] == "http"
        assert worker["runtime_type"] == "sglang"
        assert [model["id"] for model in worker["models"]] == ["a/b", "ad"]


async def test_the_only_model_needs_no_name_and_stands_in_for_claude(tmp_path: Path) -> None:
    async with front_of(tmp_path, answering) as (front, (server,)):
        assert (await post(front, b'{"messages": []}')).status_code == 200
        assert asked(server)[0].body == b'{"messages": []}'
        assert (await post(front, b'{"model": "claude-3", "messages": []}', "/v1/messages")).status_code == 200
        assert asked(server)[1].body == b'{"model": "m", "messages": []}'


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"[]", 400), (b"{", 400), (b'{"model": 5}', 400), (b'{"model": "m"', 400)]
)
async def test_what_is_no_request_is_refused_here(tmp_path: Path, body: bytes, status: int) -> None:
    async with front_of(tmp_path, answering) as (front, (server,)):
        assert (await post(front, body)).status_code == status
        assert not asked(server)


async def test_a_worker_that_has_not_said_what_it_serves(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{await free_port()}"
    async with open_front(tmp_path, url, ready=0) as front:
        response = await post(front)
        assert response.status_code == 503
        assert url not in response.text
        assert (await front.http.get("/readiness")).status_code == 503


async def test_a_worker_is_added_changed_and_removed_at_run_time(tmp_path: Path) -> None:
    async def script(call: Call) -> bool | None:
        if call.request.header("authorization") != "Bearer k":
            await call.answer(b"{}", "401 No")
            return None
        return await serving(answering)(call)

    async with scripted(script) as server, open_front(tmp_path) as front:
        added = await front.http.post("/workers", json={"url": server.url})
        assert added.status_code == 202
        path = added.json()["location"]
        await until(front.gateway.registry.http.workers)
        worker = front.gateway.registry.http.workers()[0]
        await until(lambda: "api_key" in worker.snapshot().reason)
        shown = (await front.http.get(path)).json()
        assert (shown["status"], shown["connection_mode"]) == ("pending", "http")
        assert (await front.http.patch(path, json={"api_key": "k"})).status_code == 202
        await wait_http_ready(front, 1)
        assert (await post(front)).status_code == 200
        assert (await front.http.post("/workers", json={"url": server.url})).status_code == 409
        assert (await front.http.delete(path)).status_code == 202
        await until(lambda: not front.gateway.registry.http.workers())
        response = await front.chat()
        assert response.status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "http://"},
        {"url": "http://u:p@h:1"},
        {"url": "http://h:1/?q"},
        {"url": "http://h:0"},
        {"url": "http://h:99999"},
        {"url": "grpc://h:1"},
    ],
)
async def test_urls_that_are_none(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with open_front(tmp_path) as front:
        response = await front.http.post("/workers", json=fields)
        assert response.status_code == 400
        assert ":p@" not in response.text


async def test_engines_behind_http_are_not_administered_here(tmp_path: Path) -> None:
    async with front_of(tmp_path, answering) as (front, (server,)):
        worker_id = front.gateway.registry.http.workers()[0].spec.worker_id
        for path in ("/flush_cache", f"/flush_cache?worker_id={worker_id}"):
            response = await front.http.post(path)
            assert response.status_code == 501, response.text
            assert "behind HTTP" in response.text
        assert not asked(server)


async def test_limits_of_a_key_hold_for_relayed_requests(tmp_path: Path) -> None:
    async with front_of(tmp_path, streaming, api_key=("KEY",), key_tokens_per_minute=12) as (front, (server,)):
        auth = {"authorization": "Bearer KEY"}
        assert (await post(front, BODY % b"true", **auth)).status_code == 200
        assert (await post(front, BODY % b"true", **auth)).status_code == 200  # 14 used now
        refused = await post(front, BODY % b"true", **auth)
        assert refused.status_code == 429
        assert (await post(front)).status_code == 401
        assert len(asked(server)) == 2


async def test_responses_stay_with_the_worker_that_made_them_and_with_their_key(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        port = call.stream.socket.getsockname()[1]  # type: ignore[attr-defined]
        path = call.request.path
        if path == "/v1/responses":
            await call.answer(b'{"id": "resp_%d_%d", "usage": null}' % (port, call.number))
        elif str(port) in path and call.request.method != "DELETE":
            await call.answer(b'{"at": %d}' % port)
        elif str(port) in path:
            await call.answer(b'{"deleted": true}')
        else:
            await call.answer(b"{}", "404 None")

    settings = {"tenant_api_key": ("a:KA", "b:KB"), "policy": "round_robin"}
    async with front_of(tmp_path, script, script, **settings) as (front, servers):
        mine, theirs = {"authorization": "Bearer KA"}, {"authorization": "Bearer KB"}
        body = {"model": "m", "input": "hi"}
        made = [(await front.http.post("/v1/responses", json=body, headers=mine)).json()["id"] for _ in range(4)]
        assert {name.split("_")[1] for name in made} == {str(one.port) for one in servers}
        for name in made:
            port = int(name.split("_")[1])
            assert (await front.http.get(f"/v1/responses/{name}", headers=mine)).json() == {"at": port}
            assert (await front.http.get(f"/v1/responses/{name}", headers=theirs)).status_code == 404
            following = body | {"previous_response_id": name}
            made_after = (await front.http.post("/v1/responses", json=following, headers=mine)).json()["id"]
            assert made_after.split("_")[1] == str(port)
            assert (await front.http.post("/v1/responses", json=following, headers=theirs)).status_code == 404
            assert (await front.http.delete(f"/v1/responses/{name}", headers=mine)).status_code == 200
            assert (await front.http.get(f"/v1/responses/{name}", headers=mine)).status_code == 404
        refused = await front.http.post("/v1/responses", json=body | {"conversation": "conv_1"}, headers=mine)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")


async def test_a_response_made_before_this_gateway_is_looked_for_where_no_key_is_needed(tmp_path: Path) -> None:
    def keeping(name: str) -> Any:
        async def script(call: Call) -> None:
            known = call.request.path.startswith(f"/v1/responses/{name}")
            await call.answer(b'{"id": "%s"}' % name.encode(), "200 OK" if known else "404 None")

        return script

    async with front_of(tmp_path, keeping("resp_a"), keeping("resp_b")) as (front, _):
        assert (await front.http.get("/v1/responses/resp_b")).json() == {"id": "resp_b"}
        assert (await front.http.get("/v1/responses/resp_b/input_items?limit=3")).status_code == 200
        assert (await front.http.get("/v1/responses/resp_c")).status_code == 404
        assert (await front.http.get("/v1/responses/..%2Fworkers")).status_code == 404


async def test_cache_aware_keeps_texts_together(tmp_path: Path) -> None:
    async with front_of(tmp_path, answering, answering, policy="cache_aware") as (front, servers):
        texts = [f"conversation {number} " * 40 for number in range(6)]
        for _ in range(3):
            for text in texts:
                await post(front, json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode())
        seen = [{one.body for one in asked(server)} for server in servers]
        assert not seen[0] & seen[1]
        assert all(seen)
