"""Constraints: what the grammar lets through is what the parser reads; checked with xgrammar where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

from smg_trio.core.requests import StructuredOutput
from smg_trio.parsers.call_frames import CHANNEL_ANSWERS, CHANNEL_CALLS, FRAMES, MISTRAL_LIST, CallFrame
from smg_trio.parsers.constraints import (
    call_list_schema,
    callable_tools,
    constrain_answer,
    constrain_calls,
)
from smg_trio.parsers.element_frames import Elements
from smg_trio.parsers.registry import make_answer_parser, make_tool_parser
from smg_trio.parsers.tool.forced import ForcedCallParser, ForcedListParser
from tests.parsers.sweep import sweep

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}},
    "required": ["node"],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "grow": TREE}
M3 = "]<]minimax[>["
ARGUMENTS = {"city": "Oslo", "days": 2}


@dataclass(frozen=True)
class Choice:
    """A tool choice as `api` makes them."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None
    allowed: tuple[str, ...] | None = None


REQUIRED = Choice("required")
NAMED = Choice("named", "get_weather")


def tool(name: str, parameters: Any = WEATHER, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


FUNCTIONS = callable_tools([tool("get_weather"), tool("ping", None)], REQUIRED)


def written(style: str) -> str:
    """The arguments as a model writes them in one of xgrammar's styles."""
    city, days = ARGUMENTS["city"], ARGUMENTS["days"]
    return {
        "json": json.dumps(ARGUMENTS),
        "qwen_xml": f"<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n{days}\n</parameter>",
        "minimax_xml": f'<parameter name="city">{city}</parameter>\n<parameter name="days">{days}</parameter>\n',
        "deepseek_xml": (
            f'<｜DSML｜parameter name="city" string="true">{city}</｜DSML｜parameter>\n'
            f'<｜DSML｜parameter name="days" string="false">{days}</｜DSML｜parameter>\n'
        ),
        "deepseek_v4_1_xml": (
            f'<｜DSML｜ parameter name="city" string="true">{city}</｜DSML｜ parameter>\n'
            f'<｜DSML｜ parameter name="days" string="false">{days}</｜DSML｜ parameter>\n'
        ),
        "glm_xml": (
            f"<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n"
            f"<arg_key>days</arg_key>\n<arg_value>{days}</arg_value>"
        ),
        "minimax_m3_xml": f"{M3}<city>{city}{M3}</city>{M3}<days>{days}{M3}</days>",
        "kimi_k3_xml": (
            f'<|open|>argument key="city" type="string"<|sep|>{city}<|close|>argument<|sep|>'
            f'<|open|>argument key="days" type="number"<|sep|>{days}<|close|>argument<|sep|>'
        ),
    }[style]


def text_of(frame: CallFrame, calls: int = 1) -> str:
    """Calls of ``get_weather`` as the frame has them."""
    numbered = "{number}" + frame.numbered if frame.numbered else ""
    arguments = written(frame.style) if frame.elements is None else elements_of(frame.elements, ARGUMENTS)
    one = frame.begin.replace("{name}", "get_weather") + numbered + arguments + frame.end
    return frame.open + frame.separator.join(one.replace("{number}", str(at)) for at in range(calls)) + frame.close


def elements_of(elements: Elements, arguments: dict[str, Any]) -> str:
    return "".join(
        elements.open.replace("{key}", key)
        + (value if isinstance(value, str) else json.dumps(value))
        + elements.close
        + elements.behind
        for key, value in arguments.items()
    )


class Grammar:
    """A compiled constraint, as the engine would use it."""

    def __init__(self, constraint: StructuredOutput) -> None:
        xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")
        vocabulary = [bytes([code]) for code in range(256)] + [b"</s>"]
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[256])
        compiler = xgrammar.GrammarCompiler(info)
        if constraint.kind == "structural_tag":
            self._grammar = compiler.compile_structural_tag(constraint.value)
        else:
            self._grammar = compiler.compile_json_schema(json.dumps(constraint.value), strict_mode=False)
        self._match: Callable[..., Any] = xgrammar.GrammarMatcher

    def takes(self, text: str) -> bool:
        """Whether an answer may be `text`."""
        matcher = self._match(self._grammar)
        return bool(matcher.accept_string(text)) and bool(matcher.accept_token(256))


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("parser", sorted(FRAMES))
def test_the_parser_reads_what_its_frame_lets_through(parser: str, calls: int) -> None:
    text = text_of(FRAMES[parser], calls)
    got = sweep(partial(make_tool_parser, parser, {"get_weather": WEATHER}), text)
    assert [(name, json.loads(arguments)) for name, arguments, _ in got.calls] == [("get_weather", ARGUMENTS)] * calls
    assert got.content.strip() == ""


@pytest.mark.parametrize("parser", sorted(FRAMES))
def test_the_grammar_of_a_frame_takes_calls_and_nothing_else(parser: str) -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser=parser, single=False)
    assert held is not None
    assert held.native
    grammar = Grammar(held.structured)
    frame = FRAMES[parser]
    assert grammar.takes(text_of(frame))
    assert grammar.takes(text_of(frame, 2))
    assert not grammar.takes("The weather is fine.")
    assert not grammar.takes(text_of(frame).replace("get_weather", "get_wether"))
    assert not grammar.takes("")


@pytest.mark.parametrize("choice", [REQUIRED, NAMED])
@pytest.mark.parametrize("parser", sorted(FRAMES))
def test_a_single_call_is_one_call(parser: str, choice: Choice) -> None:
    functions = callable_tools([tool("get_weather"), tool("ping", None)], choice)
    held = constrain_calls(functions, choice, parser=parser, single=True)
    assert held is not None
    grammar = Grammar(held.structured)
    assert grammar.takes(text_of(FRAMES[parser]))
    assert not grammar.takes(text_of(FRAMES[parser], 2))


@pytest.mark.parametrize("parser", sorted(FRAMES))
def test_strict_tools_are_held_in_their_calls_only(parser: str) -> None:
    functions = callable_tools([tool("get_weather", strict=True)], Choice("auto"))
    held = constrain_calls(functions, Choice("auto"), parser=parser, single=False)
    if not FRAMES[parser].marked:
        assert held is None
        return
    assert held is not None
    grammar = Grammar(held.structured)
    text = text_of(FRAMES[parser])
    assert grammar.takes("Nothing to do.")
    assert grammar.takes("Let me look. " + text)
    assert not grammar.takes("Let me look. " + text.replace("get_weather", "get_wether"))


def test_tools_that_are_not_strict_leave_the_model_free() -> None:
    assert constrain_calls(FUNCTIONS, Choice("auto"), parser="qwen", single=False) is None
    strict = callable_tools([tool("get_weather", strict=True)], Choice("auto"))
    assert constrain_calls(strict, Choice("auto"), parser="pythonic", single=False) is None


def test_mistral_is_framed_as_its_template_writes() -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser="mistral", single=False, template_source='"[TOOL_CALLS] ["')
    assert held is not None
    assert Grammar(held.structured).takes(text_of(MISTRAL_LIST, 2))
    got = sweep(partial(make_tool_parser, "mistral", {"get_weather": WEATHER}), text_of(MISTRAL_LIST, 2))
    assert len(got.calls) == 2


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{%- set HYTK = ':opensource' %} '<tool_calls{}>'.format(HYTK) '<tool_sep{}>'.format(HYTK)",
            "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
            "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n"
            "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
            "</tool_call:opensource>\n</tool_calls:opensource>",
        ),
        (
            "'<tool_calls:6124c78e>'",
            "<tool_calls:6124c78e><tool_call:6124c78e>get_weather<arg_key:6124c78e>city</arg_key:6124c78e>"
            "<arg_value:6124c78e>Oslo</arg_value:6124c78e><arg_key:6124c78e>days</arg_key:6124c78e>"
            "<arg_value:6124c78e>2</arg_value:6124c78e></tool_call:6124c78e></tool_calls:6124c78e>",
        ),
    ],
    ids=["3", "4"],
)
def test_hunyuan_is_framed_with_the_suffix_of_its_template(template: str, text: str) -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser="hunyuan_xml", single=False, template_source=template)
    assert held is not None
    got = sweep(partial(make_tool_parser, "hunyuan_xml", {"get_weather": WEATHER}), text)
    assert [(name, json.loads(arguments)) for name, arguments, _ in got.calls] == [("get_weather", ARGUMENTS)]
    assert Grammar(held.structured).takes(text)


MANY = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "note": {"type": ["string", "null"]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/day"}},
        "one": {"$ref": "#/$defs/day"},
        "back": {"type": "array", "items": {"$ref": "#/properties/unit"}},
        "free": {},
    },
    "required": ["unit"],
    "$defs": {"day": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"unit": "C"}, True),
        ({"unit": "K"}, False),
        ({}, False),
        ({"note": "x"}, False),
        ({"unit": "F", "note": "a < b\n</p", "list": [1, 2], "one": 3, "back": ["C"], "free": {"a": 1}}, True),
        ({"unit": "F", "list": ["a"]}, False),
        ({"unit": "F", "list": "text"}, False),
        ({"unit": "F", "one": "text"}, False),
        ({"unit": "F", "other": "x"}, False),
        ({"note": "x", "unit": "F"}, False),  # in the order of the schema
    ],
    ids=str,
)
def test_elements_are_held_to_their_schema(arguments: dict[str, Any], taken: bool) -> None:
    functions = callable_tools([tool("plan", MANY)], REQUIRED)
    held = constrain_calls(functions, REQUIRED, parser="minicpm5", single=False)
    assert held is not None
    elements = FRAMES["minicpm5"].elements
    assert elements is not None
    text = f'<function name="plan">{elements_of(elements, arguments)}</function>'
    if taken:
        got = sweep(partial(make_tool_parser, "minicpm5", {"plan": MANY}), text)
        assert [(name, json.loads(read)) for name, read, _ in got.calls] == [("plan", arguments)]
    assert Grammar(held.structured).takes(text) is taken


@pytest.mark.parametrize(
    ("parameters", "texts", "refused"),
    [
        (None, ["", "\n"], ['<param name="a">1</param>']),
        ({"type": "object"}, ["", '<param name="a">1</param>'], []),
        ({"description": "x"}, ['<param name="a">1</param>'], []),
    ],
    ids=["none", "free", "empty"],
)
def test_elements_of_tools_without_properties(parameters: Any, texts: list[str], refused: list[str]) -> None:
    functions = callable_tools([tool("ping", parameters)], REQUIRED)
    held = constrain_calls(functions, REQUIRED, parser="minicpm5", single=True)
    assert held is not None
    grammar = Grammar(held.structured)
    for text in (*texts, *refused):
        assert grammar.takes(f'<function name="ping">{text}</function>') is (text in texts), text


CHANNEL_TEXTS = {
    "harmony": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", "days": 2}'
    ),
    "kimi_k3": (
        "<|open|>response<|sep|>Sure.<|close|>response<|sep|><|open|>tools<|sep|>"
        f'<|open|>call tool="get_weather" index="1"<|sep|>{written("kimi_k3_xml")}<|close|>call<|sep|>'
        "<|close|>tools<|sep|>"
    ),
}


@pytest.mark.parametrize("parser", sorted(CHANNEL_CALLS))
def test_forced_calls_of_channelled_families_keep_their_channels(parser: str) -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser=parser, single=False)
    assert held is not None
    grammar = Grammar(held.structured)
    text = CHANNEL_TEXTS[parser]
    assert grammar.takes(text)
    assert not grammar.takes(text.replace("get_weather", "get_wether"))
    got = sweep(partial(make_answer_parser, parser, parser, {"get_weather": WEATHER}), text)
    assert [(name, json.loads(arguments)) for name, arguments, _ in got.calls] == [("get_weather", ARGUMENTS)]


CHANNEL_JSON = {
    "harmony": '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"a": 1}',
    "inkling": '<|message_model|><|content_text|>{"a": 1}<|end_message|>',
    "kimi_k3": '<|open|>response<|sep|>{"a": 1}<|close|>response<|sep|><|close|>message<|sep|>',
}


@pytest.mark.parametrize("parser", sorted(CHANNEL_ANSWERS))
@pytest.mark.parametrize(
    "asked",
    [
        StructuredOutput(kind="json", value={"type": "object", "properties": {"a": {"type": "integer"}}}),
        StructuredOutput(kind="json", value='{"type": "object"}'),
        StructuredOutput(kind="json_object", value=True),
        StructuredOutput(kind="regex", value=r'\{"a": [0-9]\}'),
        StructuredOutput(kind="choice", value=['{"a": 1}', "no"]),
    ],
    ids=lambda asked: asked.kind,
)
def test_a_clients_format_moves_into_the_channel_of_the_answer(parser: str, asked: StructuredOutput) -> None:
    grammar = Grammar(constrain_answer(parser, asked))
    assert grammar.takes(CHANNEL_JSON[parser])
    assert not grammar.takes(CHANNEL_JSON[parser].replace('{"a": 1}', "[1]"))
    assert not grammar.takes('{"a": 1}')
    assert sweep(partial(make_answer_parser, parser, None), CHANNEL_JSON[parser]).content == '{"a": 1}'


def test_other_constraints_and_families_stay_as_they_are() -> None:
    grammar = StructuredOutput(kind="grammar", value='root ::= "a"')
    assert constrain_answer("harmony", grammar) is grammar
    asked = StructuredOutput(kind="json_object", value=True)
    assert constrain_answer("qwen3", asked) is asked
    assert constrain_answer(None, asked) is asked


def test_forced_calls_without_a_frame_are_a_closed_list() -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser="pythonic", single=False)
    assert held is not None
    assert not held.native
    grammar = Grammar(held.structured)
    call = {"name": "get_weather", "parameters": ARGUMENTS}
    assert grammar.takes(json.dumps([call]))
    assert grammar.takes(json.dumps([call, {"name": "ping", "parameters": {}}]))
    answers: list[Any] = [[], [{**call, "extra": 1}], [{"name": "nobody", "parameters": {}}], [{"name": "ping"}], {}]
    for broken in answers:
        assert not grammar.takes(json.dumps(broken))


def test_one_call_at_most_without_a_frame() -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser=None, single=True)
    assert held is not None
    grammar = Grammar(held.structured)
    call = {"name": "get_weather", "parameters": ARGUMENTS}
    assert grammar.takes(json.dumps([call]))
    assert not grammar.takes(json.dumps([call, call]))


def test_a_named_function_without_a_frame_is_its_own_arguments() -> None:
    held = constrain_calls({"get_weather": FUNCTIONS["get_weather"]}, NAMED, parser=None, single=False)
    assert held is not None
    assert held.structured.value == WEATHER
    without = constrain_calls({"ping": FUNCTIONS["ping"]}, Choice("named", "ping"), parser=None, single=False)
    assert without is not None
    assert Grammar(without.structured).takes("{}")


def test_without_structural_tags_every_family_is_held_by_a_schema() -> None:
    held = constrain_calls(FUNCTIONS, REQUIRED, parser="qwen", single=False, structural_tags=False)
    assert held is not None
    assert held.structured.kind == "json"


def test_references_inside_a_tools_schema_still_hold() -> None:
    schema = call_list_schema(SCHEMAS, single=False)
    assert schema["$defs"]["tool_1"]["properties"]["node"] == {"$ref": "#/$defs/tool_1/$defs/node"}
    grammar = Grammar(StructuredOutput(kind="json", value=schema))
    assert grammar.takes('[{"name": "grow", "parameters": {"node": {"next": {"next": {}}}}}]')
    assert not grammar.takes('[{"name": "grow", "parameters": {"node": {"next": 1}}}]')


def test_a_reference_that_is_a_value_is_no_reference() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [{"$ref": "#/x"}]}}}
    assert call_list_schema({"f": schema}, single=False)["items"]["properties"]["parameters"] is schema


def test_allowed_and_named_tools_leave_the_others_out() -> None:
    tools = [tool("a"), tool("b"), tool("c")]
    assert list(callable_tools(tools, Choice("auto", allowed=("c", "a")))) == ["a", "c"]
    assert list(callable_tools(tools, Choice("named", "b"))) == ["b"]
    assert list(callable_tools(tools, REQUIRED)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('[{"name": "ping", "parameters": {}}]', [("ping", "{}")], ""),
        (
            ' [ {"parameters": {"x": [1, "}"]}, "name": "ping"} ,\n{"name": "get_weather"} ] ',
            [("ping", '{"x": [1, "}"]}'), ("get_weather", "{}")],
            "",
        ),
        ('{"name": "ping", "parameters": {"a": 1}}', [("ping", '{"a": 1}')], ""),
        ('[{"name": "ping", "parameters": {"a": "lo', [("ping", '{"a": "lo')], ""),
        ('[{"name": "ping", "parameters": {}}] Done.', [("ping", "{}")], "Done."),
        ('[{"name": "nobody", "parameters": {}}]', [], '[{"name": "nobody", "parameters": {}}]'),
        ("No.", [], "No."),
        ("[1, 2]", [], "[1, 2]"),
        ("[", [], "["),
        ("", [], ""),
    ],
)
def test_a_forced_list_is_read_back(text: str, calls: list[tuple[str, str]], content: str) -> None:
    got = sweep(partial(ForcedListParser, {"ping": {}, "get_weather": WEATHER}), text)
    assert [(name, arguments) for name, arguments, _ in got.calls] == calls
    assert got.content == content


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ('{"city": "Oslo"}', '{"city": "Oslo"}', ""),
        (' \n{ "city": "Os', '{ "city": "Os', ""),
        ("{}", "{}", ""),
        ("{", "{", ""),
        ('{"city": 1} and more', '{"city": 1}', "and more"),
        ("{it}", None, "{it}"),
        ("I cannot.", None, "I cannot."),
    ],
)
def test_the_arguments_of_a_named_function_are_read_back(text: str, arguments: str | None, content: str) -> None:
    got = sweep(partial(ForcedCallParser, "get_weather"), text)
    assert got.calls == ([] if arguments is None else [("get_weather", arguments, None)])
    assert got.content == content


def test_forced_arguments_stream_piecewise() -> None:
    parser = ForcedListParser({"ping": {}})
    parser.feed('[{"name": "ping", "parameters": {"text": "')
    assert all(parser.feed("word ") for _ in range(50))
