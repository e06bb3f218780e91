"""Families outside the corpora: each with samples of its own, under the Sweep.

The expectations are what vLLM 0.32 answers in its non-streamed mode, except that text in front of MiniCPM5's calls is
kept, bare values of FunctionGemma are read, markup that is no call stays text, and a thought begins where the prompt
says so and not where an option of the request does.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from smg_trio.parsers.registry import make_answer_parser, make_tool_parser
from tests.parsers.sweep import sweep

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "ping": {"type": "object", "properties": {}},
    "order": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
                },
            },
            "gift": {"type": "boolean"},
            "note": {"type": "string"},
        },
    },
}
OSLO = ("get_weather", {"city": "Oslo", "days": 2})
PING: tuple[str, dict[str, Any]] = ("ping", {})
ORDER = ("order", {"items": [{"sku": "b-1", "count": 2}], "gift": True, "note": 'a "b" {c}'})

_DOTS_OSLO = (
    '<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>'
)
_HY_OSLO = (
    "<tool_call{0}>get_weather{1}<arg_key{0}>city</arg_key{0}><arg_value{0}>Oslo</arg_value{0}>"
    "<arg_key{0}>days</arg_key{0}><arg_value{0}>2</arg_value{0}></tool_call{0}>"
)
_HY3_OSLO = _HY_OSLO.format("", "<tool_sep>")
_HY4_OSLO = _HY_OSLO.format(":6124c78e", "")
_GLM_OSLO = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
_MIMO_OSLO = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n"
    "</function>\n</tool_call>"
)
_M3 = "]<]minimax[>["
_M3_OSLO = f'{_M3}<invoke name="get_weather">{_M3}<city>Oslo{_M3}</city>{_M3}<days>2{_M3}</days>{_M3}</invoke>'
_M3_ORDER = (
    f'{_M3}<invoke name="order">\n{_M3}<items>{_M3}<item>{_M3}<sku>b-1{_M3}</sku>{_M3}<count>2{_M3}</count>{_M3}</item>'
    f'{_M3}</items>\n{_M3}<gift>true{_M3}</gift>\n{_M3}<note>a "b" {{c}}{_M3}</note>\n{_M3}</invoke>'
)
_PLAMO_REQUEST = (
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{}<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{}"
    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
)
_PLAMO_OPEN, _PLAMO_CLOSE = "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"
_PLAMO_OSLO = _PLAMO_REQUEST.format("get_weather", '{"city": "Oslo", "days": 2}')
_PLAMO_PING = _PLAMO_REQUEST.format("ping", "{}")
_JSON_OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
_JSON_PING = '{"name": "ping", "arguments": {}}'
_K2_OSLO = (
    "<ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>Oslo</ifm|arg_value>"
    "<ifm|arg_key>days</ifm|arg_key><ifm|arg_value>2</ifm|arg_value></ifm|tool_call>"
)
_K2_TYPED = (
    "<ifm|tool_call>order<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>string</ifm|arg_type><ifm|arg_value>2</ifm|arg_value>"
    "<ifm|arg_key>items</ifm|arg_key><ifm|arg_type>array[int]</ifm|arg_type><ifm|arg_value>[2]</ifm|arg_value></ifm|tool_call>"
)

TOOL_SAMPLES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("dots", f"<dots_function_call>\n{_DOTS_OSLO}\n</dots_function_call>", "", [OSLO]),
    (
        "dots",
        f'Look.<dots_function_call>\n{_DOTS_OSLO}\n<invoke name="ping">\n</invoke>\n</dots_function_call>',
        "Look.",
        [OSLO, PING],
    ),
    ("dots", f"<dots_function_call>\n{_JSON_OSLO}\n</dots_function_call>", "", [OSLO]),
    ("dots", "I would write <dots_function_call> here.", "I would write <dots_function_call> here.", []),
    ("granite-20b-fc", f"<function_call> {_JSON_OSLO}", "", [OSLO]),
    ("granite-20b-fc", f"Look.<function_call> {_JSON_OSLO} <function_call> {_JSON_PING}", "Look.", [OSLO, PING]),
    ("granite-20b-fc", "No <function_call> needed.", "No <function_call> needed.", []),
    ("gigachat3", f"<|function_call|>{_JSON_OSLO}", "", [OSLO]),
    ("gigachat3", f"Look.<|message_sep|>\n\nfunction call<|role_sep|>\n{_JSON_OSLO}", "Look.", [OSLO]),
    ("gigachat3", "Just text.", "Just text.", []),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:2}<end_function_call>",
        "",
        [OSLO],
    ),
    ("functiongemma", "Ok <start_function_call>call:ping{}<end_function_call>", "Ok", [PING]),
    ("functiongemma", "Text with call:ping{} in it.", "Text with call:ping{} in it.", []),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>', "", [OSLO]),
    (
        "gemma4",
        '<|tool_call>call:order{items:[{sku:<|"|>b-1<|"|>,count:2}],gift:true,note:<|"|>a "b" {c}<|"|>}<tool_call|>'
        "<|tool_call>call:ping{}<tool_call|>",
        "",
        [ORDER, PING],
    ),
    ("gemma4", "Sure.<|tool_call>call:ping{}<tool_call|>", "Sure.", [PING]),
    ("gemma4", "call:ping{} is no call", "call:ping{} is no call", []),
    ("xlam", f"[{_JSON_OSLO}, {_JSON_PING}]", "", [OSLO, PING]),
    ("xlam", f"Look.\n```json\n[{_JSON_OSLO}]\n```", "Look.", [OSLO]),
    ("xlam", f"<tool_call>[{_JSON_PING}]</tool_call>", "", [PING]),
    ("xlam", "Use ```python\nping()\n``` there.", "Use ```python\nping()\n``` there.", []),
    ("hy_v3", f"<tool_calls>{_HY3_OSLO}</tool_calls>", "", [OSLO]),
    (
        "hy_v3",
        f"Look.<tool_calls>\n{_HY3_OSLO}\n<tool_call>ping<tool_sep></tool_call>\n</tool_calls>",
        "Look.",
        [OSLO, PING],
    ),
    ("hy_v3", "Write <tool_calls> here.", "Write <tool_calls> here.", []),
    ("hy_v4", f"<tool_calls:6124c78e>{_HY4_OSLO}</tool_calls:6124c78e>", "", [OSLO]),
    (
        "hy_v4",
        f"Look.<tool_calls:6124c78e>{_HY4_OSLO}<tool_call:6124c78e>ping</tool_call:6124c78e></tool_calls:6124c78e>",
        "Look.",
        [OSLO, PING],
    ),
    ("hy_v4", "a <b:c> d", "a <b:c> d", []),
    ("poolside_v1", _GLM_OSLO, "", [OSLO]),
    ("poolside_v1", f"Look.\n{_GLM_OSLO}\n<tool_call>ping\n</tool_call>", "Look.", [OSLO, PING]),
    ("poolside_v1", "No call.", "No call.", []),
    ("ling3", _GLM_OSLO, "", [OSLO]),
    ("ling3", f"Look.{_GLM_OSLO}<tool_call>ping</tool_call>", "Look.", [OSLO, PING]),
    ("ling3", "No call.", "No call.", []),
    ("mimo", _MIMO_OSLO, "", [OSLO]),
    (
        "mimo",
        f"Look.{_MIMO_OSLO}\n<tool_call>\n<function=order>\n"
        "<parameter=note>\n kept \n</parameter>\n</function>\n</tool_call>",
        "Look.",
        [OSLO, ("order", {"note": "\n kept \n"})],
    ),
    ("mimo", "<tool_call>\n<function=ping>\n</function>\n</tool_call>", "", [PING]),
    ("minimax_m3", f"{_M3}<tool_call>\n{_M3_OSLO}\n{_M3}</tool_call>", "", [OSLO]),
    ("minimax_m3", f"Look.{_M3}<tool_call>{_M3_ORDER}\n{_M3_OSLO}{_M3}</tool_call>", "Look.", [ORDER, OSLO]),
    ("minimax_m3", f'{_M3}<tool_call>\n{_M3}<invoke name="ping">{_M3}</invoke>\n{_M3}</tool_call>', "", [PING]),
    ("minimax_m3", "a ]<]minimax b", "a ]<]minimax b", []),
    (
        "minicpm5",
        '<function name="get_weather"><param name="city">Oslo</param><param name="days">2</param></function>',
        "",
        [OSLO],
    ),
    (
        "minicpm5",
        'Look.\n<function name="order"><param name="note"><![CDATA[a "b" </param> {c}]]></param></function>\n'
        '<function name="ping"></function>',
        "Look.",
        [("order", {"note": 'a "b" </param> {c}'}), PING],
    ),
    ("minicpm5", "A function <f> is text.", "A function <f> is text.", []),
    ("plamo3", _PLAMO_OPEN + _PLAMO_OSLO + _PLAMO_CLOSE, "", [OSLO]),
    ("plamo3", f"Look.{_PLAMO_OPEN}{_PLAMO_OSLO}{_PLAMO_PING}{_PLAMO_CLOSE}<|plamo:tag|>", "Look.", [OSLO, PING]),
    ("plamo3", "<|plamo is no marker", "<|plamo is no marker", []),
    ("k2_horizon", f"<ifm|tool_calls>{_K2_OSLO}</ifm|tool_calls>", "", [OSLO]),
    (
        "k2_horizon",
        f"Look.<ifm|tool_calls>\n{_K2_TYPED}\n</ifm|tool_calls>",
        "Look.",
        [("order", {"a": "2", "items": [2]})],
    ),
    (
        "k2_horizon",
        f"<ifm|tool_calls>\n<ifm|tool_call>\n{_JSON_OSLO}\n</ifm|tool_call>\n</ifm|tool_calls>",
        "",
        [OSLO],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), TOOL_SAMPLES)
def test_a_familys_calls_are_found(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    got = sweep(partial(make_tool_parser, name, TOOLS), text)
    assert [(called, json.loads(arguments)) for called, arguments, _ in got.calls] == calls
    assert got.content.strip() == content


_SUFFIXED = "<think:6124c78e>"
REASONING_SAMPLES = [
    ("gemma4", "<|channel>thought\nHm.\n<channel|>Yes.", False, "Hm.", "Yes."),
    ("gemma4", "Hm.<channel|>Yes.", True, "Hm.", "Yes."),
    ("gemma4", "Yes.", False, "", "Yes."),
    ("granite_thinking_parser", "Hm.\n</think>\nYes.", True, "Hm.", "Yes."),
    ("granite_thinking_parser", "<think>Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("granite_thinking_parser", "Hm.", True, "Hm.", ""),
    ("hy_v3", "<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    ("hy_v3", "Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("hy_v3", "Yes.", False, "", "Yes."),
    ("hy_v4", "Hm.</think:6124c78e>Yes.", True, "Hm.", "Yes."),
    ("hy_v4", f"{_SUFFIXED}Hm.</think:6124c78e>Yes.", False, "Hm.", "Yes."),
    ("hy_v4", "Hm. <b:c> </think>Yes.", True, "Hm. <b:c>", "Yes."),
    ("mimo", "<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    ("mimo", "Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("mimo", "Yes.", False, "", "Yes."),
    ("minicpmv", "<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
    ("minicpmv", "Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("minicpmv", "Yes.", False, "", "Yes."),
    ("plamo3", "Hm.<|plamo:end_think:plamo|>Yes.", True, "Hm.", "Yes."),
    ("plamo3", "<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>Yes.", True, "Hm.", "Yes."),
    ("plamo3", "Hm.", True, "Hm.", ""),
    ("poolside_v1", "Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("poolside_v1", "<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    ("poolside_v1", "Yes.", False, "", "Yes."),
    ("ling3", "Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("ling3", "<think>Hm.</think>Yes.", True, "Hm.", "Yes."),
    ("ling3", "Hm.", True, "Hm.", ""),
    ("minimax_m3", "<mm:think>Hm.</mm:think>Yes.", False, "Hm.", "Yes."),
    ("minimax_m3", "Hm.</mm:think>Yes.", True, "Hm.", "Yes."),
    ("minimax_m3", "Yes.", False, "", "Yes."),
    ("k2_horizon", "Hm.</ifm|think>Yes.", True, "Hm.", "Yes."),
    ("k2_horizon", "<ifm|think_fast>Hm.</ifm|think_fast>Yes.", True, "Hm.", "Yes."),
    ("k2_horizon", "Hm.", True, "Hm.", ""),
]


@pytest.mark.parametrize(("name", "text", "opened", "thought", "content"), REASONING_SAMPLES)
def test_a_familys_thought_is_split_off(name: str, text: str, opened: bool, thought: str, content: str) -> None:
    got = sweep(partial(make_answer_parser, name, None, None, opened), text)
    assert (got.reasoning.strip(), got.content.strip()) == (thought, content)


@pytest.mark.parametrize(
    ("reasoning", "tool", "text"),
    [
        ("gemma4", "gemma4", "<|channel>thought\nHm.<channel|><|tool_call>call:ping{}<tool_call|>"),
        ("hy_v4", "hy_v4", f"Hm.</think:6124c78e><tool_calls:6124c78e>{_HY4_OSLO}</tool_calls:6124c78e>"),
        ("ling3", "ling3", f"Hm.{_GLM_OSLO}"),
        ("plamo3", "plamo3", f"Hm.{_PLAMO_OPEN}{_PLAMO_PING}{_PLAMO_CLOSE}"),
        ("minimax_m3", "minimax_m3", f"<mm:think>Hm.</mm:think>\n{_M3}<tool_call>{_M3_OSLO}{_M3}</tool_call>"),
    ],
)
def test_calls_behind_or_inside_a_familys_thought_are_found(reasoning: str, tool: str, text: str) -> None:
    got = sweep(partial(make_answer_parser, reasoning, tool, TOOLS), text)
    assert (got.reasoning, got.content, len(got.calls)) == ("Hm.", "", 1)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Os', '{"city":"Os'),
        ("gemma4", "<|tool_call>call:get_weather{days:1", '{"days":1'),
        ("minimax_m3", f'{_M3}<invoke name="get_weather">{_M3}<city>Os', '{"city": "Os'),
        ("minimax_m3", f'{_M3}<invoke name="order">{_M3}<items>{_M3}<item>x', '{"items": "x'),
        ("hy_v3", "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Os", '{"city": "Os'),
        ("plamo3", _PLAMO_OPEN + _PLAMO_OSLO[: _PLAMO_OSLO.index("slo")], '{"city": "O'),
    ],
)
def test_a_cut_call_keeps_what_there_is_of_its_arguments(name: str, text: str, arguments: str) -> None:
    got = sweep(partial(make_tool_parser, name, TOOLS), text)
    assert [call[1] for call in got.calls] == [arguments]
    assert got.content == ""
