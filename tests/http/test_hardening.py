"""What must hold with both parsers and with TLS: limits, errors, idle and stuck clients, what has ended a server."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from smg_trio.http import Receive, Scope, Send, ServerLimits, Shutdown
from tests.waiting import read_to_end

from .running import (
    GET,
    Stream,
    Waiting,
    ask,
    connect,
    conversation,
    echo,
    flood,
    reset,
    respond,
    running_server,
    talk,
    until,
)

LANES = [
    pytest.param({}, id="plain"),
    pytest.param({"tls": True}, id="tls"),
]
every_lane = pytest.mark.parametrize("lane", LANES)

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def post(body: bytes, *, length: int | None = None) -> bytes:
    """A POST with a declared length."""
    head = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"
    return head % (len(body) if length is None else length) + body


@every_lane
async def test_a_request_is_answered(lane: dict[str, Any]) -> None:
    async with running_server(echo, **lane) as server, conversation(server) as client:
        for _ in range(2):
            answer = await client.answer(post(b"hello").replace(b"/", b"/a%20b?c=d", 1))
            assert (answer.status, answer.body) == (200, b'["POST", "/a b", "c=d", "hello"]')
            assert b"date" in answer.headers


@every_lane
@pytest.mark.parametrize("trailing", [b"x", b"\x81\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096])
async def test_a_websocket_upgrade_with_trailing_bytes_ends_only_its_connection(
    lane: dict[str, Any], trailing: bytes
) -> None:
    async with running_server(echo, **lane) as server:
        await talk(server, UPGRADE + trailing)
        assert (await ask(server, GET)).status == 200


@every_lane
async def test_a_client_that_stops_reading_does_not_hold_the_shutdown(lane: dict[str, Any]) -> None:
    shutdown = Shutdown()
    blocked = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            with trio.move_on_after(0.2) as patience:
                await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
            if patience.cancelled_caught:
                blocked.set()
                break
        await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})

    with trio.fail_after(5):
        async with running_server(app, shutdown=shutdown, **lane) as server:
            stream = await connect(server)
            await stream.send_all(GET)
            await blocked.wait()
            shutdown.begin(0.2)
    await stream.aclose()


@every_lane
async def test_a_client_that_takes_nothing_is_cut_after_the_write_timeout(lane: dict[str, Any]) -> None:
    async with running_server(flood, limits=ServerLimits(write_timeout_s=0.3), **lane) as server:
        stream = await connect(server)
        await stream.send_all(GET)
        await until(server, connections_accepted=1, connections_open=0)
        await stream.aclose()


@every_lane
async def test_an_idle_connection_is_closed_after_the_keep_alive_timeout(lane: dict[str, Any]) -> None:
    limits = ServerLimits(keep_alive_timeout_s=0.3)
    async with running_server(echo, limits=limits, **lane) as server, conversation(server) as client:
        assert (await client.answer(GET)).status == 200
        assert await read_to_end(client.stream) == b""


@every_lane
async def test_a_declared_body_beyond_the_limit_is_answered_with_413(lane: dict[str, Any]) -> None:
    async with running_server(echo, limits=ServerLimits(max_body_bytes=10), **lane) as server:
        answer = await ask(server, post(b"", length=11))
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.headers[b"connection"] == b"close"


@every_lane
async def test_a_chunked_body_beyond_the_limit_is_answered_with_413(lane: dict[str, Any]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running_server(echo, limits=ServerLimits(max_body_bytes=10), **lane) as server:
        answer = await ask(server, head + b"8\r\n12345678\r\n8\r\n12345678\r\n0\r\n\r\n")
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"


@every_lane
@pytest.mark.parametrize("size", [200_000, 30_000_000])
async def test_a_client_that_uploads_on_can_still_read_its_413(lane: dict[str, Any], size: int) -> None:
    async def upload(stream: Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # closed before all was sent
            await stream.send_all(post(b"x" * size))

    async with (
        running_server(echo, limits=ServerLimits(max_body_bytes=10), **lane) as server,
        conversation(server) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(upload, client.stream)
        assert (await client.read()).status == 413
        nursery.cancel_scope.cancel()


@every_lane
async def test_a_body_that_stalls_is_answered_with_408(lane: dict[str, Any]) -> None:
    async with running_server(echo, limits=ServerLimits(body_timeout_s=0.3), **lane) as server:
        answer = await ask(server, post(b"half", length=8))
        assert answer.status == 408
        assert answer.error["code"] == "request_timeout"


CHUNKED = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"


@every_lane
@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (post(b"", length=10_000), b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
        (post(b"x" * 1_000_000, length=2_000_000), b"x"),
        (CHUNKED + b"1;", b"y"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n"),
    ],
    ids=["sized", "chunks", "after a fast start", "chunk extension", "trailers"],
)
async def test_a_body_that_trickles_is_answered_with_408(lane: dict[str, str], begin: bytes, drop: bytes) -> None:
    limits = ServerLimits(body_timeout_s=0.3, min_body_rate=1e6)
    async with running_server(echo, limits=limits, **lane) as server, conversation(server) as client:
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                await client.stream.send_all(begin)
                with suppress(trio.BrokenResourceError):
                    while True:
                        await client.stream.send_all(drop)
                        await trio.sleep(0.03)

            nursery.start_soon(trickle)
            answer = await client.read()
            nursery.cancel_scope.cancel()
        assert answer.status == 408
        assert answer.error["code"] == "request_timeout"


@every_lane
async def test_a_body_that_keeps_the_pace_may_take_its_time(lane: dict[str, str]) -> None:
    limits = ServerLimits(body_timeout_s=0.3, min_body_rate=1000)
    async with running_server(echo, limits=limits, **lane) as server, conversation(server) as client:
        await client.stream.send_all(post(b"", length=4 * 1000))
        for _ in range(4):
            await client.stream.send_all(b"x" * 1000)
            await trio.sleep(0.2)
        assert (await client.read()).status == 200


@every_lane
@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: test\r\nBroken\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: test\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: test\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    ],
    ids=["no host", "broken line", "too long", "too many lines"],
)
async def test_an_unacceptable_head_is_answered_in_json(lane: dict[str, Any], request_head: bytes, status: int) -> None:
    async with running_server(echo, **lane) as server:
        answer = await ask(server, request_head)
        assert answer.status == status
        assert answer.error["message"]
        assert answer.headers[b"connection"] == b"close"


@every_lane
async def test_an_app_that_fails_is_answered_with_500_and_serves_on(lane: dict[str, Any]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/bad":
            raise ValueError("on purpose")
        await respond(send, b"fine")

    async with running_server(app, **lane) as server:
        assert (await ask(server, GET.replace(b"/", b"/bad", 1))).status == 500
        assert (await ask(server, GET)).body == b"fine"


@every_lane
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_client_that_leaves_is_noticed_while_the_app_waits(lane: dict[str, Any], how: str) -> None:
    app = Waiting()
    async with running_server(app, **lane) as server:
        stream = await connect(server)
        await stream.send_all(post(b"hello"))
        await app.entered.wait()
        if how == "fin":
            await stream.aclose()
        else:
            reset(stream)
        with trio.fail_after(0.5):
            await app.left.wait()
        assert app.last == {"type": "http.disconnect"}


@every_lane
async def test_draining_finishes_what_runs_and_closes_what_is_idle(lane: dict[str, Any]) -> None:
    shutdown = Shutdown()
    entered, go_on = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            entered.set()
            await go_on.wait()
        await respond(send, b"done")

    with trio.fail_after(5):
        async with (
            running_server(app, shutdown=shutdown, **lane) as server,
            conversation(server) as idle,
            conversation(server) as busy,
        ):
            assert (await idle.answer(GET)).status == 200
            await busy.stream.send_all(GET.replace(b"/", b"/slow", 1))
            await entered.wait()
            shutdown.begin(5)
            assert await read_to_end(idle.stream) == b""
            with pytest.raises(OSError, match="all attempts to connect"):
                await connect(server)
            go_on.set()
            assert (await busy.read()).body == b"done"
            assert await read_to_end(busy.stream) == b""


@every_lane
async def test_small_answers_on_a_kept_connection_are_not_delayed(lane: dict[str, Any]) -> None:
    times = []
    async with running_server(echo, **lane) as server, conversation(server) as client:
        for _ in range(20):
            began = trio.current_time()
            await client.stream.send_all(post(b"hello")[:-5])
            await client.answer(b"hello")
            times.append(trio.current_time() - began)
    assert sorted(times)[10] < 0.02
