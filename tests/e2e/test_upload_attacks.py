"""Uploads of those who may not upload are refused at their heads, on every lane; those of the others share a bound."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest
import trio

from tests.certificates import Authority

from .harness import HELLO, PATIENCE_S, Bench, chat_body, connect, connect_over, open_gateway, post, read_until

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

MIB = 1 << 20
DECLARED = 60 * MIB
"""What an attacker says it will send, and tries to; within what is allowed."""
MOST_TAKEN = 16 * MIB
"""Of that, what may leave it: the server reads 256 KiB, the rest are buffers of the kernel on both sides."""
PIECE = b"x" * 65536
KEYS: dict[str, Any] = {"api_key": ("k",), "control_plane_api_keys": ("v:viewer:user:look", "a:admin:admin:rule")}
LANES = ("plain", "tls")
lanes = pytest.mark.parametrize("lane", LANES)


@dataclass(frozen=True)
class Refused:
    """A request that must be answered without its body."""

    target: str
    status: int
    key: str = ""

    def head(self, *more: str) -> bytes:
        method, path = self.target.split()
        lines = [f"{method} {path} HTTP/1.1", "Host: test", "Content-Type: application/json", *more]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode()


REFUSED = [
    Refused("POST /v1/chat/completions", 401),
    Refused("POST /v1/chat/completions", 401, "wrong"),
    Refused("POST /v1/embeddings", 401),
    Refused("POST /v1/responses", 403, "look"),
    Refused("POST /tokenize", 401),
    Refused("POST /v1/conversations", 401, "wrong"),
    Refused("POST /parse/reasoning", 401),
    Refused("POST /workers", 403, "look"),
    Refused("PUT /workers/x", 403, "k"),
    Refused("POST /sleep", 401),
    Refused("POST /nowhere", 404),
    Refused("POST /v1/models", 405),
    Refused("PATCH /v1/chat/completions", 405, "k"),
    Refused("GET /v1/models", 401),
    Refused("DELETE /v1/responses/x", 401),
    Refused("GET /health", 200),
    Refused("POST /ping", 200),
]


@asynccontextmanager
async def gateway_on(lane: str, tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Bench, Authority | None]]:
    authority = Authority(tmp_path / "tls") if lane == "tls" else None
    chosen: dict[str, Any] = authority.settings if authority else {}
    async with open_gateway(tmp_path, HELLO, **chosen, **settings) as bench:
        yield bench, authority


async def read_all(stream: Stream) -> bytes:
    data = b""
    with suppress(trio.BrokenResourceError, ssl.SSLError):
        while piece := await stream.receive_some(65536):
            data += piece
    return data


async def upload(stream: Stream, head: bytes, *, chunked: bool) -> tuple[bytes, int]:
    """Send a head and as much of a body as is taken; what is answered until the server closes, and how much left."""
    sent, answer = 0, b""

    async def send() -> None:
        nonlocal sent
        piece = b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            await stream.send_all(head)
            while sent < DECLARED:
                await stream.send_all(piece)
                sent += len(PIECE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        answer = await read_all(stream)
        nursery.cancel_scope.cancel()
    return answer, sent


@lanes
@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_what_is_refused_is_refused_at_its_head(tmp_path: Path, lane: str, chunked: bool) -> None:
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {DECLARED}"
    async with gateway_on(lane, tmp_path, **KEYS) as (bench, authority):

        async def attack(refused: Refused) -> None:
            stream = await connect_over(bench.port, authority)
            answer, sent = await upload(stream, refused.head(framing), chunked=chunked)
            head = answer.partition(b"\r\n\r\n")[0].lower()
            assert head.startswith(b"http/1.1 %d" % refused.status), (refused, answer[:200])
            assert b"\r\nconnection: close" in head, refused
            assert answer.count(b"HTTP/1.1 ") == 1
            assert sent < MOST_TAKEN, refused
            await trio.aclose_forcefully(stream)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for refused in REFUSED:
                    nursery.start_soon(attack, refused)
        assert bench.gateway.bodies.held == 0
        answer = await bench.http.post("/v1/chat/completions", json=chat_body(), headers={"authorization": "Bearer k"})
        assert answer.status_code == 200


@lanes
async def test_a_refusal_does_not_wait_for_a_body_that_does_not_come(tmp_path: Path, lane: str) -> None:
    async with gateway_on(lane, tmp_path, **KEYS) as (bench, authority):
        for refused in REFUSED:
            for expects in ((), ("Expect: 100-continue",)):
                stream = await connect_over(bench.port, authority)
                with trio.fail_after(PATIENCE_S):
                    await stream.send_all(refused.head(f"Content-Length: {DECLARED}", *expects))
                    answer = b""
                    while b"HTTP/1.1 %d" % refused.status not in answer:
                        piece = await stream.receive_some(65536)
                        assert piece, (refused, answer)
                        answer += piece
                    assert b" 100 " not in answer
                await trio.aclose_forcefully(stream)


async def test_over_http2_one_stream_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    async with gateway_on("tls", tmp_path, **KEYS) as (bench, authority):
        stream = await connect_over(bench.port, authority, "h2")
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        statuses: dict[int, str] = {}
        resets: dict[int, int] = {}
        ended: set[int] = set()

        def open_stream(refused: Refused, body: bytes | None = None) -> int:
            method, path = refused.target.split()
            headers = [(":method", method), (":path", path), (":scheme", "https"), (":authority", "t")]
            headers += [("content-type", "application/json")]
            if refused.key:
                headers.append(("authorization", f"Bearer {refused.key}"))
            stream_id = client.get_next_available_stream_id()
            client.send_headers(stream_id, headers)
            if body is not None:
                client.send_data(stream_id, body, end_stream=True)
            return stream_id

        async def talk_until(stream_id: int, over: set[int] | dict[int, int]) -> int:
            """Send on that stream for as long as it is open; how much of it was taken."""
            sent = 0
            while stream_id not in over:
                with suppress(h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError):
                    while over is resets and (room := client.local_flow_control_window(stream_id)):
                        client.send_data(stream_id, PIECE[: min(room, 16384)])
                        sent += min(room, 16384)
                await stream.send_all(client.data_to_send())
                for event in client.receive_data(await stream.receive_some(65536)):
                    if isinstance(event, h2.events.ResponseReceived):
                        statuses[event.stream_id] = dict(event.headers)[":status"]
                    elif isinstance(event, h2.events.StreamReset):
                        resets[event.stream_id] = event.error_code
                    elif isinstance(event, h2.events.StreamEnded):
                        ended.add(event.stream_id)
                    elif isinstance(event, h2.events.DataReceived):
                        client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return sent

        with trio.fail_after(PATIENCE_S):
            for refused in REFUSED:
                stream_id = open_stream(refused)
                assert await talk_until(stream_id, resets) < MIB, refused
                assert statuses[stream_id] == str(refused.status), refused
                assert resets[stream_id] == h2.errors.ErrorCodes.NO_ERROR, refused
            body = json.dumps(chat_body()).encode()
            while client.outbound_flow_control_window < len(body):  # what was sent in vain is given back
                client.receive_data(await stream.receive_some(65536))
            stream_id = open_stream(Refused("POST /v1/chat/completions", 200, "k"), body)
            await talk_until(stream_id, ended)
            assert statuses[stream_id] == "200"
        assert bench.gateway.bodies.held == 0
        await trio.aclose_forcefully(stream)


@lanes
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_all_bodies_together_are_bounded(tmp_path: Path, lane: str, path: str) -> None:
    limits = {"max_payload_size": MIB, "max_payload_memory": MIB}
    async with gateway_on(lane, tmp_path, **limits) as (bench, authority):
        body = json.dumps(chat_body(user="x" * 700_000) if "chat" in path else {"prompt": "x" * 700_000}).encode()
        whole = post(path, body)
        first, second = await connect_over(bench.port, authority), await connect_over(bench.port, authority)
        with trio.fail_after(PATIENCE_S):
            await first.send_all(whole[:-1])
            while bench.gateway.bodies.held < len(body) - 1:
                await trio.lowlevel.checkpoint()
            answer, _ = await upload(second, whole, chunked=False)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer.lower()
            assert b'"payload_memory_full"' in answer
            assert bench.gateway.bodies.held == len(body) - 1
            await first.send_all(whole[-1:])
            assert b" 200 " in (await first.receive_some(65536))[:16]
            assert bench.gateway.bodies.held == 0
            third = await connect_over(bench.port, authority)
            await third.send_all(whole[:-1])
            while bench.gateway.bodies.held < len(body) - 1:
                await trio.lowlevel.checkpoint()
            await trio.aclose_forcefully(third)
            while bench.gateway.bodies.held:
                await trio.lowlevel.checkpoint()
        for stream in (first, second):
            await trio.aclose_forcefully(stream)


async def test_a_body_is_given_up_when_it_has_been_parsed(tmp_path: Path) -> None:
    async with gateway_on("fast", tmp_path) as (bench, _):
        bench.say('E["Hel"|…]')
        async with await connect(bench.port) as stream:
            with trio.fail_after(PATIENCE_S):
                await stream.send_all(post("/v1/chat/completions", chat_body(stream=True)))
                await read_until(stream, b"data: ")
                assert bench.gateway.answers == 1
                assert bench.gateway.bodies.held == 0
