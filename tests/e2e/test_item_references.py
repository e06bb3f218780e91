"""References to stored items, and what is added to a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from .answers import spelt
from .harness import PATIENCE_S, Bench, error_of, open_gateway
from .test_tools import ANY, hermes

PING = {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}
BACKENDS = ["memory", "sqlite"]


def history(backend: str, tmp_path: Path) -> str:
    return backend if backend == "memory" else f"sqlite:{tmp_path}/history.db"


async def create(bench: Bench, **fields: Any) -> httpx.Response:
    return await bench.http.post("/v1/responses", json={"input": "hi", "tools": [PING]} | fields)


def prompt(bench: Bench) -> str:
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    return tokenizer.decode(bench.engine.received[-1].prompt_token_ids, skip_special_tokens=False)


def reference(item: dict[str, Any]) -> dict[str, str]:
    return {"type": "item_reference", "id": item["id"]}


@pytest.mark.parametrize("backend", BACKENDS)
async def test_items_of_a_stored_response_are_found_without_its_id(tmp_path: Path, backend: str) -> None:
    async with open_gateway(tmp_path, ANY, history_backend=history(backend, tmp_path)) as bench:
        bench.say(spelt(bench, f"I LOOK.\n{hermes('{}', 'ping')}"))
        first = (await create(bench, store=True)).json()
        message, call = first["output"]
        assert (message["type"], call["type"]) == ("message", "function_call")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "PONG"}
        items = [{"role": "user", "content": "hi"}, {"id": message["id"]}, reference(call), result]
        second = await create(bench, input=items)
        assert second.status_code == 200, second.text
        said = prompt(bench)
        assert said.index("I LOOK.") < said.rindex('"ping"') < said.index("PONG")
        async with open_websocket_url(f"ws://127.0.0.1:{bench.port}/v1/responses") as socket:
            with trio.fail_after(PATIENCE_S):
                body = {"type": "response.create", "input": items, "tools": [PING]}
                await socket.send_message(json.dumps(body))
                while (event := json.loads(await socket.get_message()))["type"] != "response.completed":
                    assert event["type"] != "error", event
        # What the second one took over is kept with it, so it outlives the first.
        assert (await bench.http.delete(f"/v1/responses/{first['id']}")).status_code == 200
        assert (await create(bench, input=items)).status_code == 200


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_is_not_kept_is_named(tmp_path: Path, backend: str) -> None:
    async with open_gateway(tmp_path, ANY, history_backend=history(backend, tmp_path)) as bench:
        bench.say(spelt(bench, "I LOOK."))
        unkept = (await create(bench, store=False)).json()["output"][0]
        deleted = (await create(bench)).json()
        assert (await create(bench, input=[reference(deleted["output"][0])])).status_code == 200
        users = (await bench.http.get(f"/v1/responses/{deleted['id']}/input_items")).json()["data"][0]
        for item in (unkept, {"id": "msg_never"}):
            error = error_of(await create(bench, input=[reference(item)]), 400)
            assert (error["code"], error["param"]) == ("invalid_value", "input[0].id")
            assert item["id"] in error["message"]
        assert (await create(bench, input=[reference(users)])).status_code == 200


@pytest.mark.parametrize("backend", BACKENDS)
async def test_items_of_a_conversation_are_found_until_they_are_deleted(tmp_path: Path, backend: str) -> None:
    async with open_gateway(tmp_path, ANY, history_backend=history(backend, tmp_path)) as bench:
        bench.say(spelt(bench, "I LOOK."))
        items = [{"role": "user", "content": "TALKED"}]
        talk = (await bench.http.post("/v1/conversations", json={"items": items})).json()["id"]
        (item,) = (await bench.http.get(f"/v1/conversations/{talk}/items")).json()["data"]
        assert (await create(bench, input=[reference(item)], store=False)).status_code == 200
        assert "TALKED" in prompt(bench)
        await bench.http.delete(f"/v1/conversations/{talk}/items/{item['id']}")
        error_of(await create(bench, input=[reference(item)]), 400)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_turn_that_is_not_stored_is_added_to_its_conversation_all_the_same(
    tmp_path: Path, backend: str
) -> None:
    async with open_gateway(tmp_path, ANY, history_backend=history(backend, tmp_path)) as bench:
        bench.say(spelt(bench, "LEMON."))
        talk = (await bench.http.post("/v1/conversations", json={})).json()["id"]
        turn = (await create(bench, input="Say LEMON", store=False, conversation=talk)).json()
        assert turn["store"] is False
        error_of(await bench.http.get(f"/v1/responses/{turn['id']}"), 404)
        items = (await bench.http.get(f"/v1/conversations/{talk}/items", params={"order": "asc"})).json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["Say LEMON", "LEMON."]
        await create(bench, input="Again", store=False, conversation=talk)
        assert "LEMON." in prompt(bench)


async def test_an_unknown_previous_response_has_the_official_apis_error(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        for stream in (False, True):
            answer = await create(bench, previous_response_id="resp_never", stream=stream)
            assert error_of(answer, 400) == {
                "message": "Previous response with id 'resp_never' not found.",
                "type": "invalid_request_error",
                "param": "previous_response_id",
                "code": "previous_response_not_found",
            }
        bench.say(spelt(bench, "x"))
        first = (await create(bench)).json()["id"]
        second = (await create(bench, previous_response_id=first)).json()["id"]
        await bench.http.delete(f"/v1/responses/{first}")
        error = error_of(await create(bench, previous_response_id=second), 400)
        assert error["code"] == "previous_response_not_found", "what it went on from is gone"
