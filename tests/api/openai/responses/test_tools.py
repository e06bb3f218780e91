"""Tools of the Responses API: what the model is offered, what a call of it is to the client, and tool choice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.api.openai.responses.custom_tools import CustomInput, custom_arguments
from smg_trio.api.openai.responses.request import ResponsesRequest, parse_responses_request
from smg_trio.api.openai.responses.tools import DeclaredTool, parse_response_tools
from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.core.requests import StructuredOutput

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "f", "parameters": PARAMETERS}
GEO = {"type": "namespace", "name": "mcp__geo", "description": "Places.", "tools": [{**FUNCTION, "name": "locate"}]}
CUSTOM = {"type": "custom", "name": "run_patch", "description": "Patches.", "format": {"type": "text"}}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
HELD = {"type": "custom", "name": "held", "format": LARK}
HOSTED = [
    {"type": "web_search"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "image_generation", "output_format": "png"},
    {"type": "local_shell"},
    {"type": "tool_search", "execution": "client"},
    {"type": "mcp", "server_label": "x", "server_url": "https://example.org"},
]


def parse(**fields: Any) -> ResponsesRequest:
    return parse_responses_request(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def names(request: ResponsesRequest) -> list[str]:
    return [tool["function"]["name"] for tool in request.chat().tools]


def test_hosted_tools_are_left_out_and_the_rest_is_offered() -> None:
    request = parse(tools=[*HOSTED, FUNCTION])
    assert names(request) == ["f"]
    assert request.chat().tool_choice.mode == "auto"
    assert request.offered().left_out == {
        "web_search",
        "web_search_preview",
        "image_generation",
        "local_shell",
        "tool_search",
        "mcp",
    }
    shown = request.shown["tools"]
    assert shown[:-1] == HOSTED
    assert shown[-1] == {**FUNCTION, "description": None, "strict": None}


def test_with_hosted_tools_alone_there_are_none() -> None:
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        request = parse(tools=[{"type": "web_search"}], **choice)
        assert names(request) == []
        assert request.chat().tool_choice.mode == "none"


def test_a_namespaces_tools_have_one_flat_name_each() -> None:
    offered = parse_response_tools([GEO, {**GEO, "name": "b", "tools": [CUSTOM]}])
    located, patched = offered.functions
    assert located["function"] == {"name": "mcp__geo__locate", "description": None, "parameters": PARAMETERS}
    assert patched["function"]["name"] == "b__run_patch"
    assert offered.declared == {
        "mcp__geo__locate": DeclaredTool("locate", "function", "mcp__geo"),
        "b__run_patch": DeclaredTool("run_patch", "custom", "b"),
    }


def test_a_custom_tool_is_a_function_of_one_string() -> None:
    [text, held] = parse_response_tools([CUSTOM, HELD]).functions
    assert text["function"]["description"] == "Patches."
    assert text["function"]["parameters"]["required"] == ["input"]
    assert list(text["function"]["parameters"]["properties"]) == ["input"]
    assert "Lark grammar" in (shown := held["function"]["parameters"]["properties"]["input"]["description"])
    assert LARK["definition"] in shown


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([FUNCTION, FUNCTION], "tools[1].name"),
        ([GEO, {**FUNCTION, "name": "mcp__geo__locate"}], "tools[1].name"),
        ([CUSTOM, {**FUNCTION, "name": "run_patch"}], "tools[1].name"),
        ([{**GEO, "name": None}], "tools[0].name"),
        ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{"type": "namespace", "name": "n", "tools": [{"name": "x"}]}], "tools[0].tools[0].type"),
        ([{"type": "custom"}], "tools[0].name"),
        ([{**CUSTOM, "format": {"type": "json"}}], "tools[0].format.type"),
        ([{**CUSTOM, "format": {**LARK, "syntax": "ebnf"}}], "tools[0].format.syntax"),
        ([{**CUSTOM, "format": {**LARK, "definition": ""}}], "tools[0].format.definition"),
        ([{**CUSTOM, "format": {**LARK, "syntax": "regex", "definition": "("}}], "tools[0].format.definition"),
    ],
)
def test_refusals_name_the_tool(tools: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=tools)
    assert caught.value.param == param


def test_a_type_that_nobody_knows_is_refused() -> None:
    for tools, param in (
        ([{"type": "fuction", "name": "f"}], "tools[0].type"),
        ([{**GEO, "tools": [{"type": "web_search"}]}], "tools[0].tools[0].type"),
    ):
        with pytest.raises(UnsupportedFeature) as caught:
            parse(tools=tools)
        assert caught.value.param == param


ALL = [FUNCTION, GEO, CUSTOM, HELD, {"type": "web_search"}]


@pytest.mark.parametrize(
    ("choice", "mode", "name", "allowed"),
    [
        ("required", "required", None, None),
        ({"type": "function", "name": "f"}, "named", "f", None),
        ({"type": "function", "name": "mcp__geo__locate"}, "named", "mcp__geo__locate", None),
        ({"type": "function", "name": "locate", "namespace": "mcp__geo"}, "named", "mcp__geo__locate", None),
        ({"type": "function", "name": "locate"}, "named", "mcp__geo__locate", None),
        ({"type": "custom", "name": "run_patch"}, "named", "run_patch", None),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "run_patch"}]},
            "required",
            None,
            ("run_patch",),
        ),
        (
            {
                "type": "allowed_tools",
                "tools": [{"type": "namespace", "name": "mcp__geo"}, FUNCTION, {"type": "web_search"}],
            },
            "auto",
            None,
            ("mcp__geo__locate", "f"),
        ),
    ],
)
def test_a_choice_names_tools_of_every_type(
    choice: Any, mode: str, name: str | None, allowed: tuple[str, ...] | None
) -> None:
    found = parse(tools=ALL, tool_choice=choice).chat().tool_choice
    assert (found.mode, found.name, found.allowed) == (mode, name, allowed)


def test_a_choice_of_a_tool_with_a_grammar_brings_the_grammar() -> None:
    choice = parse(tools=ALL, tool_choice={"type": "custom", "name": "held"}).chat().tool_choice
    assert choice.text_format == StructuredOutput(kind="grammar", value=LARK["definition"])
    held = {**HELD, "format": {**LARK, "syntax": "regex", "definition": "a+"}}
    choice = parse(tools=[held], tool_choice={"type": "custom", "name": "held"}).chat().tool_choice
    assert choice.text_format == StructuredOutput(kind="regex", value="a+")


TWICE = {**GEO, "name": "other"}


@pytest.mark.parametrize(
    ("choice", "error", "param"),
    [
        ({"type": "web_search"}, UnsupportedFeature, "tool_choice.type"),
        ({"type": "image_generation"}, UnsupportedFeature, "tool_choice.type"),
        ({"type": "allowed_tools", "tools": [{"type": "web_search"}]}, UnsupportedFeature, "tool_choice.tools.type"),
        ({"type": "nothing"}, UnsupportedFeature, "tool_choice.type"),
        ({"type": "custom", "name": "f"}, InvalidRequest, "tool_choice"),
        ({"type": "function", "name": "locate"}, InvalidRequest, "tool_choice"),
        ({"type": "function", "name": "g"}, InvalidRequest, "tool_choice"),
        ({"type": "function"}, InvalidRequest, "tool_choice.name"),
        ({"type": "allowed_tools", "tools": [{"type": "namespace", "name": "x"}]}, InvalidRequest, None),
    ],
)
def test_choices_that_lead_nowhere_are_refused(choice: Any, error: type[Exception], param: str | None) -> None:
    with pytest.raises(error) as caught:
        parse(tools=[*ALL, TWICE], tool_choice=choice).chat()
    if param is not None:
        assert caught.value.param == param  # type: ignore[attr-defined]


def test_a_call_cannot_be_required_of_hosted_tools_alone() -> None:
    with pytest.raises(InvalidRequest, match="hosted tools"):
        parse(tools=[{"type": "web_search"}], tool_choice="required").chat()


def test_calls_in_the_history_find_the_flat_name_again() -> None:
    text = 'line "one"\nline two'
    request = parse(
        input=[
            {"type": "function_call", "call_id": "a", "namespace": "mcp__geo", "name": "locate", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "here"},
            {"type": "custom_tool_call", "call_id": "b", "name": "run_patch", "input": text},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "custom_tool_call", "call_id": "c", "namespace": "functions", "name": "exec", "input": ""},
        ]
    )
    calls = [message["tool_calls"][0] for message in request.chat().messages if "tool_calls" in message]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [
        ("a", "mcp__geo__locate"),
        ("b", "run_patch"),
        ("c", "functions__exec"),
    ]
    assert json.loads(calls[1]["function"]["arguments"]) == {"input": text}
    assert [m["content"] for m in request.chat().messages if m["role"] == "tool"] == ["here", "done"]


def test_items_may_add_tools_and_change_the_configuration() -> None:
    """What Codex sends to its own models: no ``tools``, but an item that holds them."""
    added = {"type": "additional_tools", "role": "developer", "tools": [GEO, HELD, {"type": "web_search"}]}
    found = {"type": "tool_search_output", "tools": [{**FUNCTION, "name": "g"}], "call_id": "s"}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    request = parse(
        input=[
            added,
            {"role": "user", "content": "hi"},
            {"type": "tool_search_call", "call_id": "s", "arguments": {"query": "g"}},
            found,
            {"type": "configuration_update", "reasoning": {"effort": "low"}},
            {"type": "configuration_update", "text": {"format": schema}},
        ],
        tools=[FUNCTION],
        tool_choice={"type": "function", "name": "locate"},
        reasoning={"effort": "high"},
    )
    chat = request.chat()
    assert names(request) == ["f", "mcp__geo__locate", "held", "g"]
    assert chat.tool_choice.name == "mcp__geo__locate"
    assert chat.reasoning_effort == "low"
    assert chat.sampling.structured_output == StructuredOutput(kind="json", value={"type": "object"})
    assert chat.messages == [{"role": "user", "content": "hi"}]
    assert request.offered().declared["mcp__geo__locate"].namespace == "mcp__geo"


def test_a_later_item_replaces_tools_and_settings_of_an_earlier_one() -> None:
    newer = {**FUNCTION, "description": "newer"}
    request = parse(
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
            {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
            {"role": "user", "content": "hi"},
            {"type": "additional_tools", "role": "developer", "tools": [newer]},
            {"type": "configuration_update", "text": {"format": {"type": "text"}}},
        ],
    )
    [tool] = request.chat().tools
    assert tool["function"]["description"] == "newer"
    assert request.chat().sampling.structured_output is None


def test_what_another_agent_wrote_is_a_message_to_this_one() -> None:
    """Codex hands on what a model wrote into an argument that OpenAI's models write encrypted."""
    content = [
        {"type": "input_text", "text": "Sender: /main\nPayload:\n"},
        {"type": "encrypted_content", "encrypted_content": "Look."},
    ]
    item = {"type": "agent_message", "author": "/main", "recipient": "/main/helper", "content": content}
    assert parse(input=[item]).chat().messages == [{"role": "user", "content": "Sender: /main\nPayload:\nLook."}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "agent_message", "content": "x"}, "input[0].content"),
        (
            {"type": "agent_message", "content": [{"type": "encrypted_content"}]},
            "input[0].content[0].encrypted_content",
        ),
        ({"type": "additional_tools", "tools": [{"type": "function"}]}, "input[0].tools[0].name"),
        ({"type": "configuration_update", "reasoning": {"effort": "huge"}}, "input[0].reasoning.effort"),
        ({"type": "configuration_update", "text": {"format": {"type": "x"}}}, "input[0].text.format.type"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "n"}, "input[0].input"),
        ({"type": "custom_tool_call_output", "call_id": "c"}, "input[0].output"),
        ({"type": "function_call", "call_id": "c", "name": "n", "arguments": "", "namespace": 3}, "input[0].namespace"),
    ],
)
def test_refusals_name_the_item(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(input=[item, {"role": "user", "content": "hi"}])
    assert caught.value.param == param


PIECES = st.text(max_size=8) | st.sampled_from(
    ["\\", '"', "\\ud83d", "😀", "\n", "\x00", "\u2028", '"}', '{"input": "']
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


def read(arguments: str, cuts: list[int]) -> tuple[str, list[str]]:
    reader = CustomInput()
    ends = sorted(cut % (len(arguments) + 1) for cut in cuts)
    pieces = [arguments[a:b] for a, b in zip([0, *ends], [*ends, len(arguments)], strict=True)]
    shown = [reader.feed(piece) for piece in pieces]
    return "".join([*shown, reader.finish()]), shown


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.booleans(), st.lists(st.integers(0, 400), max_size=12))
def test_the_input_of_a_custom_call_is_the_text_however_it_is_cut(text: str, ascii_only: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert read(arguments, cuts)[0] == text


def test_the_input_comes_as_it_is_written() -> None:
    arguments = custom_arguments("one two three")
    assert "".join(read(arguments, list(range(len(arguments))))[1][:-4]) == "one two thr"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("{}", "{}"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"note": 1, "input": "x"}', "x"),
        ('"just text"', "just text"),
        ('{"input": 3}', '{"input": 3}'),
        ('{"input": "x", "more": 1}', "x"),
        ('{"input": "cut sh', "cut sh"),
        ('{"input": "half \\ud83', "half "),
        ('{"inp', '{"inp'),
        ("", ""),
        ('{"note": "' + "n" * 400 + '", "input": "late"}', "late"),
    ],
)
def test_arguments_of_another_form_are_never_lost(arguments: str, text: str) -> None:
    assert read(arguments, list(range(len(arguments))))[0] == text
    assert read(arguments, [])[0] == text
