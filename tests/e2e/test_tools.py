"""Tool calls through HTTP: the same streamed and whole, however the engine's ticks are cut, in every API."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.script import Ending

from .answers import CITY, T0, TOOLS, T, ask, ask_choices, ask_swept, by_character, ok, spelt, sweep
from .harness import HI, MODEL, PATIENCE_S, TOKENSPEED, VLLM, Bench, error_of, open_gateway

ANY = 'E["x"]'
LENGTH = Ending(FinishReason.LENGTH)
KIMI_MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
HARMONY_MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def hermes(arguments: str, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(*parameters: tuple[str, str], name: str = "get_weather") -> str:
    shown = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{shown}</function>\n</tool_call>"


def kimi(*calls: tuple[str, str]) -> str:
    shown = "".join(
        f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for name, arguments in calls
    )
    return f"<|tool_calls_section_begin|>{shown}<|tool_calls_section_end|>"


OSLO = hermes('{"city": "Oslo", "days": 2}')


async def chunks_of(bench: Bench, **fields: Any) -> list[ChatCompletionChunk]:
    async with bench.openai() as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, timeout=PATIENCE_S, **fields
        )
        return [chunk async for chunk in stream]


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_the_official_client_reads_the_same_calls_whole_and_streamed(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, ANY, protocol=protocol) as bench:
        bench.say(spelt(bench, f"I look.\n{OSLO}\n{hermes('{}', 'ping')}"))
        async with bench.openai() as client:
            whole = await client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
        [choice] = whole.choices
        assert (choice.message.content, choice.finish_reason) == ("I look.\n", "tool_calls")
        calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("get_weather", {"city": "Oslo", "days": 2}),
            ("ping", {}),
        ]
        streamed = await chunks_of(bench, tools=TOOLS)
        deltas = [chunk.choices[0].delta for chunk in streamed]
        pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
        arguments = ["", ""]
        for piece in pieces:
            assert piece.function is not None
            arguments[piece.index] += piece.function.arguments or ""
        assert arguments == [call.function.arguments for call in calls]
        assert len([piece for piece in pieces if piece.index == 0]) > 4, "arguments come as they are made"
        ids = [piece.id for piece in pieces if piece.id] + [call.id for call in calls]
        assert len(set(ids)) == 4
        assert all(re.fullmatch("call_[0-9a-f]{24}", call_id) for call_id in ids)
        assert "".join(delta.content or "" for delta in deltas) == "I look.\n"
        assert [chunk.choices[0].finish_reason for chunk in streamed][-2:] == [None, "tool_calls"]
        await bench.wait_idle()


async def test_a_call_alone_leaves_no_content(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        bench.say(spelt(bench, OSLO))
        message = ok(await bench.chat(tools=TOOLS)).json()["choices"][0]["message"]
        assert message["content"] is None
        bench.say(spelt(bench, "no call"))
        message = ok(await bench.chat(tools=TOOLS)).json()["choices"][0]["message"]
        assert "tool_calls" not in message
        assert (await ask(bench, tools=TOOLS)).shown == ("", "no call", [], "stop")


SWEPT = {
    "hermes": ("ok\n", hermes(f'{{"city": "{CITY}", "days": 2}}'), hermes("{}", "ping"), ()),
    "qwen3_coder": ("ok\n", xml(("city", CITY), ("days", "2")), xml(name="ping"), ()),
    "kimi_k2": (
        "ok",
        kimi(("functions.get_weather:0", f'{{"city": "{CITY}", "days": 2}}'), ("functions.ping:1", "{}")),
        "",
        KIMI_MARKERS,
    ),
}


@pytest.mark.parametrize("family", SWEPT)
async def test_however_the_ticks_are_cut_the_answer_is_the_same(tmp_path: Path, family: str) -> None:
    prose, first, second, markers = SWEPT[family]
    text = f"{prose}{first}\n{second}" if second else prose + first
    async with open_gateway(tmp_path, ANY, special_tokens=markers, tool_call_parser=family) as bench:
        said = await ask_swept(bench, text, sweep(bench, text), tools=TOOLS)
        assert (said.reasoning, said.content, said.finish) == ("", prose, "tool_calls")
        assert [(name, json.loads(arguments)) for name, arguments in said.calls] == [
            ("get_weather", {"city": CITY, "days": 2}),
            ("ping", {}),
        ]
        assert all(mark in said.calls[0][1] for mark in CITY), "characters as the model wrote them"
        await bench.wait_idle()


@pytest.mark.parametrize(
    "tail", ["4", "true", "null", '[1, {"a": 2}]', '{"a": {"b": "x"}}', '"\\\\"', '"}"', '"</tool_call>"', "-1.5e3"]
)
async def test_the_last_brace_is_never_lost(tmp_path: Path, tail: str) -> None:
    begun = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo","days":'
    ended = tail + "}}\n</tool_call>"
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        said = await ask_swept(bench, begun + ended, tools=TOOLS)
        assert said.shown == ("", "", [("get_weather", f'{{"city":"Oslo","days":{tail}}}')], "tool_calls")


@pytest.mark.parametrize("separator", [";", "; ", ";\n", "\n"])
async def test_llama_calls_are_parted_in_many_ways(tmp_path: Path, separator: str) -> None:
    calls = ['{"name":"get_weather","parameters":{"city":"Oslo"}}', '{"name":"ping","parameters":{}}']
    async with open_gateway(tmp_path, ANY, tool_call_parser="llama3_json") as bench:
        said = await ask_swept(bench, separator.join(calls), tools=TOOLS)
        assert said.shown == ("", "", [("get_weather", '{"city":"Oslo"}'), ("ping", "{}")], "tool_calls")


async def test_json_that_is_no_declared_call_is_text_and_never_lost(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="llama3_json") as bench:
        for text in ('{"answer": 42}', "{", '{"name":"other","parameters":{}}', '{"name": "get_wea'):
            assert (await ask_swept(bench, text, tools=TOOLS)).shown == ("", text, [], "stop")
        called = '{"name":"ping","parameters":{}}'
        said = await ask_swept(bench, f"{called} I used {{it}}", tools=TOOLS)
        assert (said.calls, said.finish, said.content.strip()) == ([("ping", "{}")], "tool_calls", "I used {it}")


async def test_xml_values_keep_their_text_and_get_their_types(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="qwen3_coder") as bench:
        for days, read in (("3", 3), ("2026-01-15", "2026-01-15")):
            said = await ask_swept(bench, xml(("city", 'Os<lo>\n"x"'), ("days", days)), tools=TOOLS)
            assert json.loads(said.calls[0][1]) == {"city": 'Os<lo>\n"x"', "days": read}
        long = "ab " * 4000
        bench.say(spelt(bench, xml(("city", long)), 100))
        said = await ask(bench, tools=TOOLS)
        assert json.loads(said.calls[0][1]) == {"city": long}
        assert said.pieces[0] > 20, "a long value is not held back"


async def test_kimi_keeps_the_model_s_own_ids_and_no_marker_shows(tmp_path: Path) -> None:
    text = "ok" + kimi(("functions.get_weather:3", '{"city":"Oslo","days":2}'), ("functions.ping:4", "{}")) + "\n"
    options: dict[str, Any] = {"special_tokens": KIMI_MARKERS, "tool_call_parser": "kimi_k2"}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        for hide in (True, False):
            said = await ask_swept(bench, text, tools=TOOLS, skip_special_tokens=hide)
            calls = [("get_weather", '{"city":"Oslo","days":2}'), ("ping", "{}")]
            assert said.shown == ("", "ok", calls, "tool_calls")
            assert said.ids == ["functions.get_weather:3", "functions.ping:4"]
        plain = await ask_swept(bench, text.removesuffix("\n"), tools=TOOLS, tool_choice="none")
        assert plain.content == text.strip() if plain.content.count("<|") else "ok" in plain.content
        assert not plain.calls


async def test_special_tokens_show_only_if_asked_for_and_markup_never_does(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, special_tokens=("<|note|>",), tool_call_parser="hermes") as bench:
        text = f"a<|note|>b\n{OSLO}"
        calls = [("get_weather", '{"city": "Oslo", "days": 2}')]
        assert (await ask_swept(bench, text, tools=TOOLS)).shown == ("", "ab\n", calls, "tool_calls")
        shown = await ask_swept(bench, text, tools=TOOLS, skip_special_tokens=False)
        assert shown.shown == ("", "a<|note|>b\n", calls, "tool_calls")


HARMONY_CALL = '<|message|>{"city":"Oslo"}<|call|>'


@pytest.mark.parametrize(
    "header",
    ["to=functions.get_weather<|channel|>commentary json", "<|channel|>commentary to=functions.get_weather json"],
)
async def test_harmony_channels_are_thought_call_and_content(tmp_path: Path, header: str) -> None:
    start = "<|start|>assistant" + ("" if header.startswith("<") else " ")
    text = f"<|channel|>analysis<|message|>t<|end|>{start}{header}{HARMONY_CALL}"
    options: dict[str, Any] = {"tool_call_parser": "gpt-oss", "reasoning_parser": "gpt-oss"}
    async with open_gateway(tmp_path, ANY, special_tokens=HARMONY_MARKERS, **options) as bench:
        said = await ask_swept(bench, text, tools=TOOLS)
        assert said.shown == ("t", "", [("get_weather", '{"city":"Oslo"}')], "tool_calls")
        final = text.partition("<|start|>")[0] + "<|start|>assistant<|channel|>final<|message|>Hello"
        for tools in ({"tools": TOOLS}, {}):
            assert (await ask_swept(bench, final, **tools)).shown == ("t", "Hello", [], "stop")


CHOICES: dict[str, Any] = {"auto": "auto", "required": "required", "named": NAMED}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("parser", ["hermes", "passthrough"])
async def test_a_call_cut_by_length_ends_in_length(tmp_path: Path, choice: str, parser: str) -> None:
    if parser == "hermes":
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os'
    else:
        text = {"auto": "plain", "required": '[{"name": "get_weather", "parameters": {"city": "Os'}.get(
            choice, '{"city": "Os'
        )
    async with open_gateway(tmp_path, ANY, tool_call_parser=parser) as bench:
        scripts = [spelt(bench, text, size, ending=LENGTH) for size in (1, 3, 0)]
        said = await ask_swept(bench, text, scripts, tools=TOOLS, tool_choice=CHOICES[choice])
        if text == "plain":
            assert said.shown == ("", "plain", [], "length")
        else:
            assert said.shown == ("", "", [("get_weather", '{"city": "Os')], "length")


@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
async def test_forced_calls_have_one_shape_in_both_modes(tmp_path: Path, thought: str) -> None:
    said = {
        "required": ('[{"name": "get_weather", "parameters": {"city": "Oslo"}}]', "tool_calls"),
        "named": ('{"city": "Oslo"}', "stop"),
    }
    async with open_gateway(tmp_path, ANY, tool_call_parser="passthrough") as bench:
        for choice, (text, finish) in said.items():
            answer = await ask_swept(bench, thought + text, tools=TOOLS, tool_choice=CHOICES[choice])
            assert answer.shown[1:] == ("", [("get_weather", '{"city": "Oslo"}')], finish)
            assert answer.reasoning.strip() == ("hm" if thought else "")


async def test_forced_calls_come_in_the_family_s_own_form(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for choice, finish in (("required", "tool_calls"), ("named", "stop")):
            answer = await ask_swept(bench, OSLO, tools=TOOLS, tool_choice=CHOICES[choice])
            assert answer.shown == ("", "", [("get_weather", '{"city": "Oslo", "days": 2}')], finish)


async def test_choice_none_leaves_markup_as_text(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for fields in ({"tools": TOOLS, "tool_choice": "none"}, {}):
            assert (await ask_swept(bench, OSLO, **fields)).shown == ("", OSLO, [], "stop")


async def test_choices_that_cannot_be_are_refused_before_the_engine(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        other = {"type": "function", "function": {"name": "other"}}
        for fields in (
            {"tools": TOOLS, "tool_choice": other},
            {"tool_choice": "required"},
            {"tool_choice": NAMED},
            {"tools": TOOLS, "tool_choice": "sometimes"},
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "tools": [other]}},
        ):
            for stream in (False, True):
                assert error_of(await bench.chat(**fields, stream=stream), 400)["param"].startswith("tool_choice")
        assert error_of(await bench.chat(tools=[]), 400)["param"] == "tools"
        assert bench.engine.received == []


async def test_only_allowed_tools_are_calls(tmp_path: Path) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [T0]}}
    async with open_gateway(tmp_path, ANY, tool_call_parser="llama3_json") as bench:
        called, other = '{"name":"ping","parameters":{}}', '{"name":"get_weather","parameters":{"city":"Oslo"}}'
        said = await ask_swept(bench, called, tools=TOOLS, tool_choice=allowed)
        assert said.shown == ("", "", [("ping", "{}")], "tool_calls")
        said = await ask_swept(bench, other, tools=TOOLS, tool_choice=allowed)
        assert said.shown == ("", other, [], "stop")
        prompt = bench.gateway.catalog.find("").text.tokenizer.decode(bench.engine.received[-1].prompt_token_ids)
        assert "get_weather" in prompt, "the prompt keeps all tools, so that the prefix cache holds"


async def test_without_parallel_calls_only_the_first_is_told(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        text = f"{hermes('{}', 'ping')}\n{OSLO}\n{OSLO}"
        said = await ask_swept(bench, text, tools=TOOLS, parallel_tool_calls=False)
        assert said.shown == ("", "", [("ping", "{}")], "tool_calls")
        said = await ask_swept(bench, text, tools=TOOLS)
        assert [name for name, _ in said.calls] == ["ping", "get_weather", "get_weather"]


async def test_a_marked_call_of_an_unknown_tool_is_passed_on(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        said = await ask_swept(bench, hermes('{"a": 1}', "other"), tools=TOOLS)
        assert said.shown == ("", "", [("other", '{"a": 1}')], "tool_calls")


async def test_prose_about_markup_and_broken_calls_stay_text(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for text in ("use <tool_call> tags", "a < b <tool", "<tool_call>\nnot json\n</tool_call>", "<tool_call>"):
            said = await ask_swept(bench, text, tools=TOOLS)
            assert (said.calls, said.finish) == ([], "stop")
            assert said.content == text


async def test_choices_have_a_parser_each(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes", engine={"step_time_s": 0.001}) as bench:
        texts = [OSLO, "only text, nothing else", "b\n" + hermes('{"city": "Bergen"}')]
        scripts = [spelt(bench, text, 1) for text in texts]
        alone = []
        for script in scripts:
            bench.say(script)
            alone.append((await ask(bench, tools=TOOLS)).shown)
        assert [shown[3] for shown in alone] == ["tool_calls", "stop", "tool_calls"]
        bench.say(lambda request: scripts[(request.seed or 0) - 1])
        said = await ask_choices(bench, 3, n=3, seed=1, tools=TOOLS)
        assert [one.shown for one in said] == alone
        assert len({call_id for one in said for call_id in one.ids}) == 2


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('[get_weather(city="Oslo", days=2)]', {"city": "Oslo", "days": 2}),
        ('[get_weather(xs=[[1,2],[3]], d={"a": None, "b": True})]', {"xs": [[1, 2], [3]], "d": {"a": None, "b": True}}),
        (f"[get_weather(city='it\\'s\\n{CITY}')]", {"city": f"it's\n{CITY}"}),
    ],
)
async def test_pythonic_values_become_json(tmp_path: Path, text: str, arguments: Any) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="pythonic") as bench:
        said = await ask_swept(bench, text, tools=TOOLS)
        assert [(name, json.loads(shown)) for name, shown in said.calls] == [("get_weather", arguments)]
        assert (said.content, said.finish) == ("", "tool_calls")
        broken = await ask_swept(bench, "[1, 2, get_weather(", tools=TOOLS)
        assert broken.shown == ("", "[1, 2, get_weather(", [], "stop")


async def test_a_stop_string_inside_a_call_ends_it_there(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for script in (by_character(bench, OSLO), spelt(bench, OSLO, 1)):
            bench.say(script)
            said = await ask(bench, tools=TOOLS, stop=["days"])
            assert (said.content, said.stop_reason) == ("", "days")
            assert said.calls == [("get_weather", '{"city": "Oslo", "')]
            assert said.finish == "tool_calls"
        await bench.wait_idle()
        assert len(bench.engine.aborts) == 4


async def test_usage_counts_every_token_of_a_call(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        ids = bench.gateway.catalog.find("").text.tokenizer.encode(OSLO, add_special_tokens=False)
        bench.say(spelt(bench, OSLO, 3))
        said = await ask(bench, tools=[T])
        assert said.usage["completion_tokens"] == len(ids) + 1
        assert said.usage["prompt_tokens"] == len(bench.engine.received[-1].prompt_token_ids)
