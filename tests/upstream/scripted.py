"""A server that does what a test says with each connection and request, on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from smg_trio.core.http_addresses import HttpAddress

if TYPE_CHECKING:
    import ssl


@dataclass
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return dict(self.headers).get(name)


@dataclass
class Call:
    """A request that is to be answered. `number` counts all requests from 0."""

    request: Received
    stream: trio.abc.Stream
    number: int

    async def send(self, *pieces: bytes) -> None:
        """Send bytes; a client that has gone is no error."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for piece in pieces:
                await self.stream.send_all(piece)

    async def answer(self, body: bytes = b"{}", status: str = "200 OK", *headers: str) -> None:
        """A whole response that keeps the connection."""
        lines = [f"HTTP/1.1 {status}", *(headers or ("content-type: application/json",))]
        await self.send("\r\n".join([*lines, f"content-length: {len(body)}", "\r\n"]).encode() + body)

    async def begin(self, *headers: str, status: str = "200 OK") -> None:
        """The head of a chunked response."""
        lines = [f"HTTP/1.1 {status}", *(headers or ("content-type: text/event-stream",)), "transfer-encoding: chunked"]
        await self.send("\r\n".join([*lines, "\r\n"]).encode())

    async def chunk(self, data: bytes) -> None:
        """One chunk of its body."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        """The end of its body."""
        await self.send(b"0\r\n\r\n")

    async def wait_closed(self) -> None:
        """Wait until the client closes the connection."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self.stream.receive_some(65536):
                pass


Script = Callable[[Call], Awaitable[bool | None]]
"""Answers a request; True has the connection closed."""


@dataclass
class Scripted:
    """The running server."""

    port: int
    script: Script
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    listening: trio.CancelScope = field(default_factory=trio.CancelScope)

    def stop_listening(self) -> None:
        """New connections are refused from now on; those there are stay."""
        self.listening.cancel()

    @property
    def address(self) -> HttpAddress:
        """Where it is."""
        return HttpAddress("http", "127.0.0.1", self.port)

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, stream: trio.abc.Stream) -> None:
        """One connection."""
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while (request := await _read_request(stream, number)) is not None:
                    self.received.append(request)
                    if await self.script(Call(request, stream, len(self.received) - 1)):
                        break
        finally:
            self.open -= 1
            with trio.CancelScope(shield=True), suppress(trio.BrokenResourceError):
                await stream.aclose()


async def _read_request(stream: trio.abc.Stream, connection: int) -> Received | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = int(dict(headers).get("content-length", "0"))
    while len(body) < length:
        more = await stream.receive_some(65536)
        if not more:
            return None
        body += more
    return Received(method, path, headers, body, connection)


async def quietly(call: Call) -> None:
    """Answer with an empty object."""
    await call.answer()


@asynccontextmanager
async def scripted(script: Script = quietly, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    """Run a server until the end of the block."""
    if tls is None:
        listeners = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
        server = Scripted(listeners[0].socket.getsockname()[1], script)
        serve: list[trio.abc.Listener[trio.abc.Stream]] = list(listeners)  # type: ignore[arg-type]
    else:
        plain = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
        server = Scripted(plain[0].socket.getsockname()[1], script)
        serve = [trio.SSLListener(one, tls, https_compatible=True) for one in plain]  # type: ignore[misc]
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            with server.listening:
                await trio.serve_listeners(server.serve, serve, handler_nursery=nursery)

        nursery.start_soon(listen)
        yield server
        nursery.cancel_scope.cancel()


async def free_port() -> int:
    """A port that nothing listens on."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    for one in listeners:
        await one.aclose()
    return port
