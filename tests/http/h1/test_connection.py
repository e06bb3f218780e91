"""The fast lane on real sockets: order, back-pressure, timeouts, disconnects, and clients that mean harm."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
from typing import Any

import pytest
import trio
import trio.testing

from smg_trio.http import (
    CANCEL_ON_DISCONNECT,
    ClientGone,
    Receive,
    RequestTooLarge,
    RunningServer,
    Scope,
    Send,
    ServerLimits,
    Shutdown,
)
from tests.http.running import (
    GET,
    PATIENCE_S,
    Waiting,
    ask,
    connect,
    conversation,
    echo,
    flood,
    read_body,
    reset,
    respond,
    running_server,
    talk,
    until,
)
from tests.waiting import read_to_end

CHUNKED = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
EXPECTING = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_pipelined_requests_are_answered_in_order() -> None:
    requests = [
        b"GET /1 HTTP/1.1\r\nHost: test\r\n\r\n",
        b"POST /2 HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc",
        CHUNKED.replace(b"/", b"/3", 1) + b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n",
        b"GET /4 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
        b"GET /5 HTTP/1.1\r\nHost: test\r\n\r\n",
    ]
    async with running_server(echo) as server, conversation(server) as client:
        await client.stream.send_all(b"".join(requests))
        answers = [json.loads((await client.read()).body) for _ in range(4)]
        assert answers == [
            ["GET", "/1", "", ""],
            ["POST", "/2", "", "abc"],
            ["POST", "/3", "", "def"],
            ["GET", "/4", "", ""],
        ]
        assert await read_to_end(client.stream) == b""


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_request_in_small_pieces_is_the_same_request(size: int) -> None:
    data = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"
    async with running_server(echo) as server, conversation(server) as client:
        for start in range(0, len(data), size):
            await client.stream.send_all(data[start : start + size])
            await trio.testing.wait_all_tasks_blocked()
        assert json.loads((await client.read()).body) == ["POST", "/", "", "hello"]


async def test_a_large_body_streams_through() -> None:
    largest = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal largest
        size, more = 0, True
        while more:
            message = await receive()
            more = message["more_body"]
            size += len(message["body"])
            largest = max(largest, len(message["body"]))
        await respond(send, b"%d" % size)

    size = 5_000_000
    head = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size
    async with running_server(app) as server:
        assert (await ask(server, head + b"x" * size)).body == b"%d" % size
    assert largest <= 300_000


async def test_an_upload_waits_while_the_app_does_not_read() -> None:
    entered, go_on = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await go_on.wait()
        await respond(send, b"%d" % len(await read_body(receive)))

    size = 30_000_000
    head = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size
    async with running_server(app) as server, conversation(server) as client:
        with trio.move_on_after(0.3) as patience:
            await client.stream.send_all(head + b"x" * size)
        assert entered.is_set()
        assert patience.cancelled_caught


async def test_continue_is_sent_when_the_app_reads_the_body() -> None:
    async with running_server(echo) as server, conversation(server) as client:
        await client.stream.send_all(EXPECTING)
        assert await client.stream.receive_some() == CONTINUE
        assert (await client.answer(b"hello")).status == 200
        assert (await client.answer(GET)).status == 200


async def test_continue_is_not_sent_when_the_app_refuses() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"no", status=401)

    async with running_server(app) as server:
        answer = await talk(server, EXPECTING)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in answer


async def test_a_head_request_has_a_length_and_no_body() -> None:
    async with running_server(echo) as server, conversation(server) as client:
        for _ in range(2):
            answer = await client.answer(GET.replace(b"GET", b"HEAD"), method="HEAD")
            assert (answer.status, answer.body) == (200, b"")


async def test_a_body_the_app_does_not_read_is_skipped() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, scope["path"].encode())

    request = b"POST /%d HTTP/1.1\r\nHost: test\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000
    async with running_server(app) as server, conversation(server) as client:
        assert (await client.answer(request % 1)).body == b"/1"
        assert (await client.answer(request % 2)).body == b"/2"


async def test_a_head_that_stalls_is_answered_with_408() -> None:
    limits = ServerLimits(head_timeout_s=0.3)
    async with running_server(echo, limits=limits) as server:
        answer = await ask(server, GET[:-2])
        assert answer.status == 408
        assert answer.error["code"] == "request_timeout"


async def test_a_connection_that_says_nothing_is_closed_silently() -> None:
    limits = ServerLimits(head_timeout_s=0.3)
    async with running_server(echo, limits=limits) as server:
        assert await talk(server, b"") == b""


async def test_drip_fed_heads_end_in_time_and_serve_others_meanwhile() -> None:
    limits = ServerLimits(head_timeout_s=0.5)

    async def drip(server: RunningServer) -> None:
        stream = await connect(server)
        try:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: test\r\n")
            while True:
                await stream.send_all(b"X: y\r\n")
                await trio.sleep(0.05)
        except trio.BrokenResourceError:
            pass

    async with running_server(echo, limits=limits) as server:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(drip, server)
                await until(server, connections_open=50)
                assert (await ask(server, GET)).status == 200
        await until(server, connections_open=0)


async def test_a_departure_is_seen_behind_a_pipelined_request() -> None:
    app = Waiting()
    async with running_server(app) as server:
        stream = await connect(server)
        await stream.send_all(GET)
        await app.entered.wait()
        await stream.send_all(GET * 1000)
        await stream.aclose()
        with trio.fail_after(0.5):
            await app.left.wait()
        assert app.last == {"type": "http.disconnect"}


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_departure_cancels_the_registered_scope(how: str) -> None:
    entered, left = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with trio.CancelScope() as cancel_scope:
            scope["extensions"][CANCEL_ON_DISCONNECT](cancel_scope)
            entered.set()
            await trio.sleep_forever()
        if cancel_scope.cancelled_caught:
            left.set()

    async with running_server(app) as server:
        stream = await connect(server)
        await stream.send_all(GET)
        await entered.wait()
        if how == "fin":
            await stream.aclose()
        else:
            reset(stream)
        with trio.fail_after(0.5):
            await left.wait()


async def test_a_departure_cancels_an_app_that_has_no_scope_of_its_own() -> None:
    entered, left = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][CANCEL_ON_DISCONNECT]()
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async with running_server(app) as server:
        stream = await connect(server)
        await stream.send_all(GET)
        await entered.wait()
        await stream.aclose()
        with trio.fail_after(0.5):
            await left.wait()
        await until(server, connections_open=0)


async def test_a_scope_outlives_its_request_unharmed() -> None:
    scopes: list[trio.CancelScope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(trio.CancelScope())
        scope["extensions"][CANCEL_ON_DISCONNECT](scopes[-1])
        await respond(send, b"")

    async with running_server(app) as server:
        assert (await ask(server, GET)).status == 200
        await until(server, connections_open=0)
    assert not scopes[0].cancel_called


async def test_sending_to_a_client_that_left_raises() -> None:
    raised: list[BaseException] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await flood(scope, receive, send)
        except ClientGone as error:
            raised.append(error)
            raise

    async with running_server(app) as server:
        stream = await connect(server)
        await stream.send_all(GET)
        await stream.receive_some()
        reset(stream)
        await until(server, connections_open=0, connections_accepted=1)
    assert raised


@pytest.mark.parametrize("answered", [False, True])
async def test_a_half_closed_client_is_gone_unless_configured(answered: bool) -> None:
    entered = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with trio.move_on_after(0.3) as cancel_scope:
            scope["extensions"][CANCEL_ON_DISCONNECT](cancel_scope)
            entered.set()
            await trio.sleep_forever()
        if trio.current_time() >= cancel_scope.deadline:
            await respond(send, b"late")

    limits = ServerLimits(answer_half_closed=answered)
    async with running_server(app, limits=limits) as server, await connect(server) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        await entered.wait()
        await stream.send_eof()
        assert (b"late" in await read_to_end(stream)) == answered


async def test_a_slow_reader_gets_everything_and_holds_the_producer_back() -> None:
    produced = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal produced
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for index in range(200):
            await send({"type": "http.response.body", "body": b"%05d" % index * 20_000, "more_body": index < 199})
            produced += 1

    async with running_server(app) as server, conversation(server) as client:
        await client.stream.send_all(GET)
        await client.stream.receive_some(1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert produced < 200


async def test_senders_of_one_response_do_not_mix_their_bytes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def say(letter: bytes) -> None:
            for _ in range(5):
                await send({"type": "http.response.body", "body": letter * 1_000_000, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            for letter in (b"a", b"b", b"c"):
                nursery.start_soon(say, letter)
        await send({"type": "http.response.body", "body": b""})

    async with running_server(app) as server:
        body = (await ask(server, GET)).body
    parts = [body[start : start + 1_000_000] for start in range(0, len(body), 1_000_000)]
    assert len(parts) == 15
    assert all(len(set(part)) == 1 for part in parts)


async def test_a_response_cut_by_its_own_app_ends_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})

    async with running_server(app) as server:
        answer = await talk(server, GET + GET)
        assert answer.endswith(b"4\r\npart\r\n")
        assert answer.count(b"HTTP/1.1") == 1


async def test_an_app_may_answer_a_body_that_is_too_large_itself() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_body(receive)
        except RequestTooLarge as fault:
            await respond(send, b"mine", status=fault.status)

    async with running_server(app, limits=ServerLimits(max_body_bytes=3)) as server:
        answer = await ask(server, CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")
        assert (answer.status, answer.body) == (413, b"mine")
        assert answer.headers[b"connection"] == b"close"


async def test_a_fault_within_an_exception_group_is_answered() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_body, receive)

    async with running_server(app) as server:
        answer = await ask(server, CHUNKED + b"zz\r\n")
        assert answer.status == 400
        assert answer.error["code"] == "bad_request"


async def test_draining_is_told_in_the_next_response() -> None:
    shutdown = Shutdown()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        shutdown.begin(PATIENCE_S)
        await trio.testing.wait_all_tasks_blocked()
        await respond(send, b"last")

    async with running_server(app, shutdown=shutdown) as server, conversation(server) as client:
        answer = await client.answer(GET)
        assert answer.headers[b"connection"] == b"close"
        assert await read_to_end(client.stream) == b""


async def test_a_flood_of_pipelined_requests_is_answered_in_bounded_memory() -> None:
    count = 100_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def pour(stream: trio.SocketStream) -> None:
        for _ in range(0, count, 1000):
            await stream.send_all(b"GET / HTTP/1.1\r\nHost:a\r\n\r\n" * 1000)

    async with running_server(app) as server, await connect(server) as stream:
        answers, tail = 0, b""
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pour, stream)
                while answers < count:
                    data = tail + await stream.receive_some(2**20)
                    whole, _, tail = data.rpartition(b"\r\n\r\n")
                    answers += whole.count(b"HTTP/1.1 204")
        assert answers == count
        assert server.statistics().requests == count


HARM = [
    b"",
    b"\x00" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n" * 5000,
    GET[:-1],
    GET * 3,
    GET + b"\xff" * 100,
    CHUNKED + b"5\r\nhello\r\n",
    CHUNKED + b"ffffffffffffffff\r\n",
    CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + GET,
    EXPECTING,
    EXPECTING + b"hello" + GET,
    b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 99\r\n\r\nshort",
    b"GET / HTTP/1.1\r\nHost: test\r\nX: " + b"y" * 100_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 40,
    GET + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x01",
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """``data`` with a few bytes changed, removed or doubled."""
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.randrange(3)] = rng.choice([b"", b"\r", b"\n", b" ", b":", b"\x00", b"0", b"GET /"])
    return bytes(changed)


async def attack(server: RunningServer, data: bytes, rng: random.Random) -> None:
    """Sends ``data`` in pieces, then leaves in one of four ways."""
    stream = await connect(server)
    try:
        at = 0
        while at < len(data):
            step = rng.choice([1, 10, 1000, 100_000])
            await stream.send_all(data[at : at + step])
            at += step
        leaving = rng.randrange(4)
        if leaving == 0:
            reset(stream)
        elif leaving == 1:
            await stream.send_eof()
            await read_to_end(stream)
        elif leaving == 2:
            with trio.move_on_after(0.05):
                await read_to_end(stream)
    except trio.BrokenResourceError:
        pass
    finally:
        await stream.aclose()


async def test_no_bytes_crash_the_server_or_leak(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(20_240_501)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await echo(scope, receive, send)
            except ConnectionError:
                return

    limits = ServerLimits(head_timeout_s=0.5, body_timeout_s=0.5, linger_timeout_s=0.2)
    before = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.ERROR, logger="smg_trio.http"):
        async with running_server(app, limits=limits) as server:
            for _ in range(5):
                async with trio.open_nursery() as nursery:
                    for harm in HARM:
                        nursery.start_soon(attack, server, harm, rng)
                        nursery.start_soon(attack, server, mutate(harm, rng), rng)
            assert (await ask(server, GET)).status == 200
            await until(server, connections_open=0)
    assert len(os.listdir("/proc/self/fd")) == before
    assert [record.getMessage() for record in caplog.records if "failed" in record.getMessage()] == []


async def test_a_plain_answer_is_one_segment() -> None:
    """Head and body of a small answer leave in one write: one receive gives all of it."""
    async with running_server(echo) as server, await connect(server) as stream:
        for _ in range(5):
            await stream.send_all(GET)
            assert (await stream.receive_some()).endswith(b'["GET", "/", "", ""]')
        assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_the_scope_is_plain_asgi() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(scope)
        await respond(send, b"")

    async with running_server(app) as server:
        await ask(server, b"GET /a%2Fb%20c?d=%20 HTTP/1.1\r\nHost: test\r\n\r\n")
        assert seen["server"] == ("127.0.0.1", server.port)
    assert (seen["type"], seen["http_version"], seen["scheme"]) == ("http", "1.1", "http")
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a/b c", b"/a%2Fb%20c", b"d=%20")
    assert seen["headers"] == [(b"host", b"test")]
    assert seen["client"][0] == "127.0.0.1"
