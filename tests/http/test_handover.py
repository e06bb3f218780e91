"""What hypercorn's protocols speak, WebSocket and HTTP/2, with and without TLS; TLS itself; and a Quart app."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import trio
import trio.testing
from quart import Response, request, websocket
from quart_trio import QuartTrio
from trio_websocket import open_websocket_url

from smg_trio.http import Receive, RunningServer, Scope, Send, ServerLimits, Shutdown
from tests.waiting import read_to_end

from .running import (
    GET,
    PATIENCE_S,
    Conversation,
    ask,
    client_context,
    connect,
    conversation,
    echo,
    is_tls,
    read_body,
    respond,
    running_server,
    talk,
    until,
)
from .test_hardening import UPGRADE, every_lane, post

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def quart_app(left: trio.Event | None = None) -> QuartTrio:
    """A Quart app with a plain route, a stream and a WebSocket."""
    app = QuartTrio(__name__)

    @app.post("/")
    async def answer() -> Response:
        return Response(await request.get_data())

    @app.get("/stream")
    async def stream() -> Response:
        async def pieces() -> Any:
            try:
                yield b"one"
                yield b"two"
                if left is not None:
                    await trio.sleep_forever()
            finally:
                if left is not None:
                    left.set()

        return Response(pieces())

    @app.websocket("/ws")
    async def talk() -> None:
        while True:
            await websocket.send(f"you said {await websocket.receive()}")

    return app


@every_lane
async def test_a_quart_app_answers_streams_and_notices_departures(lane: dict[str, Any]) -> None:
    left = trio.Event()
    async with running_server(quart_app(left), **lane) as server:
        async with conversation(server) as client:
            for _ in range(2):
                assert (await client.answer(post(b"hello"))).body == b"hello"
        stream = await connect(server)
        await stream.send_all(GET.replace(b"/", b"/stream", 1))
        await stream.receive_some()
        await stream.aclose()
        with trio.fail_after(0.5):
            await left.wait()
    async with running_server(quart_app(), **lane) as server:
        assert (await ask(server, GET.replace(b"/", b"/stream", 1))).body == b"onetwo"


@every_lane
async def test_a_quart_app_gets_a_body_that_is_too_large_as_413(lane: dict[str, Any]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running_server(quart_app(), limits=ServerLimits(max_body_bytes=3), **lane) as server:
        answer = await ask(server, head + b"5\r\nhello\r\n0\r\n\r\n")
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"


def open_socket(server: RunningServer) -> Any:
    """A WebSocket to the server, whether or not it speaks TLS."""
    if is_tls(server):
        return open_websocket_url(f"wss://localhost:{server.port}/ws", ssl_context=client_context())
    return open_websocket_url(f"ws://127.0.0.1:{server.port}/ws")


@every_lane
async def test_a_websocket_speaks_and_ends_with_the_server(lane: dict[str, Any]) -> None:
    shutdown = Shutdown()
    with trio.fail_after(PATIENCE_S):
        async with running_server(quart_app(), shutdown=shutdown, **lane) as server, open_socket(server) as client:
            for word in ("hello", "x" * 100_000):
                await client.send_message(word)
                assert await client.get_message() == f"you said {word}"
            assert server.statistics().connections_handed_over == 1
            shutdown.begin(0.1)


@every_lane
async def test_a_refused_websocket_does_not_keep_its_connection(lane: dict[str, Any]) -> None:
    async with running_server(echo, **lane) as server, await connect(server) as stream:
        await stream.send_all(UPGRADE.replace(b"Version: 13", b"Version: 1"))
        answer = await read_to_end(stream)
    assert answer.startswith(b"HTTP/1.1 426 ")
    assert b"\r\nsec-websocket-version: 13\r\n" in answer


@every_lane
@pytest.mark.parametrize("trailing", [b"x", b"\x81\x05hello", b"\x00" * 70_000])
async def test_an_upgrade_with_trailing_bytes_cannot_end_a_quart_server(lane: dict[str, Any], trailing: bytes) -> None:
    async with running_server(quart_app(), **lane) as server:
        for _ in range(3):
            await talk(server, UPGRADE + trailing)
        assert (await ask(server, post(b"hello"))).body == b"hello"
        await until(server, connections_open=0)


async def test_a_kept_connection_can_become_a_websocket() -> None:
    async with running_server(quart_app()) as server, conversation(server) as client:
        assert (await client.answer(post(b"hello"))).body == b"hello"
        await client.stream.send_all(UPGRADE)
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 101")


async def h2_answer(stream: Any, body: bytes = b"") -> tuple[bytes, bytes]:
    """Status and body of one POST over HTTP/2."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "test")]
    client.send_headers(1, headers)
    client.send_data(1, body, end_stream=True)
    await stream.send_all(client.data_to_send())
    status, answer = b"", b""
    with trio.fail_after(PATIENCE_S):
        while True:
            for event in client.receive_data(bytes(await stream.receive_some())):
                if isinstance(event, h2.events.ResponseReceived):
                    status = next(bytes(v) for n, v in event.headers if bytes(n) == b":status")
                elif isinstance(event, h2.events.DataReceived):
                    answer += event.data
                elif isinstance(event, h2.events.StreamEnded):
                    return status, answer
            await stream.send_all(client.data_to_send())


async def test_http2_is_spoken_with_prior_knowledge() -> None:
    async with running_server(quart_app()) as server, await connect(server) as stream:
        assert await h2_answer(stream, b"hello") == (b"200", b"hello")


async def test_http2_bodies_have_the_same_limit() -> None:
    async with (
        running_server(quart_app(), limits=ServerLimits(max_body_bytes=3)) as server,
        await connect(server) as stream,
    ):
        status, body = await h2_answer(stream, b"hello")
    assert status == b"413"
    assert b"request_too_large" in body


async def test_an_idle_http2_connection_is_closed_after_the_keep_alive_timeout() -> None:
    async with (
        running_server(quart_app(), limits=ServerLimits(keep_alive_timeout_s=0.3)) as server,
        await connect(server) as stream,
    ):
        assert await h2_answer(stream, b"hello") == (b"200", b"hello")
        await read_to_end(stream)


async def connect_tls(server: RunningServer, *protocols: str) -> trio.SSLStream[trio.SocketStream]:
    """A TLS connection that offers these protocols."""
    plain = await trio.open_tcp_stream("127.0.0.1", server.port)
    stream = trio.SSLStream(plain, client_context(*protocols), server_hostname="localhost", https_compatible=True)
    await stream.do_handshake()
    return stream


async def test_tls_carries_http1_and_http2() -> None:
    async with running_server(quart_app(), tls=True) as server:
        for protocols in (["http/1.1"], [], ["http/1.1", "h2"][:1], ["spdy/3"]):
            async with await connect_tls(server, *protocols) as stream:
                assert (await Conversation(stream).answer(post(b"hello"))).body == b"hello"
        async with await connect_tls(server, "http/1.1", "h2") as stream:
            assert stream.selected_alpn_protocol() == "h2"
            assert await h2_answer(stream, b"hello") == (b"200", b"hello")
        async with await connect_tls(server, "h2") as stream:
            assert await h2_answer(stream, b"hello") == (b"200", b"hello")
        assert server.statistics().connections_handed_over == 2


async def test_http2_is_not_spoken_where_alpn_has_chosen_http1() -> None:
    async with running_server(quart_app(), tls=True) as server, await connect_tls(server, "http/1.1") as stream:
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await read_to_end(stream)).startswith(b"HTTP/1.1 505 ")


@pytest.mark.parametrize("request_bytes", [GET, post(b"x" * 100_000)], ids=["small", "large"])
async def test_plain_http_to_a_tls_port_is_told_so(request_bytes: bytes) -> None:
    async with running_server(quart_app(), tls=True) as server:
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as plain:
            await plain.send_all(request_bytes)
            answer = await read_to_end(plain)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"https://" in answer
        assert server.statistics().faults == 1


async def test_a_client_that_never_finishes_its_tls_handshake_is_cut() -> None:
    async with running_server(quart_app(), tls=True, limits=ServerLimits(head_timeout_s=0.3)) as server:
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            assert await read_to_end(stream) == b""
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00\x01")
            assert await read_to_end(stream) == b""


async def test_large_answers_and_uploads_cross_tls_as_they_are() -> None:
    body = bytes(range(256)) * 20_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["scheme"] == "https"
        got = await read_body(receive)
        await respond(send, got)

    async with running_server(app, tls=True) as server, conversation(server) as client:
        for _ in range(2):
            assert (await client.answer(post(body))).body == body


async def test_pipelined_requests_in_one_record_are_all_answered() -> None:
    async with running_server(echo, tls=True) as server, conversation(server) as client:
        await client.stream.send_all(post(b"a") * 50)
        for _ in range(50):
            assert (await client.read()).body == b'["POST", "/", "", "a"]'


async def test_the_app_may_watch_for_departures_over_http2_too() -> None:
    entered, left = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            entered.set()
        left.set()

    async with running_server(app) as server:
        stream = await connect(server)
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.initiate_connection()
        headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "test")]
        client.send_headers(1, headers, end_stream=True)
        await stream.send_all(client.data_to_send())
        await entered.wait()
        await stream.aclose()
        with trio.fail_after(0.5):
            await left.wait()


# ---- the end of HTTP/2 streams and connections ---------------------------------------------------------------


class H2Client:
    """A client of one HTTP/2 connection, which notes what it hears."""

    def __init__(self, stream: trio.SocketStream, *, window: int = 65535) -> None:
        self.stream = stream
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        values = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.state.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.state.initiate_connection()
        self.heard: list[h2.events.Event] = []

    async def get(self, number: int, path: str = "/") -> None:
        headers = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "test")]
        self.state.send_headers(number, headers, end_stream=True)
        await self.stream.send_all(self.state.data_to_send())

    async def hear(self, kind: type[h2.events.Event]) -> None:
        """Listen until an event of this kind has come."""
        with trio.fail_after(PATIENCE_S):
            while not any(isinstance(event, kind) for event in self.heard):
                data = bytes(await self.stream.receive_some())
                assert data, f"closed before {kind.__name__}: {self.heard}"
                self.heard += self.state.receive_data(data)

    async def hear_to_end(self) -> None:
        """Listen until the server closes."""
        with trio.fail_after(PATIENCE_S):
            while data := bytes(await self.stream.receive_some()):
                self.heard += self.state.receive_data(data)

    async def hear_body(self, number: int, body: bytes) -> None:
        """Listen until the body of a stream is this."""
        with trio.fail_after(PATIENCE_S):
            while self.body_of(number) != body:
                self.heard += self.state.receive_data(bytes(await self.stream.receive_some()))

    def body_of(self, number: int) -> bytes:
        return b"".join(
            event.data
            for event in self.heard
            if isinstance(event, h2.events.DataReceived) and event.stream_id == number
        )

    def headers_of(self, number: int) -> list[tuple[bytes, bytes]]:
        return [
            (bytes(name), bytes(value))
            for event in self.heard
            if isinstance(event, h2.events.ResponseReceived) and event.stream_id == number
            for name, value in event.headers
        ]

    def kinds(self) -> list[type[h2.events.Event]]:
        return [type(event) for event in self.heard]


@pytest.mark.parametrize("size", [10, 10**6], ids=["small", "large"])
async def test_an_http2_client_that_never_opens_its_window_has_its_stream_reset(size: int) -> None:
    left = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_all() -> None:
            await respond(send, b"x" * (size if scope["path"] == "/stuck" else 4))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            while (await receive())["type"] == "http.request":
                pass
            if scope["path"] == "/stuck":
                left.set()

    async with (
        running_server(app, limits=ServerLimits(write_timeout_s=0.3)) as server,
        await trio.open_tcp_stream("127.0.0.1", server.port) as stream,
    ):
        client = H2Client(stream, window=0)
        await client.get(1, "/stuck")
        await client.hear(h2.events.StreamReset)
        [reset_event] = [event for event in client.heard if isinstance(event, h2.events.StreamReset)]
        assert reset_event.error_code == h2.errors.ErrorCodes.CANCEL
        with trio.fail_after(PATIENCE_S):
            await left.wait()
        # The connection goes on: a stream whose window opens is answered.
        await client.get(3)
        client.state.increment_flow_control_window(100, 3)
        await stream.send_all(client.state.data_to_send())
        await client.hear_body(3, b"xxxx")


async def test_an_http2_client_that_takes_a_byte_now_and_then_is_waited_for() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"0123456789")

    async with (
        running_server(app, limits=ServerLimits(write_timeout_s=1.5)) as server,
        await trio.open_tcp_stream("127.0.0.1", server.port) as stream,
    ):
        client = H2Client(stream, window=0)
        await client.get(1)
        for taken in range(1, 5):
            await trio.sleep(0.45)
            client.state.increment_flow_control_window(1, 1)
            await stream.send_all(client.state.data_to_send())
            await client.hear_body(1, b"0123456789"[:taken])
        assert h2.events.StreamReset not in client.kinds()


@pytest.mark.parametrize("ending", ["drained_before", "drained_at_the_end"])
async def test_an_http2_stream_ends_before_its_connection_when_the_server_drains(ending: str) -> None:
    shutdown, asked, go_on = Shutdown(), trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        asked.set()
        await go_on.wait()
        if ending == "drained_at_the_end":
            shutdown.begin(PATIENCE_S)
        await send({"type": "http.response.body", "body": b"two"})

    async with running_server(app, shutdown=shutdown) as server, await connect(server) as stream:
        client = H2Client(stream)
        await client.get(1)
        await asked.wait()
        if ending == "drained_before":
            shutdown.begin(PATIENCE_S)
            await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        await client.hear_to_end()
        kinds = client.kinds()
        assert h2.events.StreamEnded in kinds
        assert h2.events.StreamReset not in kinds
        body = b"".join(event.data for event in client.heard if isinstance(event, h2.events.DataReceived))
        assert body == b"onetwo"
        await until(server, connections_open=0)


async def test_an_http2_stream_whose_app_fails_in_mid_response_is_reset_and_the_others_go_on() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/never":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        if scope["path"] == "/bad":
            raise ValueError("on purpose")
        await send({"type": "http.response.body", "body": b"two"})

    async with running_server(app) as server, await connect(server) as stream:
        client = H2Client(stream)
        await client.get(1, "/bad")
        await client.hear(h2.events.StreamReset)
        assert h2.events.StreamEnded not in client.kinds()
        await client.get(3, "/never")
        await client.hear(h2.events.StreamEnded)
        assert (b":status", b"500") in client.headers_of(3)
        await client.get(5, "/good")
        await client.hear_body(5, b"onetwo")


@pytest.mark.parametrize("beginning", [b"", b"PRI * HT", PREFACE, PREFACE + b"\0\0\x0a\1\0\0\0\0\1\x82"])
async def test_an_http2_head_that_does_not_come_in_time_ends_its_connection(beginning: bytes) -> None:
    limits = ServerLimits(head_timeout_s=0.3, keep_alive_timeout_s=60)
    async with running_server(quart_app(), limits=limits, tls=True) as server:
        async with await connect_tls(server, "h2") as stream:
            if beginning:
                await stream.send_all(beginning)
            await read_to_end(stream)
        await until(server, connections_open=0)


async def test_an_http2_head_must_come_in_time_beside_a_stream_that_runs_too() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await trio.sleep(0.01)

    async with running_server(app, limits=ServerLimits(head_timeout_s=0.3)) as server, await connect(server) as stream:
        client = H2Client(stream)
        await client.get(1)
        await client.hear(h2.events.DataReceived)
        await stream.send_all(b"\0\0\x0a\1\0\0\0\0\3\x82")
        await client.hear_to_end()


async def test_a_head_that_does_not_come_in_time_is_answered_with_408_under_tls_too() -> None:
    limits = ServerLimits(head_timeout_s=0.3, keep_alive_timeout_s=60)
    async with running_server(quart_app(), limits=limits, tls=True) as server, conversation(server) as client:
        await client.stream.send_all(GET[:-3])
        answer = await client.read()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")


async def test_a_client_that_leaves_with_its_http2_window_shut_leaves_nothing_behind() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1000})

    async with running_server(app) as server:
        stream = await connect(server)
        client = H2Client(stream, window=10)
        await client.get(1)
        await client.hear(h2.events.ResponseReceived)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await until(server, connections_open=0)


async def test_a_body_that_trickles_over_http2_is_answered_with_408_and_its_stream_reset() -> None:
    limits = ServerLimits(body_timeout_s=0.3, min_body_rate=1e6)
    async with running_server(echo, limits=limits) as server, await connect(server) as stream:
        client = H2Client(stream)
        client.state.send_headers(1, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "test")])
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                while True:
                    client.state.send_data(1, b"x")
                    await stream.send_all(client.state.data_to_send())
                    await trio.sleep(0.03)

            nursery.start_soon(trickle)
            await client.hear(h2.events.ResponseReceived)
            nursery.cancel_scope.cancel()
        answer = next(event for event in client.heard if isinstance(event, h2.events.ResponseReceived))
        assert dict(answer.headers)[b":status"] == b"408"
        await client.hear(h2.events.StreamReset)
        await client.get(3)
        await client.hear(h2.events.StreamEnded)
