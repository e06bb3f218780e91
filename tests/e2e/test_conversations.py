"""Conversations as agents send them, over HTTP, on templates that are particular about what they take."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smg_trio.text.model_files import load_model_text
from tests.conftest import shared_path
from tests.own_classes import own_class_in

from .harness import HELLO, Bench, error_of, open_gateway

TURN = "[{{ m.role }}]{{ m.content }}\n"
LATE = "m.role == 'system' and not loop.first"
TAKES_ALL = f"{{% for m in messages %}}{TURN}{{% endfor %}}"
REFUSES = f"{{% if {LATE} %}}{{{{ raise_exception('first only') }}}}{{% endif %}}"
FIRST_ONLY = f"{{% for m in messages %}}{REFUSES}{TURN}{{% endfor %}}"
DROPS_LATE = f"{{% for m in messages %}}{{% if not ({LATE}) %}}{TURN}{{% endif %}}{{% endfor %}}"


def collected(name: str) -> str:
    return shared_path("data", "chat_templates", f"{name}.jinja").read_bytes().decode()


class Asker:
    """Asks, and tells what reached the engine."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._tokenizer = load_model_text(bench.model.directory).tokenizer

    async def prompt(self, path: str, **body: Any) -> str:
        """The prompt of a request, which must be answered."""
        answer = await self.bench.http.post(path, json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
        ids = self.bench.engine.received[-1].prompt_token_ids
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    async def chat(self, *messages: Any, **fields: Any) -> str:
        return await self.prompt("/v1/chat/completions", messages=list(messages), **fields)

    async def messages(self, *turns: Any, **fields: Any) -> str:
        return await self.prompt("/v1/messages", messages=list(turns), max_tokens=9, **fields)

    async def responses(self, *items: Any, **fields: Any) -> str:
        return await self.prompt("/v1/responses", input=list(items), **fields)


@asynccontextmanager
async def asking(tmp_path: Path, template: str) -> AsyncIterator[Asker]:
    """A gateway with that template."""
    async with open_gateway(
        tmp_path,
        HELLO,
        engine={"max_model_len": 32768},
        model_config={"max_position_embeddings": 32768},
        chat_template=template,
    ) as bench:
        yield Asker(bench)


def noted(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "smg_trio.pipeline"]


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


WEATHER = {"city": "Oslo"}
CALL = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(WEATHER)}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "SUNNY"}
USE = {"type": "tool_use", "id": "c", "name": "get_weather", "input": WEATHER}
USE_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "SUNNY"}]}
ITEMS = [
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": json.dumps(WEATHER)},
    {"type": "function_call_output", "call_id": "c", "output": "SUNNY"},
]


# ---- system messages that are not the first --------------------------------------------------------------------


@pytest.mark.parametrize("template", ["first only", "drops late", "qwen3.5"])
async def test_later_system_messages_are_folded_at_the_front(
    tmp_path: Path, template: str, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {"first only": FIRST_ONLY, "drops late": DROPS_LATE}
    with caplog.at_level(logging.WARNING, "smg_trio.pipeline"):
        async with asking(tmp_path, sources.get(template) or collected(template)) as ask:
            prompts = [
                await ask.messages(user("BBB"), system("CCC"), system="AAA"),
                await ask.chat(system("AAA"), system("CCC"), user("BBB")),
                await ask.chat(system("AAA"), user("BBB"), assistant("DDD"), system("CCC"), user("EEE")),
                await ask.chat(user("BBB"), assistant("DDD"), system("CCC"), user("EEE")),
                await ask.responses(system("CCC"), user("BBB"), instructions="AAA"),
            ]
            info = (await ask.bench.http.get("/server_info")).json()
    assert info["models"][0]["chat_template"]["system"] == "first"
    for prompt in prompts:
        assert "CCC" in prompt
        assert prompt.index("CCC") < prompt.index("BBB")
        assert "AAA" not in prompt or prompt.index("AAA") < prompt.index("CCC")
    assert ["AAA" in prompt for prompt in prompts] == [True, True, True, False, True]
    assert [line.count("prefix-cache hits") for line in noted(caplog)] == [1]


async def test_later_system_messages_stay_in_place_where_the_template_takes_them(tmp_path: Path) -> None:
    async with asking(tmp_path, TAKES_ALL) as ask:
        assert await ask.messages(user("B"), system("C"), system="A") == "[system]A\n[user]B\n[system]C\n"
        assert await ask.chat(user("B"), system("C"), user("D")) == "[user]B\n[system]C\n[user]D\n"
        assert await ask.responses(user("B"), system("C"), instructions="A") == "[system]A\n[user]B\n[system]C\n"


# ---- reasoning, arguments --------------------------------------------------------------------------------------


async def test_the_reasoning_of_the_turn_in_progress_reaches_gpt_oss(tmp_path: Path) -> None:
    async with asking(tmp_path, collected("gpt-oss")) as ask:
        said = {"role": "assistant", "reasoning_content": "MUSTLOOK", "tool_calls": [CALL]}
        prompts = [
            await ask.chat(user("U"), said, RESULT),
            await ask.chat(user("U"), {**said, "content": "TEXT"}, RESULT),
            await ask.responses(
                user("U"), {"type": "reasoning", "summary": [{"type": "summary_text", "text": "MUSTLOOK"}]}, *ITEMS
            ),
            await ask.messages(
                user("U"),
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "MUSTLOOK", "signature": ""}, USE]},
                USE_RESULT,
            ),
        ]
        for prompt in prompts:
            assert "<|channel|>analysis<|message|>MUSTLOOK" in prompt
            assert "SUNNY" in prompt
        assert "TEXT" in prompts[1]
        over = await ask.chat(user("U"), said, RESULT, assistant("It shines."), user("Thanks"))
        assert "MUSTLOOK" not in over


async def test_two_calls_of_one_turn_both_reach_gpt_oss(tmp_path: Path) -> None:
    other = {"id": "d", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "CET"}'}}
    async with asking(tmp_path, collected("gpt-oss")) as ask:
        prompt = await ask.chat(
            user("U"),
            {"role": "assistant", "tool_calls": [CALL, other]},
            {"role": "tool", "tool_call_id": "d", "content": "NOON"},
            RESULT,
        )
    order = ["functions.get_weather<|channel|>", "Oslo", "SUNNY", "functions.get_time<|channel|>", "CET", "NOON"]
    places = [prompt.index(text) for text in order]
    assert places == sorted(places)


@pytest.mark.parametrize("template", ["deepseek-r1", "functionary-v3.2", "mistral-nemo", "llama3.1"])
async def test_calls_in_the_history_reach_templates_of_every_kind(tmp_path: Path, template: str) -> None:
    async with asking(tmp_path, collected(template)) as ask:
        prompts = [
            await ask.chat(user("U"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT),
            await ask.messages(user("U"), {"role": "assistant", "content": [USE]}, USE_RESULT),
            await ask.responses(user("U"), *ITEMS),
        ]
    for prompt in prompts:
        assert json.dumps(WEATHER) in prompt
        assert "SUNNY" in prompt


# ---- tools that change, tools that run elsewhere ------------------------------------------------------------------

TOOLS = [
    {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {}}},
    {"name": "ping", "input_schema": {"type": "object"}, "defer_loading": True},
]


async def test_tools_change_in_the_middle_of_a_messages_conversation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(kind: str) -> dict[str, Any]:
        block = {"type": kind, "tool": {"type": "tool_reference", "name": "ping"}}
        return {"role": "system", "content": [{"type": "text", "text": "NEWTOOLS"}, block]}

    async with open_gateway(tmp_path, HELLO, engine={"max_model_len": 4096}) as bench:
        ask = Asker(bench)
        added = await ask.messages(user("hi"), change("tool_addition"), tools=TOOLS)
        assert [text in added for text in ("NEWTOOLS", "get_weather", "ping")] == [True, True, True]
        removed = await ask.messages(user("hi"), change("tool_removal"), tools=TOOLS)
        assert [text in removed for text in ("NEWTOOLS", "get_weather", "ping")] == [True, True, False]
        wrong = {"role": "user", "content": change("tool_addition")["content"]}
        body = {"model": "m", "max_tokens": 9, "messages": [wrong], "tools": TOOLS}
        refused = await bench.http.post("/v1/messages", json=body)
        assert refused.status_code == 400
        assert "messages[0].content[1].type" in refused.json()["error"]["message"]
        with caplog.at_level(logging.WARNING, "smg_trio.pipeline"):
            for _ in range(2):
                hosted = {"type": "web_search_20250305", "name": "web_search"}
                assert "get_weather" in await ask.messages(user("hi"), tools=[hosted, TOOLS[0]])
        assert ["web_search_20250305" in line for line in noted(caplog)] == [True]


async def test_names_of_anthropics_models_mean_the_only_model_on_its_api(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, HELLO) as bench:
        body = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": [user("hi")]}
        answer = await bench.http.post("/v1/messages?beta=true", json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, "claude-opus-4-8")
        assert (await bench.http.post("/v1/messages/count_tokens", json=body)).status_code == 200
        assert (await bench.http.post("/v1/messages", json={**body, "model": "gpt"})).status_code == 404
        error_of(await bench.chat(model="claude-opus-4-8"), 404)


# ---- what is refused -----------------------------------------------------------------------------------------------


async def test_no_refusal_names_a_class_of_this_program(tmp_path: Path) -> None:
    careless = (
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% if m.content %}"
        "{% if m.content[0].text == 'boom' %}{{ 'x' + m.content }}{% elif m.content[0].text == 'lost' %}"
        "{{ m.content.nothing.at_all }}{% elif m.content[0].text == 'more' %}{{ messages.append(1) }}"
        "{% elif m.content[0].text == 'all' %}{{ messages.nothing.at_all }}{% endif %}{% endif %}{% endfor %}"
    )
    async with asking(tmp_path, careless) as ask:
        for text in ("boom", "lost", "more", "all"):
            error = error_of(await ask.bench.chat(messages=[user(text)]), 400)
            assert error["param"] == "messages"
            assert own_class_in(error["message"]) is None, error["message"]
            assert "smg_trio" not in error["message"]
