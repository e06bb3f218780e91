"""Thought, content and calls together: the public bugs of this field as requirements."""

from __future__ import annotations

import json
from functools import partial

import pytest

from smg_trio.parsers.registry import make_answer_parser
from tests.parsers.sweep import Folded, run, sweep

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "ping": {"type": "object", "properties": {}},
    "send": {"type": "object", "properties": {"when": {"type": "integer"}, "text": {"type": "string"}}},
}


def answer(text: str, reasoning: str | None, tool: str | None, opened: bool | None = None) -> Folded:
    return sweep(partial(make_answer_parser, reasoning, tool, TOOLS, opened), text)


def calls(got: Folded) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments, _ in got.calls]


@pytest.mark.parametrize(
    "ending", ["4", "true", "null", '[1,{"a":2}]', '{"a":{"b":"x"}}', '"\\\\"', '"}"', "-1.5e3", '"</tool_call>"']
)
def test_the_last_brace_of_any_value_arrives(ending: str) -> None:
    text = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo","x":' + ending + "}}\n</tool_call>"
    got = answer(text, None, "hermes")
    assert calls(got) == [("get_weather", {"city": "Oslo", "x": json.loads(ending)})]


@pytest.mark.parametrize("separator", [";", "; ", ";\n", "\n"])
def test_llama_calls_come_apart_at_any_separator(separator: str) -> None:
    call = '{"name":"%s","parameters":{}}'
    got = answer(call % "ping" + separator + call % "get_weather", None, "llama3_json")
    assert calls(got) == [("ping", {}), ("get_weather", {})]
    assert got.content == ""


def test_prose_with_braces_behind_a_llama_call_does_not_void_it() -> None:
    got = answer('{"name":"ping","parameters":{}} I used {it} here.', None, "llama3_json")
    assert calls(got) == [("ping", {})]
    assert got.content.strip() == "I used {it} here."


@pytest.mark.parametrize(
    "text", ['{"answer": 42}', '{"answer": 4', '{"name": "nobody", "parameters": {}}', "{", '{"name": "Ann"}']
)
@pytest.mark.parametrize("tool", ["llama3_json", "llama"])
def test_json_that_is_no_declared_call_is_content(text: str, tool: str) -> None:
    got = answer(text, None, tool)
    assert got.content == text
    assert got.calls == []


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (
            '<parameter=city>\nOs<lo>\n"x"\n</parameter>\n<parameter=days>\n3\n</parameter>\n',
            {"city": 'Os<lo>\n"x"', "days": 3},
        ),
        ("<parameter=city>\nOslo\n", {"city": "Oslo"}),
        ("<parameter=city>\nOslo\n<parameter=days>\n3\n</parameter>\n", {"city": "Oslo", "days": 3}),
        ("<parameter=city>\nwrite </parameter> here\n</parameter>\n", {"city": "write </parameter> here"}),
        ("<parameter=days>\n2026-01-15\n</parameter>\n", {"days": "2026-01-15"}),
        ("<parameter=>\nOslo\n</parameter>\n", {"": "Oslo"}),
        ("<parameter=city>\n\n\nOslo\n\n</parameter>\n", {"city": "\n\nOslo\n"}),
        ("", {}),
    ],
)
def test_xml_parameters_are_typed_and_robust(parameters: str, expected: object) -> None:
    text = f"<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>"
    got = answer(text, None, "qwen3_coder")
    assert calls(got) == [("get_weather", expected)]
    assert got.content == ""


def test_a_long_xml_string_streams_in_pieces() -> None:
    parser = make_answer_parser(None, "qwen3_coder", TOOLS)
    parser.feed("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert all(parser.feed("word ") for _ in range(100))


@pytest.mark.parametrize(
    "call_id", ["functions.get_weather:0", " functions.get_weather:0\n", "get_weather:0", "get_weather"]
)
def test_kimi_keeps_the_id_and_hides_every_marker(call_id: str) -> None:
    text = (
        f"ok<|tool_calls_section_begin|><|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
        '{"city":"Oslo","days":2}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>'
        "{}<|tool_call_end|><|tool_calls_section_end|> \n"
    )
    got = answer(text, None, "kimi_k2")
    assert calls(got) == [("get_weather", {"city": "Oslo", "days": 2}), ("ping", {})]
    assert [call_id for _, _, call_id in got.calls] == [call_id.strip(), "functions.ping:1"]
    assert got.content == "ok"


@pytest.mark.parametrize(
    "head",
    [
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>",
        "<|start|>assistant<|channel|>commentary to=functions.get_weather json<|message|>",
        "<|start|>assistant<|channel|>analysis to=functions.get_weather<|message|>",
    ],
)
def test_a_harmony_recipient_may_stand_on_either_side_of_the_channel(head: str) -> None:
    text = "<|channel|>analysis<|message|>t<|end|>" + head + '{"city":"Oslo"}<|call|>'
    got = answer(text, "gpt_oss", "gpt_oss")
    assert calls(got) == [("get_weather", {"city": "Oslo"})]
    assert (got.reasoning, got.content) == ("t", "")


def test_a_malformed_harmony_header_degrades_to_content() -> None:
    got = answer("<|channel|>analysis<|end|>Hello there", "gpt_oss", "gpt_oss")
    assert got.content == "Hello there"


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("hermes", '<tool_call>{"name":"get_weather","arguments":{"city":"São Paulo 北京 😀"}}</tool_call>'),
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>\nSão Paulo 北京 😀\n</parameter>\n</function>"),
        ("pythonic", "[get_weather(city='São Paulo 北京 😀')]"),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city":"São Paulo 北京 😀"}'),
    ],
)
def test_non_ascii_arguments_stay_as_written(tool: str, text: str) -> None:
    got = answer(text, None, tool)
    assert "São Paulo 北京 😀" in got.calls[0][1]


def test_a_cut_call_stays_a_partial_call() -> None:
    got = answer('<tool_call>\n{"name":"get_weather","arguments":{"city":"Os', None, "hermes")
    assert got.calls == [("get_weather", '{"city":"Os', None)]
    assert got.content == ""


@pytest.mark.parametrize(
    ("cut", "arguments"),
    [
        ('"{\\"city\\": \\"Os', '{"city": "Os'),
        ('"{\\"city\\": \\', '{"city": '),
        ('"{\\"city\\": \\"C:\\\\\\\\', '{"city": "C:\\\\'),
        ('"Os', '"Os'),
        ("12", "12"),
    ],
)
def test_cut_arguments_that_are_no_object_are_kept_too(cut: str, arguments: str) -> None:
    got = answer('<tool_call>\n{"name":"get_weather","arguments":' + cut, None, "hermes")
    assert got.calls == [("get_weather", arguments, None)]


@pytest.mark.parametrize("gap", ["\n", "", "\n\n"])
def test_end_of_thought_and_start_of_a_call_in_one_piece(gap: str) -> None:
    text = f'I will use Write.</think>{gap}<tool_call>\n{{"name":"ping","arguments":{{}}}}\n</tool_call>\n'
    got = answer(text, "qwen3", "hermes", opened=True)
    assert (got.reasoning, got.content, calls(got)) == ("I will use Write.", "", [("ping", {})])


def test_a_call_inside_an_unclosed_thought_is_a_call() -> None:
    got = answer('Hm.<tool_call>{"name":"ping","arguments":{}}</tool_call>', "qwen3", "hermes", opened=True)
    assert (got.reasoning, got.content, calls(got)) == ("Hm.", "", [("ping", {})])


def test_a_thought_that_mentions_the_markup_stays_a_thought() -> None:
    got = answer('I could write <tool_call> or {"x".</think>{"y"}', "qwen3", "hermes", opened=True)
    assert got.reasoning == 'I could write <tool_call> or {"x".'
    assert (got.content, got.calls) == ('{"y"}', [])


def test_thought_markers_inside_arguments_are_text() -> None:
    text = '<tool_call>{"name":"send","arguments":{"text":"<think>a</think>"}}</tool_call>'
    got = answer(text, "qwen3", "hermes", opened=False)
    assert calls(got) == [("send", {"text": "<think>a</think>"})]
    assert got.reasoning == ""


@pytest.mark.parametrize(
    ("text", "content"),
    [("\n<think>a</think>b", "b"), ("Sure.<think>a</think>b", "Sure.b"), ("<think>a</think>b", "b")],
)
def test_text_before_the_thought_reads_alike_however_it_is_cut(text: str, content: str) -> None:
    got = answer(text, "qwen3", "hermes", opened=False)
    assert (got.reasoning, got.content) == ("a", content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[get_weather(city="Oslo", days=2), f(xs=[[1,2],[3]], d={"a": None})]',
            [("get_weather", {"city": "Oslo", "days": 2}), ("f", {"xs": [[1, 2], [3]], "d": {"a": None}})],
        ),
        ('[get_weather(city="Oslo")', [("get_weather", {"city": "Oslo"})]),
        ("[a.b(x=True, y=(1, 2))]", [("a.b", {"x": True, "y": [1, 2]})]),
    ],
)
def test_pythonic_values_convert(text: str, expected: object) -> None:
    assert calls(answer(text, None, "pythonic")) == expected


@pytest.mark.parametrize("text", ["[1, 2] and [see](http://x)", "[get_weather(", "[f(x)]", "a[0] = [b"])
def test_brackets_that_are_no_pythonic_call_are_content(text: str) -> None:
    got = answer(text, None, "pythonic")
    assert (got.content, got.calls) == (text, [])


def test_white_space_alone_is_kept_where_there_is_nothing_else() -> None:
    assert answer(" \n", "qwen3", "hermes", opened=False).content == " \n"


def test_an_answer_knows_whether_it_is_thinking() -> None:
    parser = make_answer_parser("qwen3", "hermes", TOOLS, True)
    parser.feed("a")
    assert parser.in_reasoning
    parser.feed("</think>b")
    assert not parser.in_reasoning


def test_calls_are_counted_on_behind_the_thought() -> None:
    call = '<tool_call>{"name":"ping","arguments":{}}</tool_call>'
    got = run(make_answer_parser("qwen3", "hermes", TOOLS, True), [f"x{call}</think>{call}"])
    assert calls(got) == [("ping", {}), ("ping", {})]
