"""Tool calls through HTTP: the same streamed and whole, however the engine's ticks are cut, in every API."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.script import HANG, Ending

from .answers import CITY, T0, TOOLS, T, ask, ask_choices, ask_swept, encoded, ok, spelt, sweep, ticks
from .harness import (
    HI,
    MODEL,
    PATIENCE_S,
    TOKENSPEED,
    VLLM,
    Bench,
    chat_body,
    connect,
    error_of,
    hang_up,
    open_gateway,
    post,
    read_until,
)

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
    options: dict[str, Any] = {"special_tokens": markers, "tool_call_parser": family, "engine": {"step_time_s": 5e-4}}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        said = await ask_swept(bench, text, sweep(bench, text), tools=TOOLS)
        assert (said.reasoning, said.content, said.finish) == ("", prose, "tool_calls")
        assert [(name, json.loads(arguments)) for name, arguments in said.calls] == [
            ("get_weather", {"city": CITY, "days": 2}),
            ("ping", {}),
        ]
        assert all(mark in said.calls[0][1] for mark in CITY), "characters as the model wrote them"
        await bench.wait_idle()


TAILS = ("4", "true", "null", '[1, {"a": 2}]', '{"a": {"b": "x"}}', '"\\\\"', '"}"', '"</tool_call>"', "-1.5e3")


async def test_the_last_brace_is_never_lost(tmp_path: Path) -> None:
    begun = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo","days":'
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for tail in TAILS:
            said = await ask_swept(bench, f"{begun}{tail}}}}}\n</tool_call>", tools=TOOLS)
            assert said.shown == ("", "", [("get_weather", f'{{"city":"Oslo","days":{tail}}}')], "tool_calls")


async def test_llama_calls_are_parted_in_many_ways(tmp_path: Path) -> None:
    calls = ['{"name":"get_weather","parameters":{"city":"Oslo"}}', '{"name":"ping","parameters":{}}']
    async with open_gateway(tmp_path, ANY, tool_call_parser="llama3_json") as bench:
        for separator in (";", "; ", ";\n", "\n"):
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
    long = "fifty characters of text that are one token here, "
    async with open_gateway(tmp_path, ANY, words=f'E["{long}"]', tool_call_parser="qwen3_coder") as bench:
        for days, read in (("3", 3), ("2026-01-15", "2026-01-15")):
            said = await ask_swept(bench, xml(("city", 'Os<lo>\n"x"'), ("days", days)), tools=TOOLS)
            assert json.loads(said.calls[0][1]) == {"city": 'Os<lo>\n"x"', "days": read}
        begun, ended = xml(("city", "X")).split("X")
        ids = [*encoded(bench, begun), *[bench.model.id_of(long)] * 1000, *encoded(bench, ended)]
        bench.say(ticks(bench, ids, 10))
        assert json.loads((await ask(bench, tools=TOOLS)).calls[0][1]) == {"city": long * 1000}


BEGUN = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo and',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo and",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo and',
    "pythonic": '[get_weather(city="Oslo and',
    "passthrough": '{"city": "Oslo and',
}


@pytest.mark.parametrize("family", BEGUN)
async def test_arguments_come_while_the_model_still_writes_them(tmp_path: Path, family: str) -> None:
    options: dict[str, Any] = {"special_tokens": KIMI_MARKERS, "tool_call_parser": family}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        bench.say(spelt(bench, BEGUN[family], ending=HANG))
        choice = NAMED if family == "passthrough" else "auto"
        stream = await connect(bench.port)
        await stream.send_all(post("/v1/chat/completions", chat_body(tools=TOOLS, tool_choice=choice, stream=True)))
        text = (await read_until(stream, b" and")).decode()
        assert '"name":"get_weather"' in text
        assert "".join(re.findall(r'"arguments":"((?:[^"\\]|\\.)*)"', text)).endswith("Oslo and")
        await hang_up(stream, reset=False)
        await bench.wait_idle()


async def test_kimi_keeps_the_model_s_own_ids_and_no_marker_shows(tmp_path: Path) -> None:
    text = "ok" + kimi(("functions.get_weather:3", '{"city":"Oslo","days":2}'), ("functions.ping:4", "{}")) + "\n"
    options: dict[str, Any] = {"special_tokens": KIMI_MARKERS, "tool_call_parser": "kimi_k2"}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        for hide in (True, False):
            said = await ask_swept(bench, text, tools=TOOLS, skip_special_tokens=hide)
            calls = [("get_weather", '{"city":"Oslo","days":2}'), ("ping", "{}")]
            assert said.shown == ("", "ok", calls, "tool_calls")
            assert said.ids == ["functions.get_weather:3", "functions.ping:4"]
        said = await ask_swept(bench, text, tools=TOOLS, tool_choice="none", skip_special_tokens=False)
        assert said.shown == ("", text, [], "stop")


async def test_special_tokens_show_only_if_asked_for_and_markup_never_does(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, special_tokens=("<|note|>",), tool_call_parser="hermes") as bench:
        text = f"a<|note|>b\n{OSLO}"
        calls = [("get_weather", '{"city": "Oslo", "days": 2}')]
        assert (await ask_swept(bench, text, tools=TOOLS)).shown == ("", "ab\n", calls, "tool_calls")
        shown = await ask_swept(bench, text, tools=TOOLS, skip_special_tokens=False)
        assert shown.shown == ("", "a<|note|>b\n", calls, "tool_calls")


HARMONY_CALL = '<|message|>{"city":"Oslo"}<|call|>'


HEADERS = (
    " to=functions.get_weather<|channel|>commentary json",
    "<|channel|>commentary to=functions.get_weather json",
)


async def test_harmony_channels_are_thought_call_and_content(tmp_path: Path) -> None:
    thought = "<|channel|>analysis<|message|>t<|end|>"
    options: dict[str, Any] = {"tool_call_parser": "gpt-oss", "reasoning_parser": "gpt-oss"}
    async with open_gateway(tmp_path, ANY, special_tokens=HARMONY_MARKERS, **options) as bench:
        for header in HEADERS:
            said = await ask_swept(bench, f"{thought}<|start|>assistant{header}{HARMONY_CALL}", tools=TOOLS)
            assert said.shown == ("t", "", [("get_weather", '{"city":"Oslo"}')], "tool_calls")
        final = f"{thought}<|start|>assistant<|channel|>final<|message|>Hello"
        for tools in ({"tools": TOOLS}, {}):
            assert (await ask_swept(bench, final, **tools)).shown == ("t", "Hello", [], "stop")


CHOICES: dict[str, Any] = {"auto": "auto", "required": "required", "named": NAMED}


CUT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os'
CUTS = {
    "hermes": dict.fromkeys(CHOICES, CUT),
    "passthrough": {"required": '[{"name": "get_weather", "parameters": {"city": "Os', "named": '{"city": "Os'},
}


@pytest.mark.parametrize("parser", CUTS)
async def test_a_call_cut_by_length_ends_in_length(tmp_path: Path, parser: str) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser=parser) as bench:
        for choice, text in CUTS[parser].items():
            scripts = [spelt(bench, text, size, ending=LENGTH) for size in (1, 3, 0)]
            said = await ask_swept(bench, text, scripts, tools=TOOLS, tool_choice=CHOICES[choice])
            assert said.shown == ("", "", [("get_weather", '{"city": "Os')], "length")


async def test_forced_calls_have_one_shape_in_both_modes(tmp_path: Path) -> None:
    said = {
        "required": ('[{"name": "get_weather", "parameters": {"city": "Oslo"}}]', "tool_calls"),
        "named": ('{"city": "Oslo"}', "stop"),
    }
    async with open_gateway(tmp_path, ANY, tool_call_parser="passthrough") as bench:
        for choice, (text, finish) in said.items():
            for thought in ("", "<think>\nhm\n</think>\n\n"):
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
        said = await ask_choices(bench, 3, seed=1, tools=TOOLS)
        assert [one.shown for one in said] == alone
        assert len({call_id for one in said for call_id in one.ids}) == 2


async def test_pythonic_values_become_json(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="pythonic") as bench:
        for text, arguments in (
            ('city="Oslo", days=2', {"city": "Oslo", "days": 2}),
            ('xs=[[1,2],[3]], d={"a": None, "b": True}', {"xs": [[1, 2], [3]], "d": {"a": None, "b": True}}),
            (f"city='it\\'s\\n{CITY}'", {"city": f"it's\n{CITY}"}),
        ):
            said = await ask_swept(bench, f"[get_weather({text})]", tools=TOOLS)
            assert [(name, json.loads(shown)) for name, shown in said.calls] == [("get_weather", arguments)]
            assert (said.content, said.finish) == ("", "tool_calls")
        broken = await ask_swept(bench, "[1, 2, get_weather(", tools=TOOLS)
        assert broken.shown == ("", "[1, 2, get_weather(", [], "stop")


async def test_a_stop_string_inside_a_call_ends_it_there(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for size in (1, 3, 0):
            bench.say(spelt(bench, OSLO, size, ending=HANG))
            said = await ask(bench, tools=TOOLS, stop=["days"])
            assert (said.content, said.stop_reason) == ("", "days")
            assert said.calls == [("get_weather", '{"city": "Oslo", "')]
            assert said.finish == "stop", "it must not look like a call that may be run"
        bench.say(spelt(bench, f"{OSLO} and", ending=HANG))
        said = await ask(bench, tools=TOOLS, stop=["</tool_call>"])
        assert (said.finish, said.stop_reason) == ("tool_calls", "</tool_call>")
        await bench.wait_idle()
        await bench.engine.wait_until(lambda: len(bench.engine.aborts) == 8)


async def test_usage_counts_every_token_of_a_call(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        ids = encoded(bench, OSLO)
        bench.say(spelt(bench, OSLO, 3))
        said = await ask(bench, tools=[T])
        assert said.usage["completion_tokens"] == len(ids) + 1
        assert said.usage["prompt_tokens"] == len(bench.engine.received[-1].prompt_token_ids)


@pytest.mark.parametrize("parser", ["pythonic", "llama4_pythonic"])
async def test_llama_4s_frame_around_a_call_never_shows(tmp_path: Path, parser: str) -> None:
    markers = ("<|python_start|>", "<|python_end|>")
    call = '<|python_start|>[get_weather(city="Oslo", days=2)]<|python_end|>'
    async with open_gateway(tmp_path, ANY, tool_call_parser=parser, special_tokens=markers) as bench:
        for before, after in (("", ""), ("I look.", ""), ("", "There."), ("I look.", "There.")):
            said = await ask_swept(bench, before + call + after, tools=TOOLS)
            assert said.content == before + after
            assert said.calls == [("get_weather", '{"city": "Oslo", "days": 2}')]
