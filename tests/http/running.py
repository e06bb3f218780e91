"""A server under test, and a client that says exactly the bytes it is told to."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import h11
import trio

from smg_trio.api.errors import error_response
from smg_trio.core.errors import SmgError
from smg_trio.http import (
    ALPN_PROTOCOLS,
    App,
    Message,
    Receive,
    RunningServer,
    Scope,
    Send,
    Shutdown,
    open_listeners,
    serve,
)
from smg_trio.http.faults import FaultAnswer, PartialRequest
from tests.certificates import Authority
from tests.waiting import read_to_end

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
PATIENCE_S = 5.0
GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


_CLIENT_CONTEXTS: WeakKeyDictionary[RunningServer, ssl.SSLContext] = WeakKeyDictionary()


@cache
def _authority() -> Authority:
    return Authority(Path(tempfile.mkdtemp(prefix="smg-trio-tls")))


def server_context() -> ssl.SSLContext:
    """What a server with TLS greets with."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(_authority().cert, _authority().key)
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    return context


def client_context(*protocols: str) -> ssl.SSLContext:
    """Of a client that trusts that server; ``protocols``: what it offers by ALPN."""
    context = _authority().trusting()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


@asynccontextmanager
async def running_server(
    app: App, *, shutdown: Shutdown | None = None, tls: bool = False, **options: Any
) -> AsyncIterator[RunningServer]:
    """Serves ``app`` on a free port of the loopback; cut at the end of the block. ``tls``: `connect` speaks it too."""
    shutdown = shutdown or Shutdown()
    listeners = await open_listeners("127.0.0.1", 0)
    if tls:
        context = server_context()
        options["ssl_context"] = lambda: context
    options = {"answer_fault": json_answer} | options
    async with trio.open_nursery() as nursery:
        server: RunningServer = await nursery.start(partial(serve, app, listeners, shutdown=shutdown, **options))
        if tls:
            _CLIENT_CONTEXTS[server] = client_context("http/1.1")
        yield server
        shutdown.cut()


def json_answer(fault: SmgError, asked: PartialRequest) -> FaultAnswer:
    """As the gateway answers, but for ids."""
    status, headers, body = error_response(fault)
    return FaultAnswer(status, [(name.encode(), value.encode()) for name, value in headers], body)


def is_tls(server: RunningServer) -> bool:
    """Whether it was started with ``tls``."""
    return server in _CLIENT_CONTEXTS


async def connect(server: RunningServer) -> Stream:
    """A connection to the server, after its TLS handshake if it has one."""
    plain = await trio.open_tcp_stream("127.0.0.1", server.port)
    context = _CLIENT_CONTEXTS.get(server)
    if context is None:
        return plain
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    await stream.do_handshake()
    return stream


async def talk(server: RunningServer, data: bytes) -> bytes:
    """Sends ``data`` on a new connection and reads until the server closes."""
    async with await connect(server) as stream:
        with trio.fail_after(PATIENCE_S):
            with suppress(trio.BrokenResourceError):
                await stream.send_all(data)
        return await read_to_end(stream)


class Answer:
    """A response as an independent parser (h11) sees it."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, complete: bool) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body
        self.complete = complete

    @property
    def error(self) -> dict[str, Any]:
        """The ``error`` object of a JSON error body."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


class Conversation:
    """An h11 client on one connection, for whole responses."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.parser = h11.Connection(h11.CLIENT)

    async def answer(self, request: bytes, *, method: str = "GET") -> Answer:
        """Sends ``request`` and reads one response."""
        await self.stream.send_all(request)
        return await self.read(method=method)

    async def read(self, *, method: str = "GET") -> Answer:
        """Reads one response to a request that was already sent."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "test"), ("Connection", "close")]))
        parser.send(h11.EndOfMessage())
        left = self.parser.trailing_data[0]
        if left:
            parser.receive_data(left)
        self.parser = parser
        with trio.fail_after(PATIENCE_S):
            return await self._read(parser)

    async def _read(self, parser: h11.Connection) -> Answer:
        status, headers, body = 0, [], b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await self.stream.receive_some())
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, list(event.headers)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, headers, body, complete=True)


@asynccontextmanager
async def conversation(server: RunningServer) -> AsyncIterator[Conversation]:
    """A connection to the server, spoken by an h11 client."""
    async with await connect(server) as stream:
        yield Conversation(stream)


async def ask(server: RunningServer, request: bytes, *, method: str = "GET") -> Answer:
    """One request on a connection of its own."""
    async with conversation(server) as client:
        return await client.answer(request, method=method)


def reset(stream: Stream) -> None:
    """Ends the connection with RST, as a killed client with unread data does."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def read_body(receive: Receive) -> bytes:
    """The whole request body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionError("the client left while it sent the body")
        body += message["body"]
        if not message["more_body"]:
            return body


async def respond(send: Send, body: bytes, *, status: int = 200, headers: Any = ()) -> None:
    """A response in one piece."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was asked: method, path, query and body."""
    body = await read_body(receive)
    said = [scope["method"], scope["path"], scope["query_string"].decode(), body.decode("latin-1")]
    await respond(send, json.dumps(said).encode(), headers=[(b"content-type", b"application/json")])


class Waiting:
    """An app that waits for its client to go, and tells how it went."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.left = trio.Event()
        self.last: Message | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reads the body, then waits in ``receive``."""
        try:
            await read_body(receive)
            self.entered.set()
            self.last = await receive()
        finally:
            self.left.set()


async def flood(scope: Scope, receive: Receive, send: Send) -> None:
    """Streams for ever."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await trio.lowlevel.checkpoint()


async def until(server: RunningServer, **counts: int) -> None:
    """Waits until the server's statistics say so."""
    with trio.fail_after(PATIENCE_S):
        while any(getattr(server.statistics(), name) != count for name, count in counts.items()):
            await trio.lowlevel.checkpoint()
