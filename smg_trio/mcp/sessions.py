"""Which servers may be connected to, and the sessions of one response with them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.mcp import McpFailure, McpResult, McpServer, McpServerNotAllowed, McpTool
from smg_trio.net.connecting import client_context
from smg_trio.net.hosts import HostNotAllowed, HostNotFound, HostPolicy, Resolve, SystemResolver
from smg_trio.net.urls import InvalidUrl, parse_url
from smg_trio.settings.mcp import mcp_hosts

if TYPE_CHECKING:
    from smg_trio.mcp.connection import McpConnection
    from smg_trio.settings.settings import Settings


class McpAccess:
    """The servers that the settings allow.

    Args:
        settings: of the gateway.
        resolve: from names to addresses, by default the system's resolver.
        context: whom to trust with https, by default `client_context`.
    """

    def __init__(
        self, settings: Settings, *, resolve: Resolve | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        """Raises ConfigError if servers are allowed and the SDK is not installed."""
        self._policy = HostPolicy(rules=mcp_hosts(settings), private=settings.mcp_private)
        self._limit_s = settings.mcp_timeout_secs
        self._max_result = settings.mcp_max_result_bytes
        self._resolve = resolve or SystemResolver()
        self._context = context
        if self._policy.rules:
            _load_sdk()

    def check(self, server: McpServer) -> None:
        """Refuse a URL that may not be connected to. Raises McpServerNotAllowed."""
        param = f"{server.param}.server_url"
        try:
            self._policy.check_url(parse_url(server.url))
        except InvalidUrl as error:
            raise McpServerNotAllowed(f"Invalid value for '{param}': {error}.", param=param) from None
        except HostNotAllowed as error:
            problem = f"'{param}': {error}: --mcp-allow says which MCP servers this gateway connects to."
            raise McpServerNotAllowed(problem, param=param) from None

    @asynccontextmanager
    async def sessions(self) -> AsyncIterator[McpSessions]:
        """Sessions for one response. At the end, and when it is cancelled, all are closed, which servers are told."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            sessions = McpSessions(self, nursery)
            try:
                yield sessions
            except Exception as error:  # noqa: BLE001 - raised below, where no nursery makes a group of it
                failure = error
            finally:
                sessions.close()
        if failure is not None:
            raise failure

    async def connection(self, server: McpServer) -> McpConnection:
        """A connection that is not begun. Raises McpFailure if the server's name has no address that is allowed."""
        from smg_trio.mcp.connection import McpConnection

        url = parse_url(server.url)
        try:
            with trio.fail_after(self._limit_s):
                addresses = await self._policy.addresses_of(url, self._resolve)
        except (HostNotAllowed, HostNotFound) as error:
            raise McpFailure(str(error)) from None
        except trio.TooSlowError:
            raise McpFailure(f"looking up the URL's host took more than {self._limit_s:g} s") from None
        context = await self._tls() if url.scheme == "https" else None
        read = f"{url.scheme}://{url.authority}{url.target}"
        return McpConnection(server, read, addresses, context, limit_s=self._limit_s, max_result_bytes=self._max_result)

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await trio.to_thread.run_sync(client_context)
        return self._context


class McpSessions:
    """One session per server, opened when it is needed, again if it has ended. See `McpAccess.sessions`."""

    def __init__(self, access: McpAccess, nursery: trio.Nursery) -> None:
        self._access = access
        self._nursery = nursery
        self._connections: dict[str, McpConnection] = {}
        self._locks: dict[str, trio.Lock] = {}

    async def list_tools(self, server: McpServer) -> list[McpTool]:
        """All tools of a server. Raises McpFailure."""
        return await (await self._connected(server)).list_tools()

    async def call(self, server: McpServer, name: str, arguments: Mapping[str, Any]) -> McpResult:
        """Call a tool; calls may run beside each other. What goes wrong is in the result."""
        try:
            connection = await self._connected(server)
        except McpFailure as failure:
            return McpResult(failure=failure)
        return await connection.call(name, arguments)

    async def _connected(self, server: McpServer) -> McpConnection:
        async with self._locks.setdefault(server.label, trio.Lock()):
            known = self._connections.get(server.label)
            if known is None or known.ended:
                if known is not None:
                    known.close()
                known = await self._access.connection(server)
                self._connections[server.label] = known
                self._nursery.start_soon(known.run)
            return known

    def close(self) -> None:
        """End all sessions; idempotent."""
        for connection in self._connections.values():
            connection.close()


def _load_sdk() -> None:
    try:
        # Here, at the start: it takes a part of a second, in which no answer would go on later.
        import smg_trio.mcp.connection  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--mcp-allow", f"needs the MCP SDK ({error}).", "Install smg-trio[mcp], or leave it out."
        ) from None
