"""Tools of the Responses API other than functions, through HTTP and a WebSocket: offered, called, answered."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import open_websocket_url

from .answers import ok, spelt, sweep
from .harness import MODEL, PATIENCE_S, Bench, error_of, open_gateway

ANY = 'E["x"]'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
GEO = {"type": "namespace", "name": "mcp__geo", "tools": [{"type": "function", "name": "locate", "parameters": CITY}]}
PATCH = {"type": "custom", "name": "run_patch", "format": {"type": "text"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" /b+/'}
HELD = {"type": "custom", "name": "held", "format": GRAMMAR}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
TEXT = 'line "one"\nline two'
END = ("response.completed", "response.incomplete", "response.failed", "error")


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


LOCATE = call("mcp__geo__locate", {"city": "Oslo"})
PATCHED = call("run_patch", {"input": TEXT})


def prompt(bench: Bench) -> str:
    """The prompt of the newest request."""
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    return tokenizer.decode(bench.engine.received[-1].prompt_token_ids, skip_special_tokens=False)


async def whole(bench: Bench, **fields: Any) -> dict[str, Any]:
    return dict(ok(await bench.http.post("/v1/responses", json={"model": MODEL, "input": "hi"} | fields)).json())


async def streamed(bench: Bench, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "input": "hi", "stream": True} | fields
    answer = ok(await bench.http.post("/v1/responses", json=body))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


async def turn(socket: Any, **fields: Any) -> list[dict[str, Any]]:
    """One turn on a WebSocket."""
    await socket.send_message(json.dumps({"type": "response.create", "model": MODEL, "store": False} | fields))
    seen: list[dict[str, Any]] = []
    with trio.fail_after(PATIENCE_S):
        while not seen or seen[-1]["type"] not in END:
            seen.append(json.loads(await socket.get_message()))
    return seen


def shown(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without the ids that are made for each answer."""
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


def open_bench(tmp_path: Path, **settings: Any) -> Any:
    return open_gateway(
        tmp_path, ANY, tool_call_parser="hermes", model_config={"max_position_embeddings": 8192},
        engine={"max_model_len": 8192}, **settings,
    )  # fmt: skip


async def test_hosted_tools_are_left_out_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bench(tmp_path) as bench:
        with caplog.at_level(logging.WARNING, "smg_trio.pipeline"):
            for _ in range(2):
                tools = [FUNCTION, {"type": "web_search"}, {"type": "image_generation"}]
                bench.say(spelt(bench, call("f", {})))
                [item] = (await whole(bench, tools=tools))["output"]
                assert item["name"] == "f"
                assert '"name": "f"' in prompt(bench)
                assert "web_search" not in prompt(bench)
        lines = [record.getMessage() for record in caplog.records if record.name == "smg_trio.pipeline"]
        assert len(lines) == 2
        assert "image_generation" in lines[0]
        body = {"model": MODEL, "input": "hi", "tools": [FUNCTION, {"type": "web_search"}]}
        for choice in ({"type": "web_search"}, {"type": "allowed_tools", "tools": [{"type": "web_search"}]}):
            answer = await bench.http.post("/v1/responses", json=body | {"tool_choice": choice})
            assert "tool_choice" in error_of(answer, 400)["param"]


async def test_calls_come_back_as_the_tools_were_declared_streamed_and_whole(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        tools = [GEO, PATCH, {"type": "web_search"}]
        for script in sweep(bench, LOCATE + PATCHED):
            bench.say(script)
            output = (await whole(bench, tools=tools))["output"]
            assert shown(output) == [
                {
                    "type": "function_call",
                    "namespace": "mcp__geo",
                    "name": "locate",
                    "arguments": '{"city": "Oslo"}',
                    "status": "completed",
                },
                {"type": "custom_tool_call", "name": "run_patch", "input": TEXT, "status": "completed"},
            ]
            events = await streamed(bench, tools=tools)
            assert shown(events[-1]["response"]["output"]) == shown(output)
            deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
            assert "".join(deltas) == TEXT
            [done] = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
            assert done["input"] == TEXT
        assert "mcp__geo__locate" in prompt(bench)


async def test_the_history_finds_the_flat_names_again(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.say(spelt(bench, LOCATE + PATCHED))
        first = await whole(bench, tools=[GEO, PATCH])
        located, patched = first["output"]
        results = [
            {"type": "function_call_output", "call_id": located["call_id"], "output": "NORTH"},
            {"type": "custom_tool_call_output", "call_id": patched["call_id"], "output": "PATCHED"},
        ]
        bench.say(spelt(bench, "done"))
        await whole(bench, tools=[GEO, PATCH], previous_response_id=first["id"], input=results)
        stored = prompt(bench)
        opening = {"role": "user", "content": "hi"}
        await whole(bench, tools=[GEO, PATCH], input=[opening, located, patched, *results], store=False)
        assert prompt(bench) == stored
        assert '"name": "mcp__geo__locate"' in stored
        assert json.dumps({"input": TEXT}) in stored
        assert stored.index("NORTH") < stored.index("PATCHED")


async def test_a_tool_with_a_grammar_is_held_to_it_where_it_is_forced(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.say(spelt(bench, 'abb "b" \\'))
        forced = {"tools": [HELD], "tool_choice": {"type": "custom", "name": "held"}}
        [item] = (await whole(bench, **forced))["output"]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "held", 'abb "b" \\')
        events = await streamed(bench, **forced)
        assert shown(events[-1]["response"]["output"]) == shown([item])
        held = bench.engine.received[-1].sampling["structured_outputs"]
        assert held["grammar"] == GRAMMAR["definition"]
        bench.say(spelt(bench, call("run_patch", {"input": "text"})))
        [item] = (await whole(bench, tools=[PATCH], tool_choice={"type": "custom", "name": "run_patch"}))["output"]
        assert (item["type"], item["input"]) == ("custom_tool_call", "text")


async def test_a_websocket_turn_prepares_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """As Codex does it: tools and instructions first, in items, without a generation; then what the user says."""
    added = {"type": "additional_tools", "role": "developer", "tools": [GEO, HELD]}
    async with open_bench(tmp_path) as bench:
        url = bench.base_url.replace("http", "ws") + "/v1/responses"
        async with open_websocket_url(url) as socket:
            before = len(bench.engine.received)
            for opening in ([], [added, {"role": "developer", "content": "BE BRIEF"}]):
                prepared = await turn(socket, input=opening, generate=False)
                assert [event["type"] for event in prepared] == [
                    "response.created",
                    "response.in_progress",
                    "response.completed",
                ]
                assert prepared[-1]["response"]["output"] == []
            assert len(bench.engine.received) == before
            bench.say(spelt(bench, LOCATE + call("held", {"input": TEXT})))
            update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
            events = await turn(
                socket,
                input=[{"role": "user", "content": "where"}, update],
                previous_response_id=prepared[-1]["response"]["id"],
            )
            located, held = events[-1]["response"]["output"]
            assert (located["namespace"], located["name"]) == ("mcp__geo", "locate")
            assert (held["type"], held["input"]) == ("custom_tool_call", TEXT)
            assert "BE BRIEF" in prompt(bench)
            bench.say(spelt(bench, "done"))
            results = [
                {"type": "function_call_output", "call_id": located["call_id"], "output": "NORTH"},
                {"type": "custom_tool_call_output", "call_id": held["call_id"], "output": "HELD"},
            ]
            events = await turn(socket, input=results, previous_response_id=events[-1]["response"]["id"])
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == "done"
            assert "mcp__geo__locate" in prompt(bench)
            assert "NORTH" in prompt(bench)


async def test_two_tools_of_one_flat_name_are_refused(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        tools = [GEO, {**FUNCTION, "name": "mcp__geo__locate"}]
        answer = await bench.http.post("/v1/responses", json={"model": MODEL, "input": "hi", "tools": tools})
        assert error_of(answer, 400)["param"] == "tools[1].name"


async def test_prompt_and_output_are_shown_as_the_model_has_them_on_request(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        script = spelt(bench, "<think>hm</think>Hi " + LOCATE)
        bench.say(script)
        fields = {"tools": [GEO], "enable_response_messages": True}
        answer = await whole(bench, **fields)
        assert answer["output"][-1]["name"] == "locate"
        received = list(bench.engine.received[-1].prompt_token_ids)
        assert answer["input_messages"] == [
            {"type": "raw_message_tokens", "message": prompt(bench), "tokens": received}
        ]
        [said] = answer["output_messages"]
        assert said["message"].endswith("</tool_call>\n")
        assert said["message"].startswith("<think>hm</think>Hi ")
        assert len(said["tokens"]) == answer["usage"]["output_tokens"]
        *_, last = await streamed(bench, **fields)
        assert last["response"]["output_messages"] == [said]
        bench.say(spelt(bench, "plain text of several tokens"))
        for response in (
            await whole(bench, enable_response_messages=True),
            (await streamed(bench, enable_response_messages=True))[-1]["response"],
        ):
            assert response["output_messages"][0]["message"] == "plain text of several tokens"
        assert "input_messages" not in await whole(bench)
        body = {"model": MODEL, "input": "hi", "previous_input_messages": [{"role": "user", "content": "x"}]}
        answer = await bench.http.post("/v1/responses", json=body)
        assert error_of(answer, 400)["param"] == "previous_input_messages"


async def test_a_name_of_openais_means_the_only_model(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        answer = await whole(bench, model="gpt-6.2-sol")
        assert answer["model"] == "gpt-6.2-sol"
        refused = await bench.http.post("/v1/responses", json={"model": "other", "input": "hi"})
        assert error_of(refused, 404)["code"] == "model_not_found"
