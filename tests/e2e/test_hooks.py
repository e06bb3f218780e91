"""``--hook``: plug-ins that see requests and answers, from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio_websocket

from .answers import ok
from .harness import ENDLESS, HI, MODEL, PATIENCE_S, Bench, error_of, launched_gateway, open_gateway

PLUGIN = """
import trio
from smg_trio.plugins import Changes, Refuse
smg_trio_api = 1
requests, answers = [], []

class First:
    async def on_request(self, view):
        requests.append(view)
        user = view.body.get("user", "")
        if user == "slow":
            await trio.sleep_forever()
        if user == "broken":
            raise RuntimeError("the database is away")
        return {
            "refused": Refuse(status=451, code="legal_reasons", message="Not here."),
            "wrong status": Refuse(status=200, code="x", message=""),
            "wrong code": Refuse(status=400, code="a\\r\\nb: c", message=""),
            "wrong kind": 5,
            "no JSON": Changes(body={"x": {1, 2}}),
            "renamed": Changes(model="m", body={"max_tokens": 2}, remove=["stop"]),
            "bad": Changes(body={"max_tokens": "many"}),
            "kept": Changes(routing_key="alice"),
        }.get(user)

    async def on_answer(self, view):
        if view.options.get("fail"):
            raise RuntimeError
        if "delay" in view.options:
            await trio.sleep(float(view.options["delay"]))
        answers.append(view)
        if "file" in view.options:
            with open(view.options["file"], "a") as file:
                file.write(f"{view.model} {view.prompt_tokens}+{view.completion_tokens} {view.status}\\n")

class Second:
    def on_request(self, view):
        if "max_tokens" in view.body:
            return Changes(body={"max_tokens": view.body["max_tokens"] + 1})

hooks = {"first": First, "second": Second()}
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    """The file of the hooks."""
    file = tmp_path / "hooks_of_a_test.py"
    file.write_text(PLUGIN)
    return str(file)


def seen(bench: Bench, name: str) -> list[Any]:
    """What the hook has seen: requests or answers."""
    method = bench.gateway.plugins.hooks[0].on_answer
    assert method is not None
    found: list[Any] = method.__func__.__globals__[name]  # type: ignore[attr-defined]
    return found


async def answers_seen(bench: Bench, count: int) -> list[Any]:
    """What it has seen, once there is so much of it."""
    with trio.fail_after(PATIENCE_S):
        while len(seen(bench, "answers")) < count:
            await trio.lowlevel.checkpoint()
    return seen(bench, "answers")


async def test_hooks_see_requests_and_change_or_refuse_them(tmp_path: Path, plugin: str) -> None:
    async with open_gateway(
        tmp_path, hook=("first", "second"), plugin_file=(plugin,), plugin_option=("first.a=b",), api_key=("sk-1",)
    ) as bench:
        bench.http.headers["authorization"] = "Bearer sk-1"
        ok(await bench.chat(user="plain"))
        [view] = seen(bench, "requests")
        assert (view.path, view.model, view.identity) == ("/v1/chat/completions", MODEL, "api-key-1")
        assert view.body["messages"] == HI
        assert view.request_id
        assert dict(view.options) == {"a": "b"}
        assert "user-agent" in view.headers
        assert not any("sk-1" in value for value in view.headers.values())
        # A refusal has the status and code that the hook says, in the shape of the API.
        error = error_of(await bench.chat(user="refused"), 451)
        assert (error["code"], error["message"]) == ("legal_reasons", "Not here.")
        body = {"model": MODEL, "messages": HI, "max_tokens": 4, "user": "refused"}
        assert (await bench.http.post("/v1/messages", json=body)).json()["error"]["message"] == "Not here."
        # Changes go from hook to hook, and to the request: two tokens by the first, one more by the second.
        answer = ok(await bench.chat(user="renamed", model="something else", stop=["Hel"])).json()
        assert answer["usage"]["completion_tokens"] == 3
        # What a hook makes of a request is checked as a client's.
        assert error_of(await bench.chat(user="bad"), 400)["param"] == "max_tokens"
        # Not what is only looked at.
        before = len(seen(bench, "requests"))
        ok(await bench.http.get("/v1/models"))
        assert len(seen(bench, "requests")) == before
        assert error_of(await bench.http.post("/v1/chat/completions", content=b"{"), 400)["code"] == "json_parse_error"


async def test_a_hooks_routing_key_keeps_a_session_together(tmp_path: Path, plugin: str) -> None:
    settings = {"hook": ("first",), "plugin_file": (plugin,), "policy": "manual"}
    async with open_gateway(tmp_path, workers=3, **settings) as bench:
        for _ in range(5):
            ok(await bench.chat(user="kept"))
        registry = bench.gateway.registry
        loads = [registry.selections(worker.spec.worker_id) for worker in registry.workers()]
        assert sorted(loads) == [0, 0, 5]


@pytest.mark.parametrize("fault", ["open", "closed"])
async def test_a_hook_that_fails(tmp_path: Path, plugin: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg_trio.gateway.hooks.LIMIT_S", 0.05)
    settings = {"hook": ("first",), "plugin_file": (plugin,), "hook_fault": fault}
    async with open_gateway(tmp_path, **settings) as bench:
        users = ("broken", "slow", "wrong status", "wrong code", "wrong kind", "no JSON")
        for number, user in enumerate(users, 1):
            response = await bench.chat(user=user)
            if fault == "open":
                ok(response)
            else:
                error = error_of(response, 503)
                assert error["code"] == "hook_unavailable"
                assert "database" not in error["message"]
            assert bench.gateway.plugins.hooks[0].calls.faults == number, user
        ok(await bench.chat())


async def test_hooks_are_told_of_answers(tmp_path: Path, plugin: str) -> None:
    settings = {"hook": ("first",), "plugin_file": (plugin,), "plugin_option": ("first.a=b",)}
    async with open_gateway(tmp_path, **settings) as bench:
        ok(await bench.chat())
        ok(await bench.chat(stream=True))
        [whole, streamed] = await answers_seen(bench, 2)
        assert (whole.endpoint, whole.model, whole.status, whole.streaming) == ("chat", MODEL, "ok", False)
        assert (whole.completion_tokens, whole.workers, list(whole.text)) == (5, (bench.urls[0],), [])
        assert whole.prompt_tokens > 0
        assert 0 <= whole.first_output_s <= whole.duration_s
        assert streamed.streaming
        ok(await bench.completion(prompt=["a", "b"]))
        ok(await bench.http.post("/v1/responses", json={"model": MODEL, "input": "hi", "background": True}))
        found = await answers_seen(bench, 4)
        assert [view.endpoint for view in found[2:]] == ["completions", "responses"]
        bench.say(ENDLESS)
        body = {"model": MODEL, "messages": HI, "stream": True}
        async with bench.http.stream("POST", "/v1/chat/completions", json=body):
            pass
        left = (await answers_seen(bench, 5))[-1]
        assert (left.status, left.error) == ("left", "")


async def test_hooks_see_the_text_of_answers_only_if_that_is_asked_for(tmp_path: Path, plugin: str) -> None:
    async with open_gateway(tmp_path, hook=("first",), plugin_file=(plugin,), hook_text=True) as bench:
        ok(await bench.chat())
        ok(await bench.chat(stream=True))
        ok(await bench.chat(n=2))
        found = [list(view.text) for view in await answers_seen(bench, 3)]
        assert found == [["Hello world"], ["Hello world"], ["Hello world"] * 2]


async def test_turns_of_a_websocket_are_shown_too(tmp_path: Path, plugin: str) -> None:
    async with open_gateway(tmp_path, hook=("first",), plugin_file=(plugin,)) as bench:
        url = bench.base_url.replace("http", "ws") + "/v1/responses"
        with trio.fail_after(PATIENCE_S):
            async with trio_websocket.open_websocket_url(url) as socket:
                await socket.send_message(json.dumps({"type": "response.create", "input": "hi", "user": "refused"}))
                event = json.loads(await socket.get_message())
                assert (event["status"], event["error"]["code"]) == (451, "legal_reasons")
                await socket.send_message(json.dumps({"type": "response.create", "input": "hi"}))
                while json.loads(await socket.get_message())["type"] != "response.completed":
                    pass
        assert [view.endpoint for view in await answers_seen(bench, 1)] == ["responses"]


async def test_what_answers_cost_is_told_before_the_process_ends(tmp_path: Path, plugin: str) -> None:
    told = tmp_path / "told"
    flags = ("--hook", "first", "--plugin-file", plugin, "--plugin-option", "first.delay=0.3", f"first.file={told}")
    async with (
        launched_gateway(tmp_path, flags=flags) as (process, _),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}") as http,
    ):
        body = {"model": MODEL, "messages": HI}
        ok(await http.post("/v1/chat/completions", json=body))
        process.signal()
        assert await process.wait(PATIENCE_S) == 0
    assert told.read_text().endswith("ok\n")
