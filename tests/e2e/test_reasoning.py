"""Thoughts through HTTP: split off whole and streamed alike, replayed, counted, hidden, with calls and stops."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anthropic
import pytest

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.script import HANG, Ending

from .answers import TOOLS, T, ask, ask_choices, ask_swept, encoded, ok, spelt, sweep
from .harness import HI, MODEL, PATIENCE_S, TOKENSPEED, VLLM, Bench, open_gateway

ANY = 'E["x"]'
LENGTH = Ending(FinishReason.LENGTH)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PING = '<tool_call>\n{"name":"ping","arguments":{}}\n</tool_call>'
THOUGHT_AND_CALLS = f"<think>\nI look.\n</think>\n\nHere:\n{CALL}\n{PING}"
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}\
{% for call in message.tool_calls or [] %}[{{ call.function.name }}:\
{% for value in call.function.arguments.values() %}{{ value }}{% endfor %}]{% endfor %}\
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""
EFFORT_TEMPLATE = (
    "{{ messages[0].content }}|{{ reasoning_effort | default('none given') }}|{{ colour | default('') }}:\n"
)


def template(tmp_path: Path, text: str = TEMPLATE) -> str:
    path = tmp_path / "template.jinja"
    path.write_text(text)
    return str(path)


def prompt(bench: Bench) -> str:
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    return tokenizer.decode(bench.engine.received[-1].prompt_token_ids, skip_special_tokens=False)


# ---- the thought and what follows it -----------------------------------------------------------------------


async def test_the_end_of_the_thought_and_a_call_may_come_in_one_tick(tmp_path: Path) -> None:
    options = {"chat_template": template(tmp_path), "tool_call_parser": "hermes"}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        text = f"I will use Write.</think>\n{PING}"
        said = await ask_swept(bench, text, sweep(bench, text), tools=TOOLS)
        assert said.shown == ("I will use Write.", "", [("ping", "{}")], "tool_calls")


async def test_a_call_inside_an_unended_thought_is_a_call(tmp_path: Path) -> None:
    options = {"chat_template": template(tmp_path), "tool_call_parser": "hermes"}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        said = await ask_swept(bench, f"I will use Write.\n{PING}", tools=TOOLS)
        assert (said.reasoning.strip(), said.content) == ("I will use Write.", "")
        assert (said.calls, said.finish) == ([("ping", "{}")], "tool_calls")


async def test_the_prompt_s_tail_says_whether_the_thought_is_open(tmp_path: Path) -> None:
    history = [
        *HI,
        {"role": "assistant", "content": "<think>old</think>a"},
        {"role": "user", "content": "what of </think> and <think>?"},
    ]
    off: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
    async with open_gateway(tmp_path, ANY, chat_template=template(tmp_path)) as bench:
        for messages in (HI, history):
            said = await ask_swept(bench, "hm\n</think>\n\n42", messages=messages)
            assert (said.reasoning.strip(), said.content.strip(), said.finish) == ("hm", "42", "stop")
            assert prompt(bench).endswith("<think>\n")
            assert (await ask_swept(bench, "42", messages=messages, **off)).shown == ("", "42", [], "stop")
            assert prompt(bench).endswith("</think>\n\n")
        said = await ask_swept(bench, "<think>\nhm</think>42")
        assert (said.reasoning.strip(), said.content) == ("hm", "42")


async def test_text_before_the_thought_has_one_answer(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        for before, content in (("\n", "b"), ("Sure.", "Sure.b"), ("", "b")):
            text = f"{before}<think>a</think>b"
            assert (await ask_swept(bench, text, sweep(bench, text))).shown == ("a", content, [], "stop")


async def test_later_tags_are_text(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        text = "<think>a</think>use <think> and </think>"
        assert (await ask_swept(bench, text)).shown == ("a", "use <think> and </think>", [], "stop")


async def test_a_cut_thought_ends_in_length_with_no_content(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        scripts = [spelt(bench, "<think>so far", size, ending=LENGTH) for size in (1, 2, 0)]
        said = await ask_swept(bench, "", scripts)
        assert said.shown == ("so far", "", [], "length")
        message = ok(await bench.chat()).json()["choices"][0]["message"]
        assert message["content"] is None


async def test_a_stop_string_counts_in_thoughts_too_and_leaves_no_shards(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        text = "<think>so Question: 1</think>42"
        scripts = [spelt(bench, text, size, ending=HANG) for size in (1, 2, 0)]
        said = await ask_swept(bench, text, scripts, stop=["Question:"])
        assert said.shown == ("so ", "", [], "stop")
        assert said.stop_reason == "Question:"
        for stop in (["</think>x"], ["/think>4x"], ["ABC"]):
            said = await ask_swept(bench, text, stop=stop)
            assert said.shown == ("so Question: 1", "42", [], "stop")
        await bench.wait_idle()


async def test_every_choice_has_a_thought_of_its_own(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, engine={"step_time_s": 0.001}) as bench:
        scripts = [spelt(bench, text) for text in ("<think>a b c</think>d", "e", f"<think>f</think>{PING}")]
        bench.say(lambda request: scripts[(request.seed or 0) - 1])
        said = await ask_choices(bench, 3, seed=1, tools=TOOLS)
        assert [one.shown for one in said] == [
            ("a b c", "d", [], "stop"),
            ("", "e", [], "stop"),
            ("f", "", [("ping", "{}")], "tool_calls"),
        ]


# ---- what clients ask for ----------------------------------------------------------------------------------


async def test_usage_counts_the_tokens_of_the_thought(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        for per_tick in (1, 3, 0):
            bench.say(spelt(bench, "<think>one two three</think>four five six seven eight nine", per_tick))
            usage = (await ask(bench)).usage
            counted = usage["completion_tokens_details"]["reasoning_tokens"]
            assert counted == len(encoded(bench, "one two three</think>")), "the opening marker makes no thought"
            assert usage["completion_tokens"] > counted
            bench.say(spelt(bench, "no thought", per_tick))
            details = (await ask(bench)).usage.get("completion_tokens_details") or {}
            assert not details.get("reasoning_tokens")


async def test_thoughts_can_be_hidden_or_left_in_the_content(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        text = f"<think>hm</think>ok{CALL}"
        calls = [("get_weather", '{"city": "Oslo"}')]
        hidden = await ask_swept(bench, text, tools=TOOLS, include_reasoning=False)
        assert hidden.shown == ("", "ok", calls, "tool_calls")
        body = ok(await bench.chat(include_reasoning=False, return_token_ids=True, logprobs=True)).json()
        assert (body["choices"][0]["token_ids"], body["choices"][0]["logprobs"]) == (None, None)
        left = await ask_swept(bench, text, tools=TOOLS, separate_reasoning=False)
        assert left.shown == ("", "<think>hm</think>ok", calls, "tool_calls")


async def test_effort_and_arguments_reach_the_template(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, chat_template=template(tmp_path, EFFORT_TEMPLATE)) as bench:
        ok(await bench.chat())
        assert prompt(bench) == "hi|none given|:"
        ok(await bench.chat(reasoning_effort="high", chat_template_kwargs={"colour": "red"}))
        assert prompt(bench) == "hi|high|red:"
        ok(await bench.chat(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"}))
        assert prompt(bench) == "hi|low|:"


async def test_effort_turns_the_template_s_thinking_switch(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, chat_template=template(tmp_path)) as bench:
        for effort, opened in (("none", False), ("minimal", False), ("low", True), ("high", True)):
            ok(await bench.chat(reasoning_effort=effort))
            assert prompt(bench).endswith("</think>\n\n") is not opened, effort
        ok(await bench.chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}))
        assert prompt(bench).endswith("<think>\n")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_history_brings_thoughts_and_calls_back_to_the_template(tmp_path: Path, name: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, name: "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    async with open_gateway(tmp_path, ANY, chat_template=template(tmp_path)) as bench:
        ok(await bench.chat(messages=messages, tools=TOOLS))
        assert "assistant\n<think>I look.</think>[get_weather:Oslo]<|im_end|>\n<|im_start|>tool\nrain" in prompt(bench)
        for broken in ('{"city": "Os', "", "[1]", None):
            call["function"]["arguments"] = broken  # type: ignore[index]
            ok(await bench.chat(messages=messages, tools=TOOLS))


# ---- the other two APIs ------------------------------------------------------------------------------------


def claude(bench: Bench) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=bench.base_url,
        api_key="none",
        max_retries=0,
        timeout=PATIENCE_S,
    )


def blocks(message: Any) -> list[tuple[Any, ...]]:
    shown: list[tuple[Any, ...]] = []
    for block in message.content:
        if block.type == "thinking":
            assert block.signature
            shown.append(("thinking", block.thinking))
        elif block.type == "tool_use":
            assert block.id
            shown.append(("tool_use", block.name, block.input))
        else:
            shown.append((block.type, block.text))
    return shown


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_messages_show_thinking_and_tool_use_blocks(tmp_path: Path, protocol: Any) -> None:
    schema = T["function"]["parameters"]
    tools: Any = [{"name": "get_weather", "input_schema": schema}, {"name": "ping", "input_schema": {"type": "object"}}]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": HI, "tools": tools}
    async with open_gateway(tmp_path, ANY, protocol=protocol) as bench, claude(bench) as client:
        for per_tick in (1, 4, 0):
            bench.say(spelt(bench, THOUGHT_AND_CALLS, per_tick))
            whole = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
            for message in (whole, streamed):
                (_, thought), (_, text), *calls = blocks(message)
                assert (thought.strip(), text.strip()) == ("I look.", "Here:")
                assert calls == [("tool_use", "get_weather", {"city": "Oslo"}), ("tool_use", "ping", {})]
                assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)
            assert blocks(whole) == blocks(streamed)
            assert (
                whole.usage.output_tokens == streamed.usage.output_tokens == len(encoded(bench, THOUGHT_AND_CALLS)) + 1
            )
        bench.say(spelt(bench, CALL[:-25], ending=LENGTH))
        cut = await client.messages.create(**asked)
        assert (cut.stop_reason, [block.type for block in cut.content]) == ("max_tokens", ["tool_use"])
        bench.say(spelt(bench, THOUGHT_AND_CALLS))
        alone: Any = {"type": "auto", "disable_parallel_tool_use": True}
        assert len(blocks(await client.messages.create(**asked, tool_choice=alone))) == 3
        replay = [*HI, {"role": "assistant", "content": [block.model_dump() for block in whole.content]}]
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
            for block in whole.content
            if block.type == "tool_use"
        ]
        again = asked | {"messages": [*replay, {"role": "user", "content": results}]}
        await client.messages.create(**again)
        assert re.search(r"assistant\n<think>\s+I look\.\s+</think>", prompt(bench))
        assert prompt(bench).count('<tool_call>\n{"name": ') == 2


def items(response: Any) -> list[tuple[str, ...]]:
    shown: list[tuple[str, ...]] = []
    for item in response.output:
        if item.type == "function_call":
            assert item.call_id
            shown.append((item.type, item.name, item.arguments))
        else:
            shown.append((item.type, "".join(part.text for part in item.content or ())))
    return shown


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_responses_show_reasoning_and_function_call_items(tmp_path: Path, protocol: Any) -> None:
    tools: Any = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    asked: dict[str, Any] = {"model": MODEL, "input": "hi", "tools": tools}
    async with open_gateway(tmp_path, ANY, protocol=protocol) as bench, bench.openai() as client:
        for per_tick in (1, 4, 0):
            bench.say(spelt(bench, THOUGHT_AND_CALLS, per_tick))
            whole = await client.responses.create(**asked)
            async with client.responses.stream(**asked) as stream:
                streamed = await stream.get_final_response()
            (kind, thought), (_, text), *calls = items(whole)
            assert (kind, thought.strip(), text.strip()) == ("reasoning", "I look.", "Here:")
            assert calls == [("function_call", "get_weather", '{"city": "Oslo"}'), ("function_call", "ping", "{}")]
            assert items(streamed) == items(whole)
            assert whole.status == streamed.status == "completed"
            assert whole.usage is not None
            assert whole.usage.output_tokens_details.reasoning_tokens > 0
            assert streamed.usage == whole.usage
        for ending, stop, status in ((LENGTH, None, "incomplete"), (HANG, ["city"], "completed")):
            bench.say(spelt(bench, CALL[:-20], 3, ending=ending))
            cut = await client.responses.create(**asked, extra_body={"stop": stop})
            assert (cut.status, [item.status for item in cut.output]) == (status, ["incomplete"])
        bench.say(spelt(bench, THOUGHT_AND_CALLS))
        alone = await client.responses.create(**asked, parallel_tool_calls=False)
        assert [item[0] for item in items(alone)] == ["reasoning", "message", "function_call"]
        outputs: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
            for item in whole.output
            if item.type == "function_call"
        ]
        await client.responses.create(**asked | {"input": outputs}, previous_response_id=whole.id)
        assert re.search(r"assistant\n<think>\s+I look\.\s+</think>", prompt(bench))
        assert prompt(bench).count('<tool_call>\n{"name": ') == 2
