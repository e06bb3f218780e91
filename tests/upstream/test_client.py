"""One request and its response over a pool of connections, against servers that behave and servers that do not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from smg_trio.core.http_addresses import HttpAddress
from smg_trio.upstream.client import Exchange, UpstreamClient, UpstreamLimits, UpstreamRequest
from smg_trio.upstream.connections import Connection
from smg_trio.upstream.errors import (
    UpstreamDisconnected,
    UpstreamTimeout,
    UpstreamTruncated,
    UpstreamUnreachable,
)
from smg_trio.upstream.response_reader import ResponseHead
from tests.certificates import Authority
from tests.waiting import until

from .scripted import Call, Scripted, free_port, scripted

POST = UpstreamRequest(
    method="POST", path="/v1/x?y=1", headers=[("content-type", "application/json")], body=b'{"a": 1}'
)


@asynccontextmanager
async def running(
    address: HttpAddress, limits: UpstreamLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient(address, "w1", limits, tls=tls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        yield client
        nursery.cancel_scope.cancel()


async def ask(client: UpstreamClient, request: UpstreamRequest = POST) -> tuple[ResponseHead, bytes]:
    return await client.fetch(request, 1 << 20, 10)


async def test_a_request_arrives_as_it_is_and_the_connection_is_used_again() -> None:
    async with scripted() as server, running(server.address) as client:
        for _ in range(3):
            head, body = await ask(client)
            assert (head.status, body) == (200, b"{}")
        got = server.received[0]
        assert (got.method, got.path, got.body) == ("POST", "/v1/x?y=1", b'{"a": 1}')
        assert got.header("host") == f"127.0.0.1:{server.port}"
        assert (got.header("user-agent") or "").startswith("smg-trio/")
        assert server.connections == 1
        assert not client.open


async def test_a_base_path_comes_before_every_path() -> None:
    async with scripted() as server:
        address = HttpAddress("http", "127.0.0.1", server.port, "/base")
        async with running(address) as client:
            await ask(client)
        assert server.received[0].path == "/base/v1/x?y=1"


async def test_a_stream_comes_as_it_is_sent() -> None:
    go_on = trio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await call.chunk(b"data: 1\n\n")
        await go_on.wait()
        await call.chunk(b"data: 2\n\n")
        await call.end()

    async with scripted(script) as server, running(server.address) as client:
        exchange = client.exchange(POST)
        assert (await exchange.start()).get("content-type") == "text/event-stream"
        assert await exchange.read() == b"data: 1\n\n"
        assert not exchange.complete
        go_on.set()
        rest = b""
        while not exchange.complete:
            rest += await exchange.read()
        assert rest == b"data: 2\n\n"
        assert client.pool.idle == 1


async def test_a_connection_that_the_server_has_closed_is_not_used() -> None:
    async def script(call: Call) -> bool:
        await call.answer()
        return True  # without saying so

    async with scripted(script) as server, running(server.address) as client:
        await ask(client)
        await until(lambda: server.open == 0)
        await ask(client)
        assert [one.connection for one in server.received] == [1, 2]


async def test_a_request_that_meets_the_close_of_its_connection_is_sent_once_more() -> None:
    async def script(call: Call) -> bool:
        if call.request.connection == 1 and call.number == 1:
            return True  # read, not answered
        await call.answer()
        return False

    async with scripted(script) as server, running(server.address) as client:
        await ask(client)
        head, _ = await ask(client)
        assert head.status == 200
        assert [one.connection for one in server.received] == [1, 1, 2]


async def test_a_request_on_a_new_connection_is_sent_once() -> None:
    async def script(call: Call) -> bool:
        return True

    async with scripted(script) as server, running(server.address) as client:
        with pytest.raises(UpstreamDisconnected, match="w1") as caught:
            await ask(client)
        assert len(server.received) == 1
        assert caught.value.retryable


async def test_a_request_that_was_answered_in_part_is_not_sent_again() -> None:
    async def script(call: Call) -> bool:
        if call.number:
            await call.send(b"HTTP/1.1 200 OK\r\n")
            return True
        await call.answer()
        return False

    async with scripted(script) as server, running(server.address) as client:
        await ask(client)
        with pytest.raises(UpstreamDisconnected):
            await ask(client)
        assert len(server.received) == 2


async def test_an_early_end_of_a_body_is_an_error() -> None:
    async def script(call: Call) -> bool:
        await call.begin()
        await call.chunk(b"data: 1\n\n")
        return True

    async with scripted(script) as server, running(server.address) as client:
        exchange = client.exchange(POST)
        await exchange.start()
        assert await exchange.read() == b"data: 1\n\n"
        with pytest.raises(UpstreamTruncated):
            await exchange.read()
        exchange.close()
        assert client.pool.idle == 0


@pytest.mark.parametrize("junk", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000])
async def test_a_server_of_another_kind(junk: bytes) -> None:
    async def script(call: Call) -> None:
        await call.send(junk)
        await call.wait_closed()

    async with scripted(script) as server, running(server.address) as client:
        with pytest.raises(UpstreamDisconnected):
            await ask(client)
        await until(lambda: server.open == 0)


async def test_a_refusal_that_comes_before_the_body_is_read_is_seen() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        async for _ in stream:
            pass

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        address = HttpAddress("http", "127.0.0.1", listeners[0].socket.getsockname()[1])
        async with running(address) as client:
            head, _ = await ask(client, UpstreamRequest(method="POST", path="/", body=b"x" * 8_000_000))
            assert head.status == 413
        nursery.cancel_scope.cancel()


async def test_nobody_listens() -> None:
    async with running(HttpAddress("http", "127.0.0.1", await free_port())) as client:
        with pytest.raises(UpstreamUnreachable, match="refused"):
            await ask(client)
        assert not client.open


async def test_an_unknown_host() -> None:
    async with running(HttpAddress("http", "no-such-host.invalid", 80)) as client:
        with pytest.raises(UpstreamUnreachable):
            await ask(client)


async def test_tls_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.cert, authority.key)
    async with scripted(tls=context) as server:
        good = HttpAddress("https", "localhost", server.port)
        async with running(HttpAddress("https", "127.0.0.1", server.port), tls=authority.trusting()) as client:
            for _ in range(2):
                assert (await ask(client))[0].status == 200
            assert server.connections == 1
        async with running(good) as client:
            with pytest.raises(UpstreamUnreachable, match="TLS"):
                await ask(client)  # an authority that the system does not know
    authority.issue("elsewhere.example")


async def test_closing_an_exchange_closes_its_connection_wherever_it_is() -> None:
    async def script(call: Call) -> None:
        if call.request.path == "/head":
            await call.wait_closed()
        await call.begin()
        await call.chunk(b"x")
        await call.wait_closed()

    async with scripted(script) as server, running(server.address) as client:
        with trio.move_on_after(0.05):
            await client.exchange(UpstreamRequest(method="POST", path="/head")).start()
        next(iter(client.open)).close()
        await until(lambda: server.connections == 1 and server.open == 0)
        exchange = client.exchange(POST)
        await exchange.start()
        await exchange.read()
        exchange.close()
        exchange.close()
        await until(lambda: server.open == 0)
        assert client.pool.idle == 0


async def test_failing_an_exchange_wakes_its_reader() -> None:
    async def script(call: Call) -> None:
        if call.request.path != "/head":
            await call.begin()
        await call.wait_closed()

    async def read(exchange: Exchange, seen: list[BaseException]) -> None:
        try:
            await exchange.start()
            await exchange.read()
        except UpstreamTimeout as error:
            seen.append(error)

    async with scripted(script) as server, running(server.address) as client, trio.open_nursery() as nursery:
        seen: list[BaseException] = []
        for path in ("/head", "/body"):
            nursery.start_soon(read, client.exchange(UpstreamRequest(method="POST", path=path)), seen)
        await until(lambda: len(server.received) == 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        client.fail_everything(UpstreamTimeout("over"))
        await until(lambda: len(seen) == 2)
        await until(lambda: server.open == 0)


def memory_client(limits: UpstreamLimits, servers: list[trio.testing.MemoryStapledStream]) -> UpstreamClient:
    """A client whose connections are in memory, for tests of time."""

    async def connect() -> Connection:
        if servers is None:
            await trio.sleep_forever()
        ours, theirs = trio.testing.memory_stream_pair()
        servers.append(theirs)

        def close() -> None:
            ours.send_stream.close()
            ours.receive_stream.close()

        return Connection(ours, close)

    return UpstreamClient(HttpAddress("http", "h", 80), "w1", limits, connect=connect)


async def test_limits_of_time(autojump_clock: trio.testing.MockClock) -> None:
    servers: list[trio.testing.MemoryStapledStream] = []
    client = memory_client(UpstreamLimits(first_byte_s=100, silence_s=40), servers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        exchange = client.exchange(POST)
        with pytest.raises(UpstreamTimeout, match="100s"):
            await exchange.start()
        assert trio.current_time() == 100
        exchange.close()
        exchange = client.exchange(POST)
        nursery.start_soon(servers_answer, servers, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await exchange.start()
        assert await exchange.read() == b"a"
        await trio.sleep(1000)  # nobody reads: no silence of the worker's
        with pytest.raises(UpstreamTimeout, match="nothing for 40s"):
            await exchange.read()
        assert 1140 <= trio.current_time() <= 1150
        exchange.close()
        nursery.cancel_scope.cancel()


async def servers_answer(servers: list[trio.testing.MemoryStapledStream], data: bytes) -> None:
    await trio.sleep(1)
    await servers[-1].receive_some()
    await servers[-1].send_all(data)


async def test_a_connection_that_never_comes(autojump_clock: trio.testing.MockClock) -> None:
    client = UpstreamClient(HttpAddress("http", "h", 80), "w1", UpstreamLimits(connect_s=7), connect=trio.sleep_forever)
    exchange = client.exchange(POST)
    with pytest.raises(UpstreamUnreachable, match="7s"):
        await exchange.start()
    assert trio.current_time() == 7


async def test_idle_connections_are_closed_in_time(autojump_clock: trio.testing.MockClock) -> None:
    servers: list[trio.testing.MemoryStapledStream] = []
    client = memory_client(UpstreamLimits(idle_s=3), servers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        for _ in range(2):
            connection = await client.pool.connect()
            client.pool.give(connection)
            await trio.sleep(1)
        assert client.pool.idle == 2
        await trio.sleep(1.5)
        assert client.pool.idle == 1
        assert client.pool.take() is connection
        client.pool.give(connection)
        await trio.sleep(2.9)
        assert client.pool.idle == 1
        await trio.sleep(0.2)
        assert client.pool.idle == 0
        assert await servers[1].receive_some() == b""
        nursery.cancel_scope.cancel()


async def test_many_requests_at_once() -> None:
    release = trio.Event()

    async def script(call: Call) -> None:
        await release.wait()
        await call.answer()

    async def one(client: UpstreamClient, done: list[int]) -> None:
        done.append((await ask(client))[0].status)

    async with scripted(script) as server, running(server.address) as client:
        done: list[int] = []
        async with trio.open_nursery() as nursery:
            for _ in range(400):
                nursery.start_soon(one, client, done)
            await until(lambda: len(server.received) == 400)
            release.set()
        assert done == [200] * 400


async def test_no_request_fails_over_a_server_with_a_short_keep_alive() -> None:
    """A server that closes after every few requests, sometimes after it has read one more."""

    async def script(call: Call) -> bool:
        if call.number % 7 == 6 and not fresh(call, server):
            return True
        await call.answer()
        return call.number % 5 == 4

    def fresh(call: Call, server: Scripted) -> bool:
        return sum(one.connection == call.request.connection for one in server.received) == 1

    async with scripted(script) as server, running(server.address) as client:
        for _ in range(300):
            assert (await ask(client))[0].status == 200
