"""A real MCP server, from the official SDK, over streamable HTTP on 127.0.0.1; and others that do not behave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations

from tests.certificates import Authority

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


@dataclass
class ToolServer:
    """What a server was asked, and what it waits for.

    Attributes:
        url: of its endpoint.
        requests: method of HTTP and of JSON-RPC of each request, and its headers.
        calls: names of tools and their arguments, in order.
        waiting: set when the tool `slow` has begun.
        go_on: what `slow` waits for.
    """

    url: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    waiting: trio.Event = field(default_factory=trio.Event)
    go_on: trio.Event = field(default_factory=trio.Event)

    def methods(self) -> list[str]:
        """The methods of JSON-RPC, or of HTTP where there is none."""
        return [rpc or http for http, rpc, _ in self.requests]


def tools_of(server: ToolServer) -> MCPServer:
    made = MCPServer("tools")
    read_only = ToolAnnotations(read_only_hint=True)

    @made.tool(description="Adds.", annotations=read_only)
    async def add(a: int, b: int) -> int:
        server.calls.append(("add", {"a": a, "b": b}))
        return a + b

    @made.tool(annotations=ToolAnnotations(read_only_hint=False))
    async def erase(path: str) -> str:
        server.calls.append(("erase", {"path": path}))
        return f"erased {path}"

    @made.tool()
    async def fail() -> str:
        raise ValueError("broken")

    @made.tool()
    async def big(size: int) -> str:
        return "x" * size

    @made.tool()
    async def picture() -> Image:
        return Image(data=b"\x89PNG", format="png")

    @made.tool()
    async def slow(context: Context) -> str:
        server.calls.append(("slow", {}))
        server.waiting.set()
        await server.go_on.wait()
        return "at last"

    return made


@asynccontextmanager
async def tool_server(*, legacy: bool = False, authority: Authority | None = None) -> AsyncIterator[ToolServer]:
    """Run one; `legacy`: it knows sessions, and not the protocol that has none (before 2026-07-28)."""
    server = ToolServer()
    app = tools_of(server).streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )

    async def noted(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        message = await receive()
        rpc = str(json.loads(message.get("body") or b"{}").get("method", ""))
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        server.requests.append((scope["method"], rpc, headers))
        if legacy and rpc == "server/discover":
            await _answer(send, 404)
            return
        messages = [message]

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        await app(scope, again, send)

    async with served(noted, authority) as base:
        server.url = f"{base}/mcp"
        yield server


@asynccontextmanager
async def served(app: App, authority: Authority | None = None) -> AsyncIterator[str]:
    """Run an ASGI app, with TLS if there is an authority; gives the URL that its paths follow."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.accesslog = config.errorlog = None
    if authority is not None:
        config.certfile, config.keyfile = str(authority.cert), str(authority.key)
    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(serve, app, config)
        yield url
        nursery.cancel_scope.cancel()


async def _answer(send: Send, status: int, body: bytes = b"no", *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def unruly(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Answers with the status of its path; or never, or with much, or with what is no JSON-RPC."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind.endswith("shutdown"):
                return
    path = scope["path"].strip("/")
    if path == "silent":
        await trio.sleep_forever()
    elif path == "huge":
        await _answer(send, 200, b" " * 5_000_000, (b"content-type", b"application/json"))
    elif path == "gzip":
        headers = (b"content-type", b"application/json"), (b"content-encoding", b"gzip")
        await _answer(send, 200, b"\x1f\x8b", *headers)
    elif path == "html":
        await _answer(send, 200, b"<html>", (b"content-type", b"text/html"))
    elif path == "away":
        await _answer(send, 307, b"", (b"location", b"http://127.0.0.2:9/mcp"))
    else:
        await _answer(send, int(path))
