"""One strictness on all lanes: hot and cold routes, with and without TLS, the metrics listener, WebSockets, HTTP/2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
import trio

from tests.certificates import Authority
from tests.waiting import read_to_end

from .harness import (
    HELLO,
    Bench,
    open_gateway,
)
from .probes import CHUNKED, HANDSHAKES, HOST, PROBES, SMUGGLED, WEBSOCKET, Probe

AT_ONCE = 16
STATUS_LINE = re.compile(rb"HTTP/1\.[01] [0-9]{3} ")
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Dial = Callable[[], Any]


def plain(port: int) -> Dial:
    async def dial() -> Stream:
        return await trio.open_tcp_stream("127.0.0.1", port)

    return dial


def secure(port: int, authority: Authority, *protocols: str) -> Dial:
    context = authority.trusting()
    context.set_alpn_protocols(protocols or ["http/1.1"])

    async def dial() -> Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        return trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)

    return dial


async def faults_of(dial: Dial, probes: Sequence[Probe], target: bytes, own: tuple[bytes, ...] = ()) -> dict[str, str]:
    """What was wrong with the answers to `probes`."""
    found: dict[str, str] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def try_one(probe: Probe) -> None:
        async with limiter, await dial() as stream:
            try:
                with trio.fail_after(8):
                    await stream.send_all(probe.bytes_for(target, own))
                    answer = await read_to_end(stream)
            except trio.TooSlowError:
                found[probe.name] = "the connection was not closed"
                return
        problem = problem_of(probe, answer, reads_bodies=target.startswith(b"POST"))
        if problem:
            found[probe.name] = f"{problem}: {answer[:300]!r}"

    async with trio.open_nursery() as nursery:
        for probe in probes:
            nursery.start_soon(try_one, probe)
    return found


def problem_of(probe: Probe, answer: bytes, *, reads_bodies: bool) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    if len(STATUS_LINE.findall(answer)) != 1 or b"/smuggled" in answer:
        return "more or less than one answer"
    if b"\r\nx-request-id: " not in head:
        return "no request id"
    if probe.is_about_the_body and not reads_bodies:
        return ""
    status = int(head.split(b" ")[1])
    if status != probe.status and (status, probe.status) != (400, 501):
        return f"not {probe.status}"
    code = json.loads(body)["error"]["code"]
    return "" if f"\r\nx-smg-error-code: {code}\r\n".encode() in head + b"\r\n" else "not the code of its body"


async def assert_serves_on(bench: Bench) -> None:
    assert (await bench.http.get("/health")).status_code == 200


def test_there_are_enough_probes() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES) >= 99


async def test_without_tls(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        dial = plain(bench.port)
        metrics = plain(int(bench.metrics_url.rpartition(":")[2].partition("/")[0]))
        assert await faults_of(dial, PROBES, b"POST /v1/chat/completions") == {}
        assert await faults_of(dial, PROBES, b"POST /tokenize") == {}
        assert await faults_of(dial, PROBES, b"GET /nowhere") == {}
        assert await faults_of(metrics, PROBES, b"GET /metrics") == {}
        assert await faults_of(dial, HANDSHAKES, b"GET /v1/responses") == {}
        assert await faults_of(metrics, HANDSHAKES, b"GET /metrics") == {}
        # A handshake is held to the same as any other request.
        handshakes = [probe for probe in PROBES if probe.raw or probe.lines[:1] not in ((), (CHUNKED,))]
        assert await faults_of(dial, handshakes, b"GET /dashboard/feed", WEBSOCKET) == {}
        await assert_serves_on(bench)
        assert bench.gateway.answers == 0


async def test_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    async with open_gateway(tmp_path, HELLO, connect=False, **authority.settings) as bench:
        dial = secure(bench.port, authority)
        assert await faults_of(dial, PROBES, b"POST /v1/chat/completions") == {}
        assert await faults_of(dial, PROBES, b"POST /tokenize") == {}
        assert await faults_of(dial, HANDSHAKES, b"GET /v1/responses") == {}
        await assert_serves_on(bench)


SERVED = {
    "an extension": (CHUNKED, b'5;a=b;c="d"\r\n{"x":\r\n2 ; e\r\n1}\r\n0\r\n\r\n'),
    "a trailer": (CHUNKED, b'7\r\n{"x":1}\r\n0\r\nContent-Length: 48\r\n\r\n'),
    "upper case": (b"TRANSFER-ENCODING: CHUNKED", b'7\r\n{"x":1}\r\n00\r\n\r\n'),
    "a length with zeros": (b"Content-Length: 007", b'{"x":1}'),
    "blanks around": (b"Content-Length: \t 7 \t", b'{"x":1}'),
    "an upgrade that is not needed": (b"Content-Length: 7\r\nConnection: Upgrade\r\nUpgrade: h2c", b'{"x":1}'),
}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_what_is_odd_but_plain_is_served_and_the_connection_kept(tmp_path: Path, tls: bool) -> None:
    authority = Authority(tmp_path / "tls")
    settings = authority.settings if tls else {}
    async with open_gateway(tmp_path, HELLO, connect=False, **settings) as bench:
        dial = secure(bench.port, authority) if tls else plain(bench.port)
        last = SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for name, (line, body) in SERVED.items():
            for path in (b"/v1/chat/completions", b"/tokenize"):
                async with await dial() as stream:
                    head = b"\r\n".join([b"\r\nPOST " + path + b" HTTP/1.1", HOST, line, b"", b""])
                    await stream.send_all(head + body + last)
                    answer = await read_to_end(stream)
                assert answer.count(b"HTTP/1.1 ") == 2, (name, answer)
                assert b"GET /smuggled" in answer, (name, answer)
                assert b"bad_request" not in answer, (name, answer)


@pytest.mark.parametrize("listener", ["http", "metrics"])
async def test_no_upgrade_leads_to_http2(tmp_path: Path, listener: str) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"
    async with open_gateway(tmp_path, HELLO, connect=False) as bench:
        port = bench.port if listener == "http" else int(bench.metrics_url.rpartition(":")[2].partition("/")[0])
        for method in (b"GET", b"OPTIONS"):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                head = b"\r\n".join([method + b" /metrics HTTP/1.1", HOST, upgrade, b"", b""])
                await stream.send_all(head + preface)
                answers = STATUS_LINE.findall(await read_to_end(stream))
            assert answers[0] != b"HTTP/1.1 101 "
            assert answers[1:] in ([], [b"HTTP/1.1 505 "])


# ---- HTTP/2 ------------------------------------------------------------------------------------------------

H2_GOOD = {":method": "POST", ":scheme": "https", ":authority": "localhost", ":path": "/tokenize"}
H2_CONNECT = {":method": "CONNECT", ":scheme": "https", ":authority": "localhost", ":path": "/v1/responses"}
H2_SOCKET = {":protocol": "websocket", "sec-websocket-version": "13"}
H2_PROBES: dict[str, tuple[int, list[tuple[str, str]]]] = {
    "lengths, equal": (400, [*H2_GOOD.items(), ("content-length", "0"), ("content-length", "0")]),
    "a length beyond the limit": (413, [*H2_GOOD.items(), ("content-length", "99999999999")]),
    "an expectation": (417, [*H2_GOOD.items(), ("expect", "a-miracle")]),
    "an unknown method": (501, [*(H2_GOOD | {":method": "BREW"}).items()]),
    "a method in lower case": (501, [*(H2_GOOD | {":method": "post"}).items()]),
    "a method that is refused": (405, [*(H2_GOOD | {":method": "TRACE"}).items()]),
    "a target without a slash": (400, [*(H2_GOOD | {":path": "tokenize"}).items()]),
    "a target with a blank": (400, [*(H2_GOOD | {":path": "/a b"}).items()]),
    "a target that is not ASCII": (400, [*(H2_GOOD | {":path": "/é"}).items()]),
    "too many headers": (431, [*H2_GOOD.items(), *((f"x-{number}", "y") for number in range(201))]),
    "CONNECT": (405, [(":method", "CONNECT"), (":authority", "localhost:1")]),
    "CONNECT with another protocol": (405, [*(H2_CONNECT | {":protocol": "connect-udp"}).items()]),
    "a WebSocket without a version": (426, [*(H2_CONNECT | {":protocol": "websocket"}).items()]),
    "an old WebSocket": (426, [*(H2_CONNECT | H2_SOCKET | {"sec-websocket-version": "8"}).items()]),
    "a WebSocket to nowhere": (404, [*(H2_CONNECT | H2_SOCKET | {":path": "/nowhere"}).items()]),
}


H2_FATAL: dict[str, list[tuple[str, str]]] = {
    "a listed length": [*H2_GOOD.items(), ("content-length", "0, 0")],
    "a signed length": [*H2_GOOD.items(), ("content-length", "+0")],
    "no number": [*H2_GOOD.items(), ("content-length", "x")],
    "two hosts": [*H2_GOOD.items(), ("host", "evil.example")],
    "a transfer coding": [*H2_GOOD.items(), ("transfer-encoding", "chunked")],
    "a header of HTTP/1.1": [*H2_GOOD.items(), ("connection", "upgrade")],
    "a name in upper case": [*H2_GOOD.items(), ("X-A", "b")],
    "a path twice": [*H2_GOOD.items(), (":path", "/b")],
    "no path": [item for item in H2_GOOD.items() if item[0] != ":path"],
    "CONNECT with a path": [*H2_CONNECT.items()],
}
"""What ends the connection."""


@pytest.mark.parametrize("listener", ["tls", "prior knowledge"])
async def test_http2(tmp_path: Path, listener: str) -> None:
    authority = Authority(tmp_path / "tls")
    settings = authority.settings if listener == "tls" else {}
    async with open_gateway(tmp_path, HELLO, connect=False, **settings) as bench:
        dial = secure(bench.port, authority, "h2") if settings else plain(bench.port)
        async with await dial() as stream:
            found = await h2_answers(stream, [fields for _, fields in H2_PROBES.values()])
        for (name, (status, _)), (headers, body) in zip(H2_PROBES.items(), found, strict=True):
            assert headers[b":status"] == b"%d" % status, (name, headers, body)
            assert headers[b"x-smg-error-code"].decode() == json.loads(body)["error"]["code"], name
            assert headers[b"x-request-id"], name
        for name, fields in H2_FATAL.items():
            async with await dial() as stream:
                assert await h2_answers(stream, [fields]) == [], name
        async with await dial() as stream:
            assert len(await h2_answers(stream, [[*H2_GOOD.items()]])) == 1


async def h2_answers(
    stream: Stream, requests: list[list[tuple[str, str]]], body: bytes | None = b""
) -> list[tuple[dict[bytes, bytes], bytes]]:
    """Headers and body of the answer to each request, all on one connection; none if that is ended.

    `body`: of every request; None if it is announced and never sent.
    """
    config = h2.config.H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None
    )
    client = h2.connection.H2Connection(config)
    client.initiate_connection()
    headers: dict[int, dict[bytes, bytes]] = {}
    bodies: dict[int, bytes] = {}
    ended: set[int] = set()
    numbers = range(1, 2 * len(requests), 2)
    for number, fields in zip(numbers, requests, strict=True):
        client.send_headers(number, fields, end_stream=body == b"")
        if body:
            client.send_data(number, body, end_stream=True)
    await stream.send_all(client.data_to_send())
    with trio.fail_after(8):
        while len(ended) < len(requests):
            data = bytes(await stream.receive_some())
            if not data:
                return []
            for event in client.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    headers[event.stream_id] = {bytes(name): bytes(value) for name, value in event.headers}
                elif isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                elif isinstance(event, h2.events.StreamEnded):
                    ended.add(event.stream_id)
            await stream.send_all(client.data_to_send())
    return [(headers[number], bodies.get(number, b"")) for number in numbers]
