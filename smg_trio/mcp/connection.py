"""One server, connected for one response: the official SDK's client, in a task of its own.

Streamable HTTP, in whichever version of the protocol the server speaks. What the SDK raises ends that task and the
calls that wait for it, nothing else.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx2
import trio
from mcp import types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from smg_trio import __version__
from smg_trio.core.mcp import McpFailure, McpResult, McpTool
from smg_trio.mcp.transport import CheckedTransport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smg_trio.core.mcp import McpServer
    from smg_trio.net.addresses import Address

MAX_TOOLS: Final = 1000
"""Tools that one server may list."""
CLOSE_S: Final = 2.0
"""How long the end of a session may take, which the server is told of."""
_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Least that one HTTP answer may have: a list of tools has hundreds of kilobytes at times."""
_PROTOCOL_ERROR: Final = "mcp_protocol_error"

Answer = TypeVar("Answer")

# What goes wrong is in the items of the response; the SDK's own lines have tracebacks and URLs, which may hold secrets.
for _name in ("mcp.client", "mcp.shared", "httpx2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class McpConnection:
    """A client's session with a server. `run` it in a nursery; `close` ends it.

    Connecting begins with `run`; `list_tools` and `call` wait for it.

    Attributes:
        ended: there are no further answers from it.
    """

    def __init__(
        self,
        server: McpServer,
        url: str,
        addresses: Sequence[Address],
        context: ssl.SSLContext | None,
        *,
        limit_s: float,
        max_result_bytes: int,
    ) -> None:
        """Opens nothing.

        Args:
            server: what the request says of it.
            url: of the server, as it was read and checked: no other reader may find another host or port in it.
            addresses: that the URL's name has, checked.
            context: for https.
            limit_s: how long connecting, listing, or one call may take, in seconds.
            max_result_bytes: of the text that a call may give.
        """
        self._server = server
        self._url = url
        self._limit_s = limit_s
        self._max_result = max_result_bytes
        # A result is JSON twice over at times: as text and as what it stands for.
        self._max_answer = max(_ANSWER_BYTES, 8 * max_result_bytes)
        self._transport = CheckedTransport(addresses, context, self._max_answer)
        self._scope = trio.CancelScope(shield=True)
        self._asking: set[trio.CancelScope] = set()
        self._connected = trio.Event()
        self._closing = trio.Event()
        self._client: Client | None = None
        self._problem: BaseException | None = None
        self.ended = False

    async def run(self) -> None:
        """Connect, and stay so until `close`, which may take `CLOSE_S` more. Raises nothing but what cancels it.

        Not cancelled from outside before that: then the server would not hear that the session is over.
        """
        try:
            with self._scope:
                await self._hold()
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is a failure of this server alone
            self._problem = error
        finally:
            self.ended = True
            self._client = None
            self._connected.set()
            for scope in self._asking:
                scope.cancel()

    async def _hold(self) -> None:
        timeout = httpx2.Timeout(self._limit_s)
        async with (
            httpx2.AsyncClient(
                transport=self._transport,
                trust_env=False,
                headers={"user-agent": f"smg-trio/{__version__}", **dict(self._server.headers)},
                timeout=timeout,
            ) as http,
            Client(
                streamable_http_client(self._url, http_client=http, max_sse_event_size=self._max_answer),
                cache=None,
                client_info=types.Implementation(name="smg-trio", version=__version__),
            ) as client,
        ):
            self._client = client
            self._connected.set()
            await self._closing.wait()

    def close(self) -> None:
        """End the session soon: now if it is not connected yet. Idempotent."""
        self._closing.set()
        if self._client is None:
            self._scope.cancel()
        else:
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + CLOSE_S)

    async def list_tools(self) -> list[McpTool]:
        """All tools of the server. Raises McpFailure."""
        return await self._ask(self._list)

    async def _list(self, client: Client) -> list[McpTool]:
        tools: dict[str, McpTool] = {}
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                tools.setdefault(tool.name, _tool(tool))
            if len(tools) > MAX_TOOLS:
                raise McpFailure(f"the server lists more than {MAX_TOOLS} tools")
            if not page.next_cursor or not page.tools:
                return list(tools.values())
            cursor = page.next_cursor

    async def call(self, name: str, arguments: Mapping[str, Any]) -> McpResult:
        """Call a tool. What goes wrong is in the result."""

        async def call(client: Client) -> types.CallToolResult:
            return await client.call_tool(name, dict(arguments))

        try:
            answer = await self._ask(call)
            text = _text(answer)
        except McpFailure as failure:
            return McpResult(failure=failure)
        size = len(text.encode("utf-8", "replace"))
        if size > self._max_result:
            problem = f"the result has {size} bytes, more than the {self._max_result} that a result may have"
            return McpResult(failure=McpFailure(problem))
        return McpResult(failure=McpFailure(text or "the tool failed")) if answer.is_error else McpResult(text)

    async def _ask(self, ask: Callable[[Client], Awaitable[Answer]]) -> Answer:
        """What the server answers, within the limit. Raises McpFailure."""
        with trio.move_on_after(self._limit_s) as scope:
            self._asking.add(scope)
            try:
                await self._connected.wait()
                if self._client is not None:
                    return await ask(self._client)
            except McpFailure:
                raise
            except Exception as error:  # noqa: BLE001 - see `run`
                raise self._failure(error) from None
            finally:
                self._asking.discard(scope)
        if self.ended:
            raise self._failure(self._problem)
        raise self._too_late()

    def _too_late(self) -> McpFailure:
        return McpFailure(f"the MCP server did not answer within {self._limit_s:g} s")

    def _failure(self, error: BaseException | None) -> McpFailure:
        """What went wrong, without the addresses and URLs that the libraries' own words name."""
        causes = list(_leaves(error))
        # After an error that the server did not answer with, nobody knows whether the SDK still reads.
        self.ended = self.ended or self._transport.too_large or not isinstance(error, MCPError)
        if self._transport.too_large:
            return McpFailure(f"the MCP server's answer has more than {self._max_answer} bytes")
        if self._transport.status:
            status = self._transport.status
            return McpFailure(f"HTTP {status} from the MCP server", "http_error", status)
        for cause in causes:
            if isinstance(cause, MCPError):
                return McpFailure(cause.message[:2000], _PROTOCOL_ERROR, cause.code)
            if isinstance(cause, ssl.SSLCertVerificationError):
                return McpFailure("the certificate of the MCP server is not valid")
            if isinstance(cause, (httpx2.ConnectError, httpx2.ConnectTimeout)):
                return McpFailure("cannot connect to the MCP server")
            if isinstance(cause, httpx2.TimeoutException):
                return self._too_late()
        return McpFailure("the MCP server broke off, or does not speak the Model Context Protocol")


def _leaves(error: BaseException | None) -> Iterable[BaseException]:
    """The errors that an exception group holds or an error was caused by, the innermost first."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    elif error is not None:
        yield from _leaves(error.__cause__ or error.__context__)
        yield error


def _tool(tool: types.Tool) -> McpTool:
    annotations = tool.annotations
    return McpTool(
        tool.name,
        tool.description,
        tool.input_schema,
        None if annotations is None else annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
    )


def _text(answer: types.CallToolResult) -> str:
    """What a model can read of a result: its texts, of anything else what it is; if it has no content, its JSON."""
    parts = [_part(block) for block in answer.content]
    if not parts and answer.structured_content is not None:
        return json.dumps(answer.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _part(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        if isinstance(resource, types.TextResourceContents):
            return resource.text
        return f"[a resource of type {resource.mime_type}, which is not shown: {resource.uri}]"
    if isinstance(block, types.ResourceLink):
        return f"[a link: {block.uri}]"
    return f"[{block.type} of type {block.mime_type}, which is not shown]"
