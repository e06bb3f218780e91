"""Every way to be refused, on every lane: each answer has an id, a code, a line in the access log, and is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from smg_trio.gateway import run
from smg_trio.http import ServerLimits
from tests.certificates import Authority
from tests.gateway.conftest import set_up  # noqa: F401 - a fixture
from tests.gateway.observability.test_access_log import access_lines, wait_lines
from tests.waiting import read_to_end

from .harness import (
    HELLO,
    PATIENCE_S,
    Bench,
    open_gateway,
)
from .probes import WEBSOCKET
from .scrape import scrape
from .test_strictness import Dial, Stream, h2_answers, plain, secure

CHAT = "/v1/chat/completions"
USER = "user-key"
KEYS = f"""
[keys.user]
key = "{USER}"
[keys.admin]
key = "admin-key"
role = "admin"
"""
Headers = dict[str, str]


@dataclass(frozen=True)
class Way:
    """One way to be refused.

    Attributes:
        status, code: of the answer.
        label: the ``path`` that it is counted under.
        more: header fields beside the key's.
        body: sent whole, unless ``withheld``.
        http1, http2: on which lanes there is such a way.
    """

    name: str
    status: int
    code: str
    method: str = "POST"
    path: str = CHAT
    label: str = CHAT
    key: str = USER
    more: tuple[tuple[str, str], ...] = ()
    body: bytes = b"{}"
    withheld: bool = False
    http1: bool = True
    http2: bool = True


JSON = ("content-type", "application/json")
WAYS = [
    Way("no key", 401, "invalid_api_key", key=""),
    Way("a wrong key", 401, "invalid_api_key", key="wrong"),
    Way("a key of another role", 403, "permission_denied", path="/pause", label="/pause"),
    Way("another origin", 403, "origin_not_allowed", more=(("origin", "http://evil.example"),)),
    Way("no such route", 404, "not_found", path="/nowhere", label="unmatched"),
    Way("another method", 405, "method_not_allowed", method="PUT", label="unmatched", body=b""),
    Way("no such model", 404, "model_not_found", body=b'{"model":"other","messages":[{"role":"user","content":"x"}]}'),
    Way("no worker", 503, "no_available_workers", body=b'{"messages":[{"role":"user","content":"x"}]}'),
    Way("no JSON", 400, "json_parse_error", body=b"{"),
    Way("no messages", 400, "invalid_value"),
    Way("another content type", 415, "unsupported_media_type", more=(("content-type", "text/plain"),)),
    Way("another coding", 415, "unsupported_content_encoding", more=(("content-encoding", "br"),)),
    Way("a fault of ours", 500, "internal_error", method="GET", path="/readiness", label="/readiness", body=b""),
    Way("a declared length", 413, "request_too_large", more=(("content-length", "9999"),), withheld=True),
    Way("a length on a cold route", 413, "request_too_large", path="/tokenize", label="/tokenize", body=b"x" * 2000),
    Way("a body that does not come", 408, "request_timeout", more=(("content-length", "5"),), withheld=True),
    Way("a method that is refused", 405, "method_not_allowed", method="TRACE", label="unmatched", body=b""),
    Way("an unknown method", 501, "not_implemented", method="BREW", label="unmatched", body=b""),
    Way("an expectation", 417, "expectation_failed", more=(("expect", "x"),)),
    Way("too many headers", 431, "headers_too_large", more=tuple((f"x-{n}", "y") for n in range(201)), label=CHAT),
    Way("a broken head", 400, "bad_request", more=(("content-length", "x"),), withheld=True, http2=False),
    Way("a broken body", 400, "bad_request", more=(("transfer-encoding", "chunked"),), body=b"x\r\n", http2=False),
    Way("a target", 400, "bad_request", path="nowhere", label="unmatched", http1=False),
]
SOCKET, FEED = "/v1/responses", "/dashboard/feed"
socket = partial(Way, method="GET", path=SOCKET, label=SOCKET, body=b"")
HANDSHAKES = [
    socket("a handshake without a key", 401, "invalid_api_key", key=""),
    socket("a handshake of another origin", 403, "origin_not_allowed", more=(("origin", "http://evil.example"),)),
    socket("a handshake to nowhere", 404, "not_found", path="/nowhere", label="unmatched"),
    socket(
        "a watcher with a wrong key", 401, "invalid_api_key", path="/dashboard/feed", label="/dashboard/feed", key="x"
    ),
    socket("an old handshake", 426, "websocket_version_not_supported", label="unmatched"),
]


def fields_of(way: Way) -> list[tuple[str, str]]:
    fields = [("x-request-id", f"id {way.name}")]
    if way.key:
        fields.append(("authorization", f"Bearer {way.key}"))
    if not any(name == "content-type" for name, _ in way.more):
        fields.append(JSON)
    if way.body and not any(name in ("content-length", "transfer-encoding") for name, _ in way.more):
        fields.append(("content-length", str(len(way.body))))
    return [*fields, *way.more]


async def ask_http1(dial: Dial, way: Way, *own: str) -> tuple[int, Headers, bytes]:
    lines = [f"{way.method} {way.path} HTTP/1.1", "Host: localhost", *own]
    lines += [f"{name}: {value}" for name, value in fields_of(way)]
    head = "\r\n".join([*lines, "", ""]).encode()
    return await answer_to(dial, head + (b"" if way.withheld else way.body))


async def answer_to(dial: Dial, request: bytes) -> tuple[int, Headers, bytes]:
    async with await dial() as stream:
        if request:
            await stream.send_all(request)
        with trio.fail_after(PATIENCE_S):
            head, _, body = (await read_answer(stream)).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body


async def read_answer(stream: Stream) -> bytes:
    """One answer, which says how long it is."""
    data = b""
    while True:
        head, found, body = data.partition(b"\r\n\r\n")
        length = [line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        if found and length and len(body) >= int(length[0].split()[1]):
            return data
        piece = bytes(await stream.receive_some())
        assert piece, data
        data += piece


async def ask_http2(dial: Dial, way: Way) -> tuple[int, Headers, bytes]:
    pseudo = [(":method", way.method), (":scheme", "https"), (":authority", "localhost"), (":path", way.path)]
    async with await dial() as stream:
        body = None if way.withheld else way.body
        [(headers, answer)] = await h2_answers(stream, [[*pseudo, *fields_of(way)]], body)
    named = {name.decode(): value.decode() for name, value in headers.items()}
    return int(named[":status"]), named, answer


async def count_of(bench: Bench, way: Way) -> float:
    labels = {"path": way.label, "status_code": str(way.status), "error_code": way.code}
    return (await scrape(bench)).value("smg_http_responses_total", **labels)


async def check(bench: Bench, out: Any, way: Way, answer: tuple[int, Headers, bytes], before: float) -> None:
    status, headers, body = answer
    assert (status, headers["x-smg-error-code"]) == (way.status, way.code), (way.name, answer)
    assert headers["content-type"] == "application/json", way.name
    assert json.loads(body)["error"]["code"] == way.code, way.name
    assert headers["x-request-id"], way.name
    assert await count_of(bench, way) == before + 1, way.name
    line = (await wait_lines(out, 1))[-1]
    assert (line["status"], line["error"]) == (way.status, way.code), (way.name, line)
    assert line["request_id"] == headers["x-request-id"], way.name
    assert len(access_lines(out)) == 1, way.name
    out.seek(0)
    out.truncate()


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = partial(ServerLimits, head_timeout_s=0.3, body_timeout_s=0.3)
    monkeypatch.setattr(run, "ServerLimits", limits)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("lane", ["http1", "http1 under tls", "http2", "http2 under tls"])
async def test_every_refusal_is_complete(
    tmp_path: Path,
    set_up: Callable[..., Any],  # noqa: F811 - the fixture
    lane: str,
) -> None:
    out = set_up(as_json=True)
    keys = tmp_path / "keys.toml"
    await trio.Path(keys).write_text(KEYS)
    authority = Authority(tmp_path / "tls")
    settings = authority.settings if "tls" in lane else {}
    http2 = "http2" in lane
    async with open_gateway(
        tmp_path, HELLO, connect=False, api_key_file=str(keys), max_payload_size=1000, **settings
    ) as bench:
        bench.gateway.readiness = failing  # type: ignore[method-assign]
        protocol = ("h2",) if http2 else ("http/1.1",)
        dial = secure(bench.port, authority, *protocol) if settings else plain(bench.port)
        out.seek(0)
        out.truncate()
        for way in WAYS:
            if way.http2 if http2 else way.http1:
                before = await count_of(bench, way)
                answer = await (ask_http2(dial, way) if http2 else ask_http1(dial, way))
                await check(bench, out, way, answer, before)
                assert answer[1]["x-request-id"] == f"id {way.name}"


def failing() -> tuple[bool, str, int, int]:
    raise RuntimeError("on purpose")


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_refused_handshakes_are_complete(
    tmp_path: Path,
    set_up: Callable[..., Any],  # noqa: F811 - the fixture
    tls: bool,
) -> None:
    out = set_up(as_json=True)
    keys = tmp_path / "keys.toml"
    await trio.Path(keys).write_text(KEYS)
    authority = Authority(tmp_path / "tls")
    settings = authority.settings if tls else {}
    async with open_gateway(tmp_path, HELLO, connect=False, api_key_file=str(keys), **settings) as bench:
        dial = secure(bench.port, authority) if tls else plain(bench.port)
        for way in HANDSHAKES:
            own = [line.decode() for line in WEBSOCKET]
            if way.status == 426:
                own[-1] = "Sec-WebSocket-Version: 8"
            before = await count_of(bench, way)
            answer = await ask_http1(dial, way, *own)
            await check(bench, out, way, answer, before)
            assert answer[1]["x-request-id"] == f"id {way.name}"


@pytest.mark.usefixtures("short_limits")
async def test_what_the_server_refuses_before_there_is_a_request_is_complete(
    tmp_path: Path,
    set_up: Callable[..., Any],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = set_up(as_json=True)
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        dial = plain(bench.port)
        metrics = plain(int(bench.metrics_url.rpartition(":")[2].partition("/")[0]))
        for name, status, code, where, request in (
            ("no HTTP", 400, "bad_request", dial, b"\x16\x03\x01\r\n\r\n"),
            ("no version", 400, "bad_request", dial, b"GET /\r\n\r\n"),
            ("another version", 505, "http_version_not_supported", dial, b"GET / HTTP/1.2\r\nHost: localhost\r\n\r\n"),
            ("a long head", 431, "headers_too_large", dial, b"GET /" + b"x" * 70_000),
            ("a slow head", 408, "request_timeout", dial, b"GET / HTTP/1.1\r\nHost: loc"),
            ("a slow head of metrics", 408, "request_timeout", metrics, b"GET /metrics HTTP/1.1\r\n"),
            ("no page of metrics", 404, "not_found", metrics, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            ("metrics of evil", 403, "host_not_allowed", metrics, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
            ("a host of evil", 403, "host_not_allowed", dial, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        ):  # fmt: skip
            way = Way(name, status, code, label="/metrics" if b"/metrics" in request else "unmatched")
            before = await count_of(bench, way)
            await check(bench, out, way, await answer_to(where, request), before)


async def test_one_connection_too_many_is_told_so_completely(
    tmp_path: Path,
    set_up: Callable[..., Any],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = set_up(as_json=True)
    monkeypatch.setattr(run, "ServerLimits", partial(ServerLimits, max_connections=1))
    async with (
        open_gateway(tmp_path, HELLO, connect=False) as bench,
        await trio.open_tcp_stream("127.0.0.1", bench.port) as first,
    ):
        way = Way("one too many", 503, "too_many_connections", label="unmatched")
        before = await count_of(bench, way)
        await first.send_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await first.receive_some()
        async with await trio.open_tcp_stream("127.0.0.1", bench.port) as second:
            head, _, body = (await read_to_end(second)).partition(b"\r\n\r\n")
        named = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        await check(bench, out, way, (int(head.split(b" ")[1]), named, body), before)


async def test_plain_http_to_a_tls_port_is_told_so_completely(
    tmp_path: Path,
    set_up: Callable[..., Any],  # noqa: F811 - the fixture
) -> None:
    out = set_up(as_json=True)
    authority = Authority(tmp_path / "tls")
    async with open_gateway(tmp_path, HELLO, connect=False, **authority.settings) as bench:
        way = Way("plain", 400, "bad_request", label="unmatched")
        before = await count_of(bench, way)
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await check(bench, out, way, await answer_to(plain(bench.port), request), before)


async def test_an_endpoint_s_own_shape_is_kept_where_the_server_refuses(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False, max_payload_size=10) as bench:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await bench.http.post(path, content=b"x" * 11)
            assert answer.status_code == 413
            assert answer.json()["error"]["type"] == "request_too_large"
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
        worker = await bench.http.patch("/workers/w", content=b"x" * 11)
        assert (worker.status_code, set(worker.json())) == (413, {"error", "code"})


async def test_a_preflight_and_a_scrape_have_an_id_too(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        named = {"x-request-id": "mine", "origin": "http://a.example"}
        preflight = await bench.http.options(CHAT, headers=named)
        assert (preflight.status_code, preflight.headers["x-request-id"]) == (204, "mine")
        page = await bench.http.get(bench.metrics_url, headers=named)
        assert (page.status_code, page.headers["x-request-id"]) == (200, "mine")
        assert (await scrape(bench)).value("smg_http_responses_total", path="unmatched", status_code="204") == 1
