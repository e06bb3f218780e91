"""Muse: messages to recipients, under every cutting."""

from __future__ import annotations

import json
from functools import partial

import pytest

from smg_trio.parsers.answer import AnswerParser
from smg_trio.parsers.registry import make_answer_parser
from tests.parsers.sweep import Folded, sweep

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
    },
    "geo.locate": {"type": "object", "properties": {"place": {"type": "string"}}},
}
THOUGHT = " to=self<|message|>I look it up.<|eom|>"


def invoke(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in parameters)
    return f'<atem:invoke name="{name}">\n{inner}</atem:invoke>\n'


def block(*calls: str) -> str:
    return f"<atem:function_calls>\n{''.join(calls)}</atem:function_calls>"


def to(recipient: str, body: str, end: str = "<|eom|>") -> str:
    return f"<|start|>assistant to={recipient}<|message|>{body}{end}"


OSLO = invoke("get_weather", ("city", "Oslo"), ("days", "2"), ("tags", '["a", {"b": 1}]'))
OSLO_ARGUMENTS = {"city": "Oslo", "days": 2, "tags": ["a", {"b": 1}]}


def make(calls: bool = True, opened: bool = False) -> AnswerParser:
    return make_answer_parser("muse", "muse" if calls else None, TOOLS, opened)


def read(text: str, *, calls: bool = True, opened: bool = False) -> Folded:
    return sweep(partial(make, calls, opened), text, ())


def test_a_turn_has_a_thought_an_update_calls_and_an_answer() -> None:
    text = (
        THOUGHT
        + to("commentary", "One moment. ")
        + to("get_weather", block(OSLO, invoke("geo.locate", ("place", "12"))))
        + to("user", "It is cold.", "<|eot|>")
    )
    got = read(text)
    assert got.reasoning == "I look it up."
    assert got.content == "One moment. It is cold."
    assert [(name, json.loads(arguments)) for name, arguments, _ in got.calls] == [
        ("get_weather", OSLO_ARGUMENTS),
        ("geo.locate", {"place": "12"}),
    ]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|message|>to myself<|eom|>" + to("user", "hi", "<|eot|>"), "to myself", "hi"),
        (THOUGHT + to("developer", "between us") + to("user", "hi"), "I look it up.", "hi"),
        (" to=self<|message|>cut sh", "cut sh", ""),
        (" to=self<|message|>no end to=user<|message|>hi<|eot|>", "no end", "hi"),
        (to("self", f"I might call {block(OSLO)}") + to("user", "no"), f"I might call {block(OSLO)}", "no"),
        (to("user", f"Write {block(OSLO)} for it"), "", f"Write {block(OSLO)} for it"),
        ("plain text to=nobody and so on", "", "plain text to=nobody and so on"),
        ("a to=", "", "a to="),
        ("", "", ""),
    ],
)
def test_recipients_say_what_a_message_is(text: str, reasoning: str, content: str) -> None:
    got = read(text)
    assert (got.reasoning, got.content, got.calls) == (reasoning, content, [])
    if "atem" not in text:
        assert read(text, calls=False) == got


def test_a_message_that_does_not_end_gives_way_to_a_call() -> None:
    got = read(f" to=self<|message|>I look it up. to=get_weather<|message|>{block(OSLO)}<|eom|>")
    assert got.reasoning == "I look it up."
    assert [name for name, _, _ in got.calls] == ["get_weather"]


def test_the_prompt_may_have_opened_the_thought() -> None:
    got = read(f"I look it up.<|eom|>{to('get_weather', block(OSLO))}", opened=True)
    assert (got.reasoning, len(got.calls)) == ("I look it up.", 1)


def test_a_doubled_name_is_that_of_the_tool() -> None:
    calls = [invoke("get_weather.get_weather"), invoke("geo.locate"), invoke("other.other"), invoke("weather.locate")]
    got = read(to("get_weather.get_weather", block(*calls)))
    assert [name for name, _, _ in got.calls] == ["get_weather", "geo.locate", "other.other", "weather.locate"]


def test_a_call_that_is_cut_keeps_what_there_is() -> None:
    [(name, arguments, _)] = read(to("get_weather", '<atem:function_calls>\n<atem:invoke name="get_weather">\n'
                                     '<atem:parameter name="city">Os', "")).calls  # fmt: skip
    assert (name, arguments) == ("get_weather", '{"city": "Os')


def test_without_a_tool_parser_calls_stay_text() -> None:
    got = read(THOUGHT + to("get_weather", block(OSLO)), calls=False)
    assert (got.reasoning, got.content) == ("I look it up.", block(OSLO))
