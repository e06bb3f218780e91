"""Responses that call tools of real MCP servers: whole, streamed, in the background, over a WebSocket, approved."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from tests.mcp.server import ToolServer, served, tool_server, unruly

from .answers import ok, spelt
from .harness import MODEL, PATIENCE_S, Bench, error_of, open_gateway, until

END = ("response.completed", "response.incomplete", "response.failed", "error")
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


ADD = call("geo__add", {"a": 1, "b": 2})


@asynccontextmanager
async def open_bench(tmp_path: Path, *urls: str, **settings: Any) -> AsyncIterator[Bench]:
    async with open_gateway(
        tmp_path, 'E["x"]', tool_call_parser="hermes", model_config={"max_position_embeddings": 32768},
        engine={"max_model_len": 32768}, mcp_allow=tuple(urlsplit(url).netloc for url in urls), mcp_private=True,
        **settings,
    ) as bench:  # fmt: skip
        yield bench


@pytest.fixture
async def server() -> AsyncIterator[ToolServer]:
    async with tool_server() as made:
        yield made


@pytest.fixture
async def bench(tmp_path: Path, server: ToolServer) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, server.url) as made:
        yield made


def tool(server: ToolServer | str, **members: Any) -> dict[str, Any]:
    url = server if isinstance(server, str) else server.url
    return {"type": "mcp", "server_label": "geo", "server_url": url, "require_approval": "never"} | members


def says(bench: Bench, *rounds: str) -> None:
    """Each request to the engine gets the next text; the last one again and again."""
    scripts = [spelt(bench, text, 0) for text in rounds]
    asked = iter(scripts)
    bench.engine.choose_script = lambda request: next(asked, scripts[-1])


def prompt(bench: Bench, request: int = -1) -> str:
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    return tokenizer.decode(bench.engine.received[request].prompt_token_ids, skip_special_tokens=False)


async def respond(bench: Bench, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"model": MODEL, "input": "hi"} | fields)


async def whole(bench: Bench, **fields: Any) -> dict[str, Any]:
    return dict(ok(await respond(bench, **fields)).json())


async def streamed(bench: Bench, **fields: Any) -> list[dict[str, Any]]:
    answer = ok(await respond(bench, stream=True, **fields))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


async def turn(socket: Any, **fields: Any) -> list[dict[str, Any]]:
    await socket.send_message(json.dumps({"type": "response.create", "model": MODEL, "input": "hi"} | fields))
    seen: list[dict[str, Any]] = []
    with trio.fail_after(PATIENCE_S):
        while not seen or seen[-1]["type"] not in END:
            seen.append(json.loads(await socket.get_message()))
    return seen


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def shape(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the ids that are made for each answer."""
    hidden = ("id", "call_id", "approval_request_id")
    return [{key: value for key, value in item.items() if key not in hidden} for item in output]


async def test_the_model_calls_a_tool_and_reads_its_result(bench: Bench, server: ToolServer) -> None:
    says(bench, f"Let me add.{ADD}", "It is 3.")
    secret = tool(server, headers={"X-Tenant": "hidden"}, authorization="hidden")
    answer = await whole(bench, tools=[secret, FUNCTION], instructions="Be brief.")
    listed, said, called, result = answer["output"]
    assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "geo")
    names = [one["name"] for one in listed["tools"]]
    assert names[:2] == ["add", "erase"]
    assert listed["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert list(listed["tools"][0]["input_schema"]["properties"]) == ["a", "b"]
    assert said["content"][0]["text"] == "Let me add."
    assert {**called, "id": ""} == {
        "type": "mcp_call", "id": "", "status": "completed", "server_label": "geo", "name": "add",
        "arguments": '{"a": 1, "b": 2}', "approval_request_id": None, "output": "3", "error": None,
    }  # fmt: skip
    assert result["content"][0]["text"] == "It is 3."
    assert [item["id"].split("_")[0] for item in answer["output"]] == ["mcpl", "msg", "mcp", "msg"]
    assert (answer["status"], answer["tool_choice"]) == ("completed", "auto")
    first, second = (request.prompt_token_ids for request in bench.engine.received)
    assert answer["usage"]["input_tokens"] == len(first) + len(second)
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    spoken = [len(tokenizer.encode(text, add_special_tokens=False)) for text in (f"Let me add.{ADD}", "It is 3.")]
    assert answer["usage"]["output_tokens"] == sum(spoken) + 2
    assert "geo__add" in prompt(bench, 0)
    assert all(name in prompt(bench) for name in ("geo__add", "Let me add.", "3", '"name": "f"'))
    assert server.calls == [("add", {"a": 1, "b": 2})]
    assert "hidden" not in json.dumps(answer)
    kept = ok(await bench.http.get(f"/v1/responses/{answer['id']}")).json()
    assert kept == answer
    assert not bench.gateway.in_flight


async def test_a_stream_says_the_same_in_the_events_of_the_api(bench: Bench, server: ToolServer) -> None:
    text = f"Hm.{ADD}{call('geo__erase', {'path': 'x'})}"
    says(bench, text, "Done.", text, "Done.")
    answer = await whole(bench, tools=[tool(server)])
    events = await streamed(bench, tools=[tool(server)])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert shape(final["output"]) == shape(answer["output"])
    assert final["usage"] == answer["usage"]
    assert [event["type"] for event in events[:6]] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed", "response.output_item.done",
    ]  # fmt: skip
    for index, item in enumerate(final["output"]):
        mine = [event for event in events if event.get("output_index") == index]
        assert (mine[0]["type"], mine[-1]["type"]) == ("response.output_item.added", "response.output_item.done")
        assert mine[-1]["item"] == item
        assert {event["item_id"] for event in mine[1:-1]} == {item["id"]}
        if item["type"] == "mcp_call":
            assert mine[0]["item"] == {**item, "arguments": "", "output": None, "status": "in_progress"}
            names = [event["type"].removeprefix("response.") for event in mine[1:-1]]
            deltas = [event["delta"] for event in mine if event["type"].endswith("arguments.delta")]
            assert names[0] == "mcp_call.in_progress"
            assert names[1:-2] == ["mcp_call_arguments.delta"] * len(deltas)
            assert names[-2:] == ["mcp_call_arguments.done", "mcp_call.completed"]
            assert "".join(deltas) == mine[-3]["arguments"] == item["arguments"]
    assert ok(await bench.http.get(f"/v1/responses/{final['id']}")).json() == final
    async with bench.openai() as client:
        says(bench, text, "Done.")
        stream = await client.responses.create(model=MODEL, input="hi", tools=[tool(server)], stream=True)  # type: ignore[list-item]
        assert [event.type async for event in stream][-1] == "response.completed"


async def test_what_servers_do_wrong_is_in_items(tmp_path: Path, server: ToolServer) -> None:
    async with served(unruly) as base, open_bench(tmp_path, server.url, base, mcp_max_result_bytes=1000) as bench:
        says(bench, "Nothing to call.")
        wrong = tool(f"{base}/503", server_label="gone")
        events = await streamed(bench, tools=[wrong, tool(server)], tool_choice="required")
        failed, listed, _ = events[-1]["response"]["output"]
        assert (failed["tools"], failed["error"]) == ([], "HTTP 503 from the MCP server")
        assert "error" not in listed
        assert [event["type"] for event in events if event.get("output_index") == 0][1:3] == [
            "response.mcp_list_tools.in_progress", "response.mcp_list_tools.failed",
        ]  # fmt: skip
        calls = [
            call("geo__fail", {}), call("geo__big", {"size": 1001}), call("geo__add", {"a": "x"}),
            call("geo__add", ["x"]), call("geo__gone", {}),
        ]  # fmt: skip
        says(bench, "".join(calls), "So be it.")
        events = await streamed(bench, tools=[tool(server)])
        items = [item for item in events[-1]["response"]["output"] if item["type"] == "mcp_call"]
        problems = [item["error"]["content"][0]["text"] for item in items]
        assert [item["status"] for item in items] == ["failed"] * len(items)
        assert "Error executing tool fail" in problems[0]
        assert "1001 bytes, more than the 1000" in problems[1]
        assert "validation error" in problems[2]
        assert "not a JSON object" in problems[3]
        assert sum(event["type"] == "response.mcp_call.failed" for event in events) == len(items)
        assert len(items) == len(calls)
        assert "offers no tool called 'gone'" in problems[4]
        seconds = bench.gateway.metrics.mcp
        assert [sum(seconds.at("list", result).counts) for result in ("ok", "error")] == [2, 1]
        assert [sum(seconds.at("call", result).counts) for result in ("ok", "error")] == [0, 3]
        assert events[-1]["response"]["output"][-1]["content"][0]["text"] == "So be it."
        assert all(words in prompt(bench) for words in ("Error executing tool fail", "1001 bytes", "not a JSON object"))


async def test_urls_that_are_not_allowed_are_refused(bench: Bench, server: ToolServer) -> None:
    for url in ("http://10.0.0.1/", "http://127.0.0.1:1/", "ftp://x/", "https://tools.example/mcp"):
        for stream in (False, True):
            refused = await respond(bench, stream=stream, tools=[FUNCTION, tool(url)])
            error = error_of(refused, 400)
            assert error["param"] == "tools[1].server_url"
            assert error["code"] == "mcp_server_not_allowed"
    assert "--mcp-allow" in error["message"]
    refused = await respond(bench, tools=[tool(server)], tool_choice={"type": "mcp", "server_label": "x"})
    assert error_of(refused, 400)["param"] == "tool_choice.server_label"
    assert server.requests == []


async def test_calls_are_bounded(bench: Bench, server: ToolServer) -> None:
    says(bench, ADD)  # for ever
    answer = await whole(bench, tools=[tool(server)], max_tool_calls=2, tool_choice="required")
    assert kinds(answer)[:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
    assert len(server.calls) == 2
    assert len(bench.engine.received) == 3
    assert "geo__add" not in prompt(bench).split("<tool_call>")[0]
    says(bench, ADD * 3, "Enough.")
    answer = await whole(bench, tools=[tool(server)], max_tool_calls=2)
    assert [item.get("status") for item in answer["output"][1:4]] == ["completed", "completed", "failed"]
    assert "may make 2 calls" in answer["output"][3]["error"]["content"][0]["text"]
    assert answer["output"][-1]["content"][0]["text"] == "Enough."
    says(bench, ADD)
    answer = await whole(bench, tools=[tool(server), FUNCTION], max_tool_calls=1)  # calls are still read as such
    assert kinds(answer) == ["mcp_list_tools", "mcp_call", "mcp_call"]
    assert (answer["status"], answer["output"][2]["status"]) == ("completed", "failed")


async def test_tokens_are_bounded_over_all_rounds(bench: Bench, server: ToolServer) -> None:
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    size = len(tokenizer.encode(ADD, add_special_tokens=False))
    says(bench, ADD, "12345678")
    answer = await whole(bench, tools=[tool(server)], max_output_tokens=size + 4)
    assert [request.sampling["max_tokens"] for request in bench.engine.received] == [size + 4, 3]
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["max_output_tokens"] == size + 4
    for stream in (False, True):
        says(bench, ADD + ADD)
        if stream:
            events = await streamed(bench, tools=[tool(server)], max_output_tokens=size + 9)
            answer = events[-1]["response"]
            done = [event for event in events if event["type"] == "response.output_item.done"]
            assert {event["output_index"]: event["item"] for event in done} == dict(enumerate(answer["output"]))
            assert len(done) == 3
        else:
            answer = await whole(bench, tools=[tool(server)], max_output_tokens=size + 9)
        assert answer["status"] == "incomplete"
        assert [item.get("status") for item in answer["output"]] == [None, "incomplete", "incomplete"]
    assert len(server.calls) == 1


async def test_functions_of_the_client_end_the_response(bench: Bench, server: ToolServer) -> None:
    says(bench, ADD + call("f", {}), "Fine.")
    answer = await whole(bench, tools=[tool(server), FUNCTION])
    assert kinds(answer) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert answer["output"][1]["output"] == "3"
    result = {"type": "function_call_output", "call_id": answer["output"][2]["call_id"], "output": "later"}
    again = await whole(
        bench, tools=[tool(server), FUNCTION], input=[result], previous_response_id=answer["id"]
    )  # fmt: skip
    assert kinds(again) == ["message"]  # the list is in the conversation
    assert server.methods().count("tools/list") == 1
    assert "later" in prompt(bench)


async def test_calls_wait_for_approval(bench: Bench, server: ToolServer) -> None:
    asking = tool(server, require_approval={"never": {"tool_names": ["add"]}})
    says(bench, ADD + call("geo__erase", {"path": "x"}), "Gone.")
    events = await streamed(bench, tools=[asking])
    answer = events[-1]["response"]
    assert kinds(answer) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]
    asked = answer["output"][2]
    assert {**asked, "id": ""} == {
        "type": "mcp_approval_request", "id": "", "server_label": "geo", "name": "erase", "arguments": '{"path": "x"}',
    }  # fmt: skip
    mine = [event["type"] for event in events if event.get("output_index") == 2]
    assert mine == ["response.output_item.added", "response.output_item.done"]
    assert [name for name, _ in server.calls] == ["add"]
    reply = {"type": "mcp_approval_response", "approval_request_id": asked["id"]}
    for fields, param in (
        ({"tools": []}, "input[0].approval_request_id"),
        ({"input": [reply | {"approval_request_id": "x", "approve": True}]}, "input[0].approval_request_id"),
    ):
        chosen = {"tools": [asking], "input": [reply | {"approve": True}]} | fields
        refused = await respond(bench, previous_response_id=answer["id"], **chosen)
        assert error_of(refused, 400)["param"] == param
    says(bench, "Gone.")
    events = await streamed(bench, tools=[asking], input=[reply | {"approve": True}], previous_response_id=answer["id"])
    approved = events[-1]["response"]
    called, _ = approved["output"]
    assert (called["type"], called["output"]) == ("mcp_call", "erased x")
    assert called["approval_request_id"] == asked["id"]
    assert [event["type"].removeprefix("response.") for event in events if event.get("output_index") == 0] == [
        "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done",
        "mcp_call.completed", "output_item.done",
    ]  # fmt: skip
    assert "erased x" in prompt(bench)
    declined = await whole(
        bench, tools=[asking], input=[reply | {"approve": False, "reason": "No!"}], previous_response_id=answer["id"]
    )
    assert kinds(declined) == ["message"]
    assert "Reason: No!" in prompt(bench)
    again = await whole(bench, tools=[asking], input=[reply | {"approve": True}], previous_response_id=approved["id"])
    assert kinds(again) == ["message"]  # it has been called
    assert [name for name, _ in server.calls] == ["add", "erase"]


async def test_in_the_background_and_over_a_websocket(bench: Bench, server: ToolServer) -> None:
    says(bench, ADD, "It is 3.", ADD, "It is 3.")
    queued = await whole(bench, tools=[tool(server)], background=True)
    assert queued["status"] == "queued"
    with trio.fail_after(PATIENCE_S):
        while (kept := ok(await bench.http.get(f"/v1/responses/{queued['id']}")).json())["status"] in (
            "queued",
            "in_progress",
        ):
            await trio.lowlevel.checkpoint()
    assert kinds(kept) == ["mcp_list_tools", "mcp_call", "message"]
    url = bench.base_url.replace("http", "ws") + "/v1/responses"
    async with open_websocket_url(url) as socket:
        events = await turn(socket, tools=[tool(server)])
        assert events[-1]["type"] == "response.completed"
        assert shape(events[-1]["response"]["output"]) == shape(kept["output"])
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (await turn(socket, tools=[tool("http://10.0.0.1/")]))[-1]["type"] == "error"


@pytest.mark.parametrize("way", ["whole", "stream", "background", "socket"])
async def test_who_leaves_ends_the_session(tmp_path: Path, way: str) -> None:
    async with tool_server(legacy=True) as server, open_bench(tmp_path, server.url) as bench:
        says(bench, call("geo__slow", {}))
        body = {"model": MODEL, "input": "hi", "tools": [tool(server)]}
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                if way == "background":
                    queued = await whole(bench, tools=[tool(server)], background=True)
                elif way == "socket":
                    socket = await nursery.start(_socket, bench, body)
                else:
                    nursery.start_soon(_left, bench, body | {"stream": way == "stream"})
                await server.waiting.wait()
                assert not bench.gateway.in_flight
                if way == "background":
                    ok(await bench.http.post(f"/v1/responses/{queued['id']}/cancel"))
                if way == "socket":
                    await socket.send_message(json.dumps({"type": "response.cancel"}))
                    await until(lambda: "DELETE" in server.methods())
                nursery.cancel_scope.cancel()
            await until(lambda: "DELETE" in server.methods())
            await bench.gateway.wait_no_answers()
        assert len(bench.engine.received) == 1


async def _left(bench: Bench, body: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=bench.base_url, timeout=PATIENCE_S) as http:
        await http.post("/v1/responses", json=body)


async def _socket(bench: Bench, body: dict[str, Any], *, task_status: trio.TaskStatus[Any]) -> None:
    async with open_websocket_url(bench.base_url.replace("http", "ws") + "/v1/responses") as socket:
        await socket.send_message(json.dumps(body | {"type": "response.create"}))
        task_status.started(socket)
        await trio.sleep_forever()


async def test_the_whole_response_has_the_time_limit(tmp_path: Path, server: ToolServer) -> None:
    async with open_bench(tmp_path, server.url, request_timeout_secs=0.5, sse_keepalive_secs=0.05) as bench:
        says(bench, call("geo__slow", {}))
        assert error_of(await respond(bench, tools=[tool(server)]), 504)["code"] == "request_timeout"
        answer = ok(await respond(bench, tools=[tool(server)], stream=True))
        assert ": keep-alive" in answer.text or "\n:" in answer.text
        assert "response.failed" in answer.text.split("\n\n")[-2]


async def test_a_shutdown_lets_a_call_end(tmp_path: Path, server: ToolServer) -> None:
    async with open_bench(tmp_path, server.url) as bench:
        says(bench, call("geo__slow", {}), "At last.")
        found: list[dict[str, Any]] = []
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    found.append(await whole(bench, tools=[tool(server)]))

                nursery.start_soon(ask)
                await server.waiting.wait()
                bench.shutdown.ask()
                await until(lambda: bench.gateway.draining)
                server.go_on.set()
        assert found[0]["output"][-1]["content"][0]["text"] == "At last."


async def test_a_call_that_outlives_the_grace_period_is_an_error(tmp_path: Path, server: ToolServer) -> None:
    async with open_bench(tmp_path, server.url, shutdown_grace_period_secs=0.2) as bench:
        says(bench, call("geo__slow", {}))
        found: list[dict[str, Any]] = []
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    found.extend(await streamed(bench, tools=[tool(server)]))

                nursery.start_soon(ask)
                await server.waiting.wait()
                bench.shutdown.ask()
        assert found[-1]["type"] == "response.failed"
        assert "shutting down" in found[-1]["response"]["error"]["message"]


async def test_what_fails_before_there_is_output_has_a_status(bench: Bench, server: ToolServer) -> None:
    first = await whole(bench, tools=[tool(server)])
    await bench.http.delete(f"/workers/{bench.worker.spec.worker_id}")
    again = {"tools": [tool(server)], "previous_response_id": first["id"]}  # nothing is to be listed
    for stream in (False, True):
        assert (await respond(bench, stream=stream, **again)).status_code in (404, 503)
    events = await streamed(bench, tools=[tool(server)]) if bench.gateway.registry.workers() else []
    assert not events
    assert not bench.gateway.tool_runs
