"""Sessions with real MCP servers: listing, calling, bounds, failures, and the end of a session."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.core.mcp import McpFailure, McpResult, McpServer, McpServerNotAllowed
from smg_trio.mcp.sessions import McpAccess
from smg_trio.settings.settings import Settings
from tests.certificates import Authority

from .server import ToolServer, served, tool_server, unruly

PATIENCE_S = 20


def access(url: str = "", *, private: bool = True, **settings: Any) -> McpAccess:
    """Allows the host and port of the URL."""
    allowed = urlsplit(url).netloc or "tools.example"
    return McpAccess(Settings(mcp_allow=(allowed, "tools.example:1"), mcp_private=private, **settings), resolve=names)


async def names(host: str, port: int) -> list[Any]:
    found = {"tools.example": "127.0.0.1", "link.example": "169.254.169.254"}
    if host not in found:
        raise OSError
    return [ip_address(found[host])]


def named(url: str, **members: Any) -> McpServer:
    return McpServer("s", url, "tools[0]", **members)


@pytest.fixture(params=[False, True], ids=["2026-07-28", "2025-11-25"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ToolServer]:
    async with tool_server(legacy=request.param) as made:
        yield made


def problem(result: McpResult) -> str:
    assert result.failure is not None, result
    assert result.output is None
    return result.failure.message


async def test_tools_are_listed_and_called_in_one_session(server: ToolServer) -> None:
    me = named(server.url, headers=(("x-tenant", "a"), ("authorization", "Bearer t")))
    async with access(server.url).sessions() as sessions:
        tools = {tool.name: tool for tool in await sessions.list_tools(me)}
        assert tools["add"].description == "Adds."
        assert tools["add"].is_read_only
        assert not tools["erase"].is_read_only
        assert list(tools["add"].input_schema["properties"]) == ["a", "b"]
        assert await sessions.call(me, "add", {"a": 1, "b": 2}) == McpResult("3")
        assert "picture" in tools
        assert (await sessions.call(me, "picture", {})).output == "[image of type image/png, which is not shown]"
        assert "Error executing tool fail" in problem(await sessions.call(me, "fail", {}))
        assert "nknown tool" in problem(await sessions.call(me, "nothing", {}))
        assert "valid integer" in problem(await sessions.call(me, "add", {"a": "x", "b": 1}))
    assert server.calls == [("add", {"a": 1, "b": 2})]
    methods = server.methods()
    assert methods.count("initialize") == ("DELETE" in methods)  # one session, which was ended
    assert methods.count("tools/list") == 1
    for _, _, headers in server.requests:
        assert (headers["x-tenant"], headers["authorization"]) == ("a", "Bearer t")
        assert headers["user-agent"].startswith("smg-trio/")
        assert headers["accept-encoding"] == "identity"


async def test_results_are_bounded(server: ToolServer) -> None:
    me = named(server.url)
    async with access(server.url, mcp_max_result_bytes=1000).sessions() as sessions:
        assert (await sessions.call(me, "big", {"size": 1000})).output == "x" * 1000
        assert "1001 bytes, more than the 1000" in problem(await sessions.call(me, "big", {"size": 1001}))
        assert "more than 4194304 bytes" in problem(await sessions.call(me, "big", {"size": 5_000_000}))
        assert (await sessions.call(me, "add", {"a": 1, "b": 1})).output == "2"


async def test_a_call_that_takes_too_long_fails(server: ToolServer) -> None:
    me = named(server.url)
    async with access(server.url, mcp_timeout_secs=0.3).sessions() as sessions:
        assert "did not answer within 0.3 s" in problem(await sessions.call(me, "slow", {}))
        sessions._connections["s"]._limit_s = PATIENCE_S  # or a busy machine decides
        assert (await sessions.call(me, "add", {"a": 1, "b": 1})).output == "2"


async def test_calls_run_beside_each_other_and_cancellation_ends_the_session(server: ToolServer) -> None:
    me = named(server.url)
    results: list[McpResult] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, access(server.url).sessions() as sessions:

            async def call(name: str, **arguments: Any) -> None:
                results.append(await sessions.call(me, name, arguments))

            nursery.start_soon(call, "slow")
            await server.waiting.wait()
            await call("add", a=1, b=1)
            nursery.cancel_scope.cancel()
    assert results == [McpResult("2")]
    methods = server.methods()
    assert methods.count("initialize") == methods.count("DELETE") <= 1


@pytest.mark.parametrize(
    ("path", "words", "kind"),
    [
        ("401", "HTTP 401 from the MCP server", "http_error"),
        ("404", "HTTP 404 from the MCP server", "http_error"),
        ("503", "HTTP 503 from the MCP server", "http_error"),
        ("huge", "more than 4194304 bytes", "mcp_tool_execution_error"),
        ("gzip", "does not speak the Model Context Protocol", "mcp_tool_execution_error"),
        ("html", "", "mcp_protocol_error"),
        ("away", "not followed", "mcp_protocol_error"),
        ("silent", "did not answer within 0.3 s", "mcp_tool_execution_error"),
    ],
)
async def test_servers_that_do_not_behave_are_failures(path: str, words: str, kind: str) -> None:
    async with served(unruly) as base:
        me = named(f"{base}/{path}")
        async with access(base, mcp_timeout_secs=0.3 if path == "silent" else 10).sessions() as sessions:
            with pytest.raises(McpFailure) as caught:
                await sessions.list_tools(me)
            assert words in caught.value.message
            assert caught.value.kind == kind
            assert caught.value.value()["type"] == kind
            assert "127.0.0.1" not in caught.value.message
            assert words in problem(await sessions.call(me, "add", {}))


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    async with access(private=True).sessions() as sessions:
        assert problem(await sessions.call(named("http://tools.example:1/"), "add", {})) == (
            "cannot connect to the MCP server"
        )


async def test_addresses_are_checked() -> None:
    async with access(private=False).sessions() as sessions:
        assert problem(await sessions.call(named("http://tools.example/"), "add", {})) == "host not allowed"
    listed = McpAccess(Settings(mcp_allow=("link.example", "gone.example"), mcp_private=True), resolve=names)
    async with listed.sessions() as sessions:
        assert problem(await sessions.call(named("http://link.example/"), "add", {})) == "host not allowed"
        assert problem(await sessions.call(named("http://gone.example/"), "add", {})) == "the URL's host is not found"


@pytest.mark.parametrize(
    "url",
    ["ftp://tools.example/", "tools.example", "http://u:p@tools.example/", "http://other.example/", "http://127.0.0.1/",
     "http://tools.example:2/", "http://tools.example.other.example/"],
)  # fmt: skip
def test_urls_that_are_not_allowed_are_refused(url: str) -> None:
    with pytest.raises(McpServerNotAllowed) as caught:
        access().check(named(url))
    assert caught.value.param == "tools[0].server_url"


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with access().sessions():
            raise KeyError


async def test_the_certificate_is_checked_against_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("tools.example")
    async with tool_server(authority=authority) as server:
        port = urlsplit(server.url).port
        settings = Settings(mcp_allow=(f"tools.example:{port}", f"other.example:{port}"), mcp_private=True)

        async def resolve(host: str, port: int) -> list[Any]:
            return [ip_address("::1"), ip_address("127.0.0.1")]  # nothing listens at the first

        for context, host, output in (
            (authority.trusting(), "tools.example", "2"),
            (authority.trusting(), "other.example", None),
            (None, "tools.example", None),
        ):
            checked = McpAccess(settings, resolve=resolve, context=context)
            async with checked.sessions() as sessions:
                me = named(f"https://{host}:{port}/mcp")
                checked.check(me)
                result = await sessions.call(me, "add", {"a": 1, "b": 1})
                assert result.output == output
                if output is None:
                    assert problem(result) == "the certificate of the MCP server is not valid"
        assert {headers["host"] for _, _, headers in server.requests} == {f"tools.example:{port}"}


def test_without_the_sdk_it_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "smg_trio.mcp.connection", raising=False)
    with pytest.raises(ConfigError, match=r"--mcp-allow: needs the MCP SDK .* Install smg-trio\[mcp\]"):
        access()
    assert McpAccess(Settings()) is not None
