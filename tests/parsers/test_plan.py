"""One decision per request: which parser, which constraint, which tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api.openai.chat.tools import ToolChoice, parse_tool_choice, parse_tools
from smg_trio.core.errors import ConfigError
from smg_trio.core.requests import StructuredOutput
from smg_trio.parsers.plan import AnswerPlan, plan_answer
from smg_trio.parsers.registry import tool_parser_names
from tests.parsers.sweep import Folded, run, sweep

TOOLS = parse_tools(
    [
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "ping"}},
    ]
)
AUTO = ToolChoice("auto")
REQUIRED = ToolChoice("required")
NAMED = ToolChoice("named", "ping")
JSON = StructuredOutput(kind="json_object", value=True)
HERMES_CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


def read(plan: AnswerPlan, text: str) -> Folded:
    assert plan.make_parser is not None
    return sweep(plan.make_parser, text)


def test_a_plain_model_without_tools_needs_nothing() -> None:
    assert plan_answer(model_name="some/unknown") == AnswerPlan()


def test_a_thinking_model_is_split_and_its_prompt_arms_the_parser() -> None:
    opened = plan_answer(model_name="Qwen3-8B", prompt_text="<|im_start|>assistant\n<think>\n")
    assert opened.counts_reasoning
    assert (read(opened, "a</think>b").reasoning, read(opened, "a</think>b").content) == ("a", "b")
    closed = plan_answer(model_name="Qwen3-8B", prompt_text="<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert read(closed, "a").content == "a"


@pytest.mark.parametrize(
    ("prompt", "thinking", "ended"),
    [
        ("x<think>\n", True, False),
        ("<think>\n\n</think>\n\n", False, True),
        ("assistant\n", False, True),
        ("x", None, None),
    ],
)
def test_the_engine_is_told_whether_a_thought_is_open(prompt: str, thinking: bool | None, ended: bool | None) -> None:
    plan = plan_answer(model_name="Qwen3-8B", prompt_text=prompt, thinking=thinking, constraint=JSON)
    assert plan.reasoning_ended is ended
    assert plan.structured_output is JSON
    assert plan_answer(model_name="Qwen3-8B", prompt_text=prompt, thinking=thinking).reasoning_ended is None


def test_thinking_switched_off_outweighs_the_familys_habit() -> None:
    assert read(plan_answer(model_name="MiniMax-M2", prompt_text="x"), "a").reasoning == "a"
    assert read(plan_answer(model_name="MiniMax-M2", prompt_text="x", thinking=False), "a").content == "a"


@pytest.mark.parametrize(
    ("continued", "reasoning", "content"),
    [("<think>I was", "a", ""), ("<think>I was</think>Well", "", "a"), ("Well", "", "a")],
)
def test_a_continued_message_says_where_its_answer_goes_on(continued: str, reasoning: str, content: str) -> None:
    plan = plan_answer(model_name="Qwen3-8B", prompt_text="old</think>" + continued, continued_text=continued)
    got = read(plan, "a")
    assert (got.reasoning, got.content) == (reasoning, content)


def test_json_in_front_of_the_thought_is_the_answer() -> None:
    plan = plan_answer(model_name="Qwen3-8B", prompt_text="<think>\n", constraint=JSON)
    assert read(plan, '{"a": 1}').content == '{"a": 1}'
    assert read(plan, '{it}</think>{"a": 1}').reasoning == "{it}"
    assert read(plan, "[see] x</think>{}").reasoning == "[see] x"
    assert read(plan_answer(model_name="Qwen3-8B", prompt_text="<think>\n"), '{"a": 1}').reasoning == '{"a": 1}'


def test_tools_are_read_with_auto_and_left_alone_with_none() -> None:
    auto = plan_answer(model_name="Qwen3-8B", tools=TOOLS, tool_choice=AUTO)
    assert auto.structured_output is None
    assert auto.tool_parser == "qwen"
    assert read(auto, HERMES_CALL).calls == [("ping", "{}", None)]
    for choice in (ToolChoice("none"), None):
        none = plan_answer(model_name="hermes-2", tools=TOOLS, tool_choice=choice)
        assert none == AnswerPlan()


def test_tools_of_an_unknown_model_stay_text() -> None:
    assert plan_answer(model_name="some/unknown", tools=TOOLS, tool_choice=AUTO).make_parser is None


@pytest.mark.parametrize("name", sorted({*tool_parser_names()} - {"passthrough"}))
@pytest.mark.parametrize("choice", [REQUIRED, NAMED])
def test_forced_tools_are_constrained_for_every_family(name: str, choice: ToolChoice) -> None:
    for tags in (True, False):
        plan = plan_answer(tool_flag=name, tools=TOOLS, tool_choice=choice, structural_tags=tags, constraint=JSON)
        assert plan.structured_output is not None
        assert plan.structured_output.kind == ("structural_tag" if plan.tool_parser else "json")
        assert plan.structured_output is not JSON
        if plan.structured_output.kind == "json" and plan.make_parser is not None:
            text = '[{"name": "ping", "parameters": {}}]' if choice is REQUIRED else "{}"
            assert [call[:2] for call in run(plan.make_parser(), [text]).calls] == [("ping", "{}")]


def test_forced_tools_without_a_family_are_json() -> None:
    required = plan_answer(tools=TOOLS, tool_choice=REQUIRED)
    assert read(required, '[{"name": "ping", "parameters": {}}]').calls == [("ping", "{}", None)]
    assert read(required, "I cannot.").content == "I cannot."
    named = plan_answer(tools=TOOLS, tool_choice=NAMED)
    assert read(named, "{}").calls == [("ping", "{}", None)]


def test_a_thought_before_forced_calls_is_split_off() -> None:
    plan = plan_answer(tools=TOOLS, tool_choice=NAMED, reasoning_flag="qwen3", prompt_text="<think>\n")
    got = read(plan, 'Let me {"x": see}.</think>\n\n{"a": 1}')
    assert (got.reasoning, got.content, got.calls) == ('Let me {"x": see}.', "", [("ping", '{"a": 1}', None)])
    assert read(plan, '{"a": 1}').calls == [("ping", '{"a": 1}', None)]


def test_allowed_tools_limit_what_may_be_called() -> None:
    value = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]}
    plan = plan_answer(tools=TOOLS, tool_choice=parse_tool_choice(value, TOOLS))
    assert read(plan, '[{"name": "get_weather", "parameters": {}}]').calls == []
    assert plan.structured_output is not None
    assert plan.structured_output.value["items"]["properties"]["name"] == {"type": "string", "enum": ["ping"]}


def test_one_call_at_most_leaves_out_the_others() -> None:
    plan = plan_answer(model_name="hermes-3", tools=TOOLS, tool_choice=AUTO, parallel_tool_calls=False)
    got = read(plan, HERMES_CALL + HERMES_CALL)
    assert (got.calls, got.content) == ([("ping", "{}", None)], "")


def test_kimi_numbers_calls_over_the_whole_conversation() -> None:
    plan = plan_answer(model_name="kimi-k2", tools=TOOLS, tool_choice=REQUIRED, earlier_calls=3, structural_tags=False)
    text = '[{"name": "ping", "parameters": {}}, {"name": "ping", "parameters": {}}]'
    assert [call_id for _, _, call_id in read(plan, text).calls] == ["functions.ping:3", "functions.ping:4"]


def test_mistral_ids_are_nine_letters_or_digits() -> None:
    plan = plan_answer(model_name="mistral", tools=TOOLS, tool_choice=AUTO)
    assert plan.make_parser is not None
    ids = set()
    for _ in range(3):
        event, *_ = plan.make_parser().feed("[TOOL_CALLS]ping[ARGS]{}")
        ids.add(getattr(event, "call_id", None))
    assert len(ids) == 3
    assert all(isinstance(call_id, str) and len(call_id) == 9 and call_id.isalnum() for call_id in ids)


@pytest.mark.parametrize(
    ("text", "content"),
    [("<think>a</think>b", "<think>a</think>b"), (f"<think>a</think>b{HERMES_CALL}", "<think>a</think>b")],
)
def test_a_thought_that_is_not_to_be_split_off_stays_in_the_content(text: str, content: str) -> None:
    plan = plan_answer(model_name="Qwen3-8B", tools=TOOLS, tool_choice=AUTO, separate_reasoning=False)
    assert not plan.counts_reasoning
    assert (read(plan, text).content, read(plan, text).reasoning) == (content, "")


def test_channels_are_read_even_where_the_thought_stays_in_the_content() -> None:
    plan = plan_answer(model_name="gpt-oss-20b", separate_reasoning=False)
    text = "<|channel|>analysis<|message|>Hm. <|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert read(plan, text) == Folded("Hm. Yes.", "", [])


def test_special_tokens_are_seen_where_a_marker_is_one() -> None:
    special = frozenset({"<|im_end|>", "<tool_call>", "</tool_call>"})
    assert not plan_answer(tool_flag="hermes", tools=TOOLS, tool_choice=AUTO).needs_special_tokens
    plan = plan_answer(tool_flag="hermes", tools=TOOLS, tool_choice=AUTO, special_tokens=special)
    assert plan.needs_special_tokens
    got = read(plan, f"a<|im_end|>b<|im_<tool_call>x</tool_call>{HERMES_CALL}<|im_end|>")
    assert (got.content, got.calls) == ("ab<|im_x", [("ping", "{}", None)])


def test_special_tokens_a_client_wants_to_see_are_shown() -> None:
    plan = plan_answer(
        model_name="kimi-k2",
        tools=TOOLS,
        tool_choice=AUTO,
        special_tokens=frozenset({"<|im_end|>"}),
        skip_special_tokens=False,
    )
    assert read(plan, "a<|im_end|>").content == "a<|im_end|>"


@pytest.mark.parametrize(("flag", "label", "family"), [(None, "kimi_k2", "kimik2"), ("mistral", "kimi_k2", "mistral")])
def test_the_flag_comes_first_then_the_label(flag: str | None, label: str, family: str) -> None:
    plan = plan_answer(model_name="Qwen3-8B", tool_flag=flag, tool_label=label, tools=TOOLS, tool_choice=AUTO)
    assert plan.tool_parser == family


def test_an_unknown_parser_is_refused_even_where_it_is_not_needed() -> None:
    with pytest.raises(ConfigError, match="no-such"):
        plan_answer(tool_flag="no-such")
    with pytest.raises(ConfigError, match="no-such"):
        plan_answer(reasoning_label="no-such")


def test_the_constraint_is_ready_for_the_wire() -> None:
    plan = plan_answer(model_name="Qwen3-8B", tools=TOOLS, tool_choice=REQUIRED)
    assert plan.structured_output is not None
    value: Any = json.loads(plan.structured_output.value)
    assert value["type"] == "structural_tag"
