"""Tools of type ``mcp``: what is read and refused, what is shown, which tools they become, and what items approve."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api.openai.responses.mcp_items import approved_calls, listed_tools, tool_value
from smg_trio.api.openai.responses.request import ResponsesRequest, parse_responses_request
from smg_trio.api.openai.responses.tools import offered_by
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import ClientFault, InvalidRequest, UnsupportedFeature
from smg_trio.core.mcp import McpTool, ToolFilter

SERVER = {"type": "mcp", "server_label": "geo", "server_url": "https://tools.example/mcp?key=secret"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
READ = McpTool("read", "Reads.", {"type": "object"}, {"readOnlyHint": True})
WRITE = McpTool("write", None, {"type": "object"}, {"readOnlyHint": False})
PLAIN = McpTool("plain")


def parse(mcp: bool = True, **fields: Any) -> ResponsesRequest:
    return parse_responses_request(json.dumps({"input": "hi"} | fields).encode(), RequestLimits(mcp=mcp))


def test_a_server_is_read() -> None:
    tool = SERVER | {"headers": {"X-Tenant": "a b"}, "authorization": "token", "server_description": "Maps."}
    request = parse(tools=[FUNCTION, tool])
    [server] = request.tools.servers
    assert (server.label, server.url, server.param) == ("geo", SERVER["server_url"], "tools[1]")
    assert server.headers == (("x-tenant", "a b"), ("authorization", "Bearer token"))
    assert [tool["function"]["name"] for tool in request.tools.functions] == ["f"]
    assert request.tools.left_out == frozenset()
    assert "token" not in repr(server)


def test_nothing_secret_is_shown() -> None:
    tool = SERVER | {"headers": {"X-Tenant": "hidden"}, "authorization": "hidden", "allowed_tools": ["read"]}
    for mcp in (True, False):
        [shown] = parse(mcp, tools=[tool]).shown["tools"]
        assert shown == {
            "type": "mcp",
            "server_label": "geo",
            "server_url": "https://tools.example/<redacted>",
            "headers": {"X-Tenant": "<redacted>"},
            "allowed_tools": ["read"],
        }
    for url, seen in (("https://u:p@a.example:8443/", "https://a.example:8443/"), ("x", "<redacted>"), ("//[", "<")):
        [shown] = parse(tools=[SERVER | {"server_url": url}]).shown["tools"]
        assert shown["server_url"].startswith(seen)


def test_where_no_host_is_allowed_such_tools_are_left_out() -> None:
    request = parse(False, tools=[{"type": "mcp"}, SERVER])
    assert (request.tools.servers, request.tools.left_out) == ((), {"mcp"})


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"server_label": None}, "server_label"),
        ({"server_label": "a b"}, "server_label"),
        ({"server_label": "ü"}, "server_label"),
        ({"server_label": "a" * 65}, "server_label"),
        ({"server_url": None}, "server_url"),
        ({"server_url": 1}, "server_url"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "t"}, "tunnel_id"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {"a b": "c"}}, "headers"),
        ({"headers": {"": "c"}}, "headers"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers.a"),
        ({"headers": {"a": " b"}}, "headers.a"),
        ({"headers": {"a": 1}}, "headers.a"),
        ({"headers": {"Host": "b"}}, "headers.Host"),
        ({"headers": {"Content-Length": "1"}}, "headers.Content-Length"),
        ({"headers": {"Mcp-Session-Id": "1"}}, "headers.Mcp-Session-Id"),
        ({"headers": {"Authorization": "x"}, "authorization": "y"}, "authorization"),
        ({"authorization": "a\nb"}, "authorization"),
        ({"authorization": ""}, "authorization"),
        ({"allowed_tools": "read"}, "allowed_tools"),
        ({"allowed_tools": [1]}, "allowed_tools[0]"),
        ({"allowed_tools": {"tool_names": "read"}}, "allowed_tools.tool_names"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"never": ["read"]}}, "require_approval.never"),
        ({"require_approval": {"always": {"read_only": "perhaps"}}}, "require_approval.always.read_only"),
    ],
)
def test_refusals_name_the_member(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientFault) as caught:
        parse(tools=[FUNCTION, SERVER | changes])
    assert isinstance(caught.value, (InvalidRequest, UnsupportedFeature))
    assert caught.value.param == f"tools[1].{param}"


def test_labels_are_unique() -> None:
    with pytest.raises(InvalidRequest, match="more than one server") as caught:
        parse(tools=[SERVER, SERVER])
    assert caught.value.param == "tools[1].server_label"


def test_servers_are_counted() -> None:
    many = [SERVER | {"server_label": f"s{number}"} for number in range(17)]
    assert len(parse(tools=many[1:]).tools.servers) == 16
    with pytest.raises(InvalidRequest, match="at most 16"):
        parse(tools=many)


@pytest.mark.parametrize(
    ("members", "offered", "asking"),
    [
        ({}, ["read", "write", "plain"], ["read", "write", "plain"]),
        ({"require_approval": "always"}, ["read", "write", "plain"], ["read", "write", "plain"]),
        ({"require_approval": "never"}, ["read", "write", "plain"], []),
        ({"require_approval": {"never": {"tool_names": ["read"]}}}, ["read", "write", "plain"], ["write", "plain"]),
        ({"require_approval": {"never": {"read_only": True}}}, ["read", "write", "plain"], ["write", "plain"]),
        (
            {"require_approval": {"always": {"tool_names": ["x"]}}},
            ["read", "write", "plain"],
            ["read", "write", "plain"],
        ),
        ({"allowed_tools": ["write", "x"]}, ["write"], ["write"]),
        ({"allowed_tools": []}, [], []),
        ({"allowed_tools": {"read_only": True}}, ["read"], ["read"]),
        ({"allowed_tools": {"read_only": False}}, ["write", "plain"], ["write", "plain"]),
        ({"allowed_tools": {"read_only": True, "tool_names": ["write"]}}, [], []),
    ],
)
def test_which_tools_are_offered_and_which_need_approval(
    members: dict[str, Any], offered: list[str], asking: list[str]
) -> None:
    [server] = parse(tools=[SERVER | members]).tools.servers
    found = offered_by(server, [READ, WRITE, PLAIN, PLAIN])
    assert [tool["function"]["name"] for tool in found.functions] == [f"geo__{name}" for name in offered]
    assert [tool.name for tool in found.declared.values() if tool.needs_approval] == asking
    assert {(tool.kind, tool.namespace) for tool in found.declared.values()} <= {("mcp", "geo")}


@pytest.mark.parametrize(
    ("choice", "mode", "name", "allowed", "after"),
    [
        ("auto", "auto", None, None, "auto"),
        ("none", "none", None, None, "none"),
        ("required", "required", None, None, "auto"),
        ({"type": "mcp", "server_label": "geo", "name": "read"}, "named", "geo__read", None, "auto"),
        ({"type": "mcp", "server_label": "geo"}, "required", None, ("geo__read", "geo__write"), "auto"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "geo"}, FUNCTION]},
            "required",
            None,
            ("geo__read", "geo__write", "f"),
            "auto",
        ),
    ],
)
def test_a_choice_names_a_server_or_one_of_its_tools(
    choice: Any, mode: str, name: str | None, allowed: tuple[str, ...] | None, after: str
) -> None:
    request = parse(tools=[FUNCTION, SERVER], tool_choice=choice)
    listed = offered_by(request.tools.servers[0], [READ, WRITE])
    found = request.chat(listed=listed).tool_choice
    assert (found.mode, found.name, found.allowed) == (mode, name, allowed)
    assert request.chat(listed=listed, called=True).tool_choice.mode == after


def test_a_choice_of_a_server_that_lists_nothing_forces_nothing() -> None:
    of_server = {"type": "mcp", "server_label": "geo"}
    for choice in ("required", of_server, {"type": "allowed_tools", "mode": "required", "tools": [of_server]}):
        assert parse(tools=[SERVER], tool_choice=choice).chat().tool_choice.mode in ("auto", "none")
    for wrong in ({"type": "mcp", "server_label": "x"}, {"type": "mcp"}, of_server | {"name": "gone"}):
        request = parse(tools=[SERVER], tool_choice=wrong)
        with pytest.raises(InvalidRequest, match="tool_choice"):
            request.chat(listed=offered_by(request.tools.servers[0], [READ]))


REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "geo", "name": "read", "arguments": "{}"}
YES = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
NO = YES | {"approve": False, "reason": "Not now."}
MADE = {"type": "mcp_call", "server_label": "geo", "name": "read", "arguments": "{}", "approval_request_id": "mcpr_1"}


def test_approved_calls_are_found_once() -> None:
    request = parse(input=[REQUEST, YES, YES], tools=[SERVER])
    [call] = approved_calls((), request.input, ["geo"])
    assert (call.request_id, call.label, call.name, call.arguments) == ("mcpr_1", "geo", "read", "{}")
    history = parse(input=[REQUEST], tools=[SERVER]).input
    assert len(approved_calls(history, parse(input=[YES]).input, ["geo"])) == 1
    assert approved_calls(history, parse(input=[NO]).input, ["geo"]) == []
    assert approved_calls(history, parse(input=[YES, MADE]).input, ["geo"]) == []


@pytest.mark.parametrize(
    ("answer", "labels", "param"),
    [
        (YES | {"approval_request_id": "x"}, ["geo"], "approval_request_id"),
        (YES | {"approval_request_id": None}, ["geo"], "approval_request_id"),
        (YES | {"approve": None}, ["geo"], "approve"),
        (YES, ["other"], "approval_request_id"),
    ],
)
def test_approvals_that_lead_nowhere_are_refused(answer: dict[str, Any], labels: list[str], param: str) -> None:
    items = parse(input=[REQUEST, answer]).input
    with pytest.raises(InvalidRequest) as caught:
        approved_calls((), items, labels)
    assert caught.value.param == f"input[1].{param}"


def test_what_was_not_approved_the_model_gets_to_know() -> None:
    user = {"role": "user", "content": "hi"}
    messages = parse(input=[user, REQUEST, NO], tools=[SERVER]).chat().messages
    assert messages[1]["tool_calls"][0]["function"] == {"name": "geo__read", "arguments": "{}"}
    assert messages[2] == {
        "role": "tool", "tool_call_id": "mcpr_1", "content": "The call was not approved. Reason: Not now.",
    }  # fmt: skip
    assert parse(input=[user, REQUEST, YES]).chat().messages == [user]
    assert parse(input=[user, NO]).chat().messages == [user]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"type": "http_error", "code": 401, "message": "HTTP 401"}, "HTTP 401"),
        ({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "broken"}]}, "broken"),
        ("plain", "plain"),
        ({"odd": 1}, '{"odd": 1}'),
    ],
)
def test_the_model_reads_what_went_wrong(error: Any, text: str) -> None:
    assert parse(input=[MADE | {"error": error}]).chat().messages[1]["content"] == text


def test_a_list_is_read_again() -> None:
    items = [{"type": "mcp_list_tools", "server_label": "geo", "tools": [tool_value(READ), tool_value(PLAIN)]}]
    parsed = parse(input=[*items, {"role": "user", "content": "hi"}]).input
    assert listed_tools(parsed, "geo") == [READ, PLAIN]
    assert listed_tools(parsed, "other") is None
    for broken in ({"error": "away"}, {"tools": None}, {"tools": [{"name": 1}]}, {"tools": ["x"]}):
        assert listed_tools([parsed[0] | broken], "geo") is None


def test_a_filter_is_both_names_and_kind() -> None:
    assert ToolFilter(frozenset({"read"}), True).takes(READ)
    assert not ToolFilter(frozenset({"read"}), False).takes(READ)
