"""What hypercorn's protocols speak: WebSocket, HTTP/2 and TLS, reached through either lane; and a Quart app."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
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

from smg_trio.http import ALPN_PROTOCOLS, Receive, RunningServer, Scope, Send, ServerLimits, Shutdown

from .running import (
    GET,
    PATIENCE_S,
    Conversation,
    ask,
    connect,
    conversation,
    echo,
    read_to_end,
    running_server,
    talk,
    until,
)
from .test_hardening import UPGRADE, every_lane, post


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
async def test_a_quart_app_answers_streams_and_notices_departures(lane: dict[str, str]) -> None:
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
async def test_a_quart_app_gets_a_body_that_is_too_large_as_413(lane: dict[str, str]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running_server(quart_app(), limits=ServerLimits(max_body_bytes=3), **lane) as server:
        answer = await ask(server, head + b"5\r\nhello\r\n0\r\n\r\n")
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"


@every_lane
async def test_a_websocket_speaks_and_ends_with_the_server(lane: dict[str, str]) -> None:
    shutdown = Shutdown()
    with trio.fail_after(PATIENCE_S):
        async with (
            running_server(quart_app(), shutdown=shutdown, **lane) as server,
            open_websocket_url(f"ws://127.0.0.1:{server.port}/ws") as client,
        ):
            for word in ("hello", "x" * 100_000):
                await client.send_message(word)
                assert await client.get_message() == f"you said {word}"
            assert server.statistics().connections_handed_over == 1
            shutdown.begin(0.1)


@every_lane
async def test_a_refused_websocket_does_not_keep_its_connection(lane: dict[str, str]) -> None:
    async with running_server(echo, **lane) as server, await connect(server) as stream:
        await stream.send_all(UPGRADE.replace(b"Version: 13", b"Version: 1"))
        assert b" 400 " in await read_to_end(stream)


@every_lane
@pytest.mark.parametrize("trailing", [b"x", b"\x81\x05hello", b"\x00" * 70_000])
async def test_an_upgrade_with_trailing_bytes_cannot_end_a_quart_server(lane: dict[str, str], trailing: bytes) -> None:
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


@every_lane
async def test_http2_is_spoken_with_prior_knowledge(lane: dict[str, str]) -> None:
    async with running_server(quart_app(), **lane) as server, await connect(server) as stream:
        assert await h2_answer(stream, b"hello") == (b"200", b"hello")


@every_lane
async def test_http2_bodies_have_the_same_limit(lane: dict[str, str]) -> None:
    async with (
        running_server(quart_app(), limits=ServerLimits(max_body_bytes=3), **lane) as server,
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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command, which makes the test's certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """What a server greets with."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    return context


async def connect_tls(server: RunningServer, cert: Path, protocols: list[str]) -> trio.SSLStream[trio.SocketStream]:
    """A TLS connection that trusts ``cert``."""
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    context.set_alpn_protocols(protocols)
    stream = trio.SSLStream(await connect(server), context, https_compatible=True)
    await stream.do_handshake()
    return stream


@every_lane
async def test_tls_carries_http1_and_http2(lane: dict[str, str], certificate: tuple[Path, Path]) -> None:
    context = server_context(certificate)
    async with running_server(quart_app(), ssl_context=lambda: context, **lane) as server:
        async with await connect_tls(server, certificate[0], ["http/1.1"]) as stream:
            assert (await Conversation(stream).answer(post(b"hello"))).body == b"hello"
        async with await connect_tls(server, certificate[0], ["h2"]) as stream:
            assert await h2_answer(stream, b"hello") == (b"200", b"hello")
        async with await connect(server) as plain:
            await plain.send_all(GET)
            answer = await read_to_end(plain)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"https://" in answer
        async with await connect_tls(server, certificate[0], ["http/1.1"]) as stream:
            assert (await Conversation(stream).answer(post(b"hello"))).body == b"hello"


async def test_a_client_that_never_finishes_its_tls_handshake_is_cut(certificate: tuple[Path, Path]) -> None:
    context = server_context(certificate)
    limits = ServerLimits(head_timeout_s=0.3)
    async with (
        running_server(quart_app(), ssl_context=lambda: context, limits=limits) as server,
        await connect(server) as stream,
    ):
        assert await read_to_end(stream) == b""


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

    def kinds(self) -> list[type[h2.events.Event]]:
        return [type(event) for event in self.heard]


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
