"""A network for what fetches media: names, addresses, and servers that say what a test tells them to.

Connections that httpcore opens go to `Internet.connect`, which notes the address and leads to the server that the test
has put there, over a real TCP connection, or over streams in memory where the clock is a test's own.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from smg_trio.core.media import MediaSource
from smg_trio.media.fetch import FetchPolicy, MediaFetcher
from smg_trio.net.addresses import Address
from smg_trio.net.hosts import HostPolicy
from smg_trio.settings.media import host_rules

PUBLIC = "93.184.215.14"
OTHER = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
PRIVATE = "10.1.2.3"
LIMIT = 100_000

Say = Callable[[Any, bytes], Awaitable[None]]
"""A server: gets the connection and the head of the request."""


def ok(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Say:
    """Say this and close."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]

    async def say(stream: Any, _: bytes) -> None:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode() + body)

    return say


def redirect(location: str, status: str = "302 Found") -> Say:
    return ok(b"moved", f"Location: {location}", status=status)


def raw(data: bytes) -> Say:
    """Say exactly these bytes and close."""

    async def say(stream: Any, _: bytes) -> None:
        await stream.send_all(data)

    return say


async def stall(stream: Any, _: bytes) -> None:
    """Say nothing."""
    await trio.sleep_forever()


@dataclass
class Internet:
    """Who is where, and what happened.

    Attributes:
        names: the addresses of each name, one list for each time it is asked for; the last one stays.
        servers: by address and port; others refuse connections.
        certificates: contexts of servers that speak TLS.
        in_memory: without sockets.
        asked: names that were resolved.
        connected: addresses and ports that were connected to.
        heads: what servers were sent.
        open: connections that are not closed.
    """

    nursery: trio.Nursery
    names: dict[str, list[list[str]]] = field(default_factory=dict)
    servers: dict[tuple[str, int], Say] = field(default_factory=dict)
    certificates: dict[tuple[str, int], ssl.SSLContext] = field(default_factory=dict)
    in_memory: bool = False
    asked: list[str] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    open: int = 0
    _ports: dict[tuple[str, int], int] = field(default_factory=dict)

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        await trio.lowlevel.checkpoint()
        if host not in self.names:
            raise OSError("no such name")
        answers = self.names[host]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(text) for text in answer]

    async def connect(self, host: str, port: int, **_: Any) -> trio.abc.Stream:
        self.connected.append((host, port))
        await trio.lowlevel.checkpoint()
        if (host, port) not in self.servers:
            raise OSError(f"connection refused by {host}")
        if self.in_memory:
            ours, theirs = memory_stream_pair()
            self.nursery.start_soon(self._serve, (host, port), theirs)
            return ours
        return await self._dial((host, port))

    async def _dial(self, place: tuple[str, int]) -> trio.abc.Stream:
        if place not in self._ports:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self._ports[place] = listener.socket.getsockname()[1]

            async def handle(stream: trio.SocketStream) -> None:
                await self._serve(place, stream)

            self.nursery.start_soon(trio.serve_listeners, handle, [listener])
        sock = trio.socket.socket()
        await sock.connect(("127.0.0.1", self._ports[place]))
        return trio.SocketStream(sock)

    async def _serve(self, place: tuple[str, int], stream: Any) -> None:
        self.open += 1
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if place in self.certificates:
                    stream = trio.SSLStream(stream, self.certificates[place], server_side=True, https_compatible=True)
                head = b""
                while b"\r\n\r\n" not in head and not head.startswith(b"\x16"):  # what TLS begins with
                    data = await stream.receive_some()
                    if not data:
                        return
                    head += data
                self.heads.append(head)
                await self._say(place, stream, head)
        finally:
            self.open -= 1
            with trio.move_on_after(1) as scope:
                scope.shield = True
                await trio.aclose_forcefully(stream)

    async def _say(self, place: tuple[str, int], stream: Any, head: bytes) -> None:
        """Say it; a client that leaves ends it at once."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await stream.receive_some()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self.servers[place](stream, head)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.aclose()
            nursery.cancel_scope.cancel()

    def fetcher(
        self, *allowed: str, private: bool = False, limit: int = LIMIT, context: ssl.SSLContext | None = None
    ) -> MediaFetcher:
        """With ``--mm-fetch allowlist`` of these hosts; public without any."""
        policy = FetchPolicy(True, HostPolicy(not allowed, host_rules(allowed), private))
        return MediaFetcher(policy, limit, resolve=self.resolve, context=context)

    def serve(self, address: str, say: Say, port: int = 80) -> None:
        self.servers[address, port] = say


@asynccontextmanager
async def internet(patch: pytest.MonkeyPatch, *, in_memory: bool = False) -> AsyncIterator[Internet]:
    """The network that `trio.open_tcp_stream` leads to meanwhile. At the end every connection must be closed."""
    async with trio.open_nursery() as nursery:
        made = Internet(nursery, in_memory=in_memory)
        patch.setattr(trio, "open_tcp_stream", made.connect)
        yield made
        with trio.move_on_after(5):
            while made.open:
                await trio.lowlevel.checkpoint()
        assert made.open == 0
        nursery.cancel_scope.cancel()


def source(location: str, where: str = "messages[0].content[1]", *, bare: bool = False) -> MediaSource:
    return MediaSource("image", location, where, bare)


async def nothing(_: int) -> None:
    """Takes no memory."""
    await trio.lowlevel.checkpoint()
