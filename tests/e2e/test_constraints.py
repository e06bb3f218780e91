"""Constraints through HTTP: what arrives at the engine for formats and forced calls, and what never gets there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smg_trio.testing.vllm_request import REQUEST_FIELDS

from .answers import T0, TOOLS, T, ask_swept, ok
from .harness import MODEL, TOKENSPEED, VLLM, Bench, error_of, open_gateway

ANY = 'E["x"]'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
DEEP = "(" * 20_000 + "a" + ")" * 20_000
WIDE = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(4_000)}}
OFF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
PLAIN = "{{ messages[0].content }}:"
THINKING = (
    "{{ messages[0].content }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")


def template(tmp_path: Path, text: str) -> str:
    path = tmp_path / "template.jinja"
    path.write_text(text)
    return str(path)


def constraint(bench: Bench) -> dict[str, Any]:
    """The constraint of the newest request, of a vLLM engine, without what is nothing."""
    found = bench.engine.received[-1].sampling.get("structured_outputs") or {}
    return {key: value for key, value in found.items() if value not in (None, False) and not key.startswith("_")}


def tag(bench: Bench) -> dict[str, Any]:
    """The structural tag of the newest request."""
    [(kind, value)] = constraint(bench).items()
    assert kind == "structural_tag"
    loaded: dict[str, Any] = json.loads(value)
    assert loaded["type"] == "structural_tag"
    return loaded["format"]  # type: ignore[no-any-return]


def schema(bench: Bench) -> Any:
    """The JSON schema of the newest request."""
    [(kind, value)] = constraint(bench).items()
    assert kind == "json"
    return json.loads(value) if isinstance(value, str) else value


def reasoning_ended(bench: Bench) -> Any:
    """What the newest request says of the thought."""
    return sent(bench)["reasoning_ended"]


def sent(bench: Bench) -> dict[str, Any]:
    """The fields of the newest request on the wire, of a vLLM engine."""
    names = [name for name, _ in REQUEST_FIELDS]
    payload = list(bench.engine.received[-1].payload)
    return dict(zip(names, payload + [None] * (len(names) - len(payload)), strict=False))


# ---- what must die at the gateway --------------------------------------------------------------------------

BROKEN: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "("}},
    {"guided_regex": "("},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"foo": "bar"}}}}},
    {"structured_outputs": {"json": ""}},
    {"structured_outputs": {"json_object": False}},
    {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    {"structured_outputs": {"regex": "a"}, "response_format": FORMAT},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"grammar": " "}},
    {"structured_outputs": {"structural_tag": "{"}},
    {"structured_outputs": {}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "yaml"}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"foo": "bar"}}}}],
     "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": NAMED, "structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"regex": DEEP}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"patternProperties": {DEEP: {}}}}}},
    {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": {
        "type": "json_schema", "json_schema": {"type": "object", "patternProperties": {DEEP: {}}}}})}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"patternProperties": {DEEP: {}}}}}],
     "tool_choice": "required"},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": WIDE}}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": WIDE}}], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": WIDE, "strict": True}}]},
]  # fmt: skip


MESSAGES = [{"role": "user", "content": "hi"}]
ANTHROPIC_TOOL = {"name": "f", "input_schema": WIDE}
BROKEN_ELSEWHERE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": "a", "guided_regex": DEEP}, "guided_regex"),
    ("/v1/completions", {"prompt": "a", "guided_json": WIDE}, "guided_json"),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": WIDE}}},
     "text.format.schema"),
    ("/v1/messages", {"messages": MESSAGES, "tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}}, "tools[0]"),
    ("/v1/messages", {"messages": MESSAGES, "tools": [ANTHROPIC_TOOL | {"strict": True}]}, "tools[0]"),
    ("/generate", {"text": "a", "sampling_params": {"regex": DEEP}}, "sampling_params.regex"),
    ("/generate", {"text": "a", "sampling_params": {"json_schema": json.dumps(WIDE)}}, "sampling_params.json_schema"),
]  # fmt: skip


@pytest.mark.parametrize("protocol", [VLLM, TOKENSPEED])
async def test_constraints_that_no_engine_can_compile_are_refused_before_one(tmp_path: Path, protocol: Any) -> None:
    async with open_gateway(tmp_path, 'E["ok"|"<EOS>"]', protocol=protocol) as bench:
        for broken in BROKEN:
            for stream in (False, True):
                answer = await bench.chat(**broken, stream=stream)
                assert error_of(answer, 400)["param"], broken
        for path, broken, param in BROKEN_ELSEWHERE:
            answer = await bench.http.post(path, json={"model": MODEL, "max_tokens": 5, **broken})
            assert answer.status_code == 400, path
            assert param in answer.json()["error"]["message"], path
        assert bench.engine.received == []
        assert (await bench.chat_text())[0] == "ok"


# ---- formats and thoughts ----------------------------------------------------------------------------------


async def test_every_kind_of_constraint_arrives_as_it_was_asked(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, chat_template=template(tmp_path, PLAIN)) as bench:
        for asked, arrived in (
            ({"response_format": {"type": "json_object"}}, {"json_object": True}),
            ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
            ({"guided_choice": ["a", "b"]}, {"grammar": 'root ::= "a" | "b"'}),
            ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
            ({"response_format": {"type": "text"}}, {}),
        ):
            ok(await bench.chat(**asked))
            assert constraint(bench) == arrived
        ok(await bench.chat(response_format=FORMAT))
        assert schema(bench) == SCHEMA


async def test_with_thinking_off_the_format_holds_from_the_first_token(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, chat_template=template(tmp_path, THINKING)) as bench:
        for asked in ({"response_format": FORMAT}, {"response_format": {"type": "json_object"}}):
            said = await ask_swept(bench, '{"a":1}', **asked, **OFF)
            assert said.shown == ("", '{"a":1}', [], "stop")
            assert reasoning_ended(bench) is True
            said = await ask_swept(bench, 'hm</think>{"a":1}', **asked)
            assert said.shown == ("hm", '{"a":1}', [], "stop")
            assert reasoning_ended(bench) is False
            assert constraint(bench)
            said = await ask_swept(bench, '{"a":1}', **asked)
            assert said.shown == ("", '{"a":1}', [], "stop"), "an engine without a reasoning parser"


async def test_the_engine_decides_where_the_prompt_says_nothing_of_thoughts(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY) as bench:
        said = await ask_swept(bench, '<think>hm</think>{"a":1}', response_format=FORMAT)
        assert said.shown == ("hm", '{"a":1}', [], "stop")
        assert reasoning_ended(bench) is None
        assert (await ask_swept(bench, '{"a":1}', response_format=FORMAT)).content == '{"a":1}'
        ok(await bench.chat(**OFF))
        assert (constraint(bench), reasoning_ended(bench)) == ({}, None)
        ok(await bench.chat(**OFF, response_format=FORMAT))
        assert reasoning_ended(bench) is True


async def test_a_framed_family_s_format_moves_into_its_visible_channel(tmp_path: Path) -> None:
    options: dict[str, Any] = {"special_tokens": HARMONY, "tool_call_parser": "harmony", "reasoning_parser": "harmony"}
    async with open_gateway(tmp_path, ANY, **options) as bench:
        text = '<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>{"a":1}'
        said = await ask_swept(bench, text, response_format=FORMAT)
        assert said.shown == ("t", '{"a":1}', [], "stop")
        shown = json.dumps(tag(bench))
        assert json.dumps(SCHEMA) in shown
        assert "<|channel|>final" in shown


# ---- tools -------------------------------------------------------------------------------------------------


async def test_free_calls_are_not_constrained_unless_a_tool_is_strict(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": False}):
            ok(await bench.chat(tools=TOOLS, **fields))
            assert (constraint(bench), reasoning_ended(bench)) == ({}, None)
        strict = {"type": "function", "function": T["function"] | {"strict": True}}
        ok(await bench.chat(tools=[strict, T0]))
        form = tag(bench)
        assert (form["type"], form["triggers"]) == ("triggered_tags", ['<tool_call>\n{"name": "'])
        assert form["stop_after_first"] is False
        ok(await bench.chat(tools=[strict, T0], parallel_tool_calls=False))
        assert tag(bench)["stop_after_first"] is True
        ok(await bench.chat(tools=[strict, T0], tool_choice="none"))
        assert constraint(bench) == {}


async def test_forced_calls_are_held_to_the_family_s_own_form(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [T0]}}
        for choice, names, single in (
            ("required", ["get_weather", "ping"], False),
            (NAMED, ["get_weather"], True),
            (allowed, ["ping"], False),
        ):
            ok(await bench.chat(tools=TOOLS, tool_choice=choice))
            form = tag(bench)
            assert [one["begin"].split('"')[3] for one in form["tags"]] == names
            assert (form["at_least_one"], form["stop_after_first"]) == (True, single)
            assert all(one["end"] == "}\n</tool_call>" for one in form["tags"])
        ok(await bench.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
        form = tag(bench)
        assert form["stop_after_first"] is True
        assert form["tags"][0]["content"]["json_schema"] == T["function"]["parameters"]


async def test_families_without_a_form_are_held_to_plain_json(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="pythonic") as bench:
        ok(await bench.chat(tools=TOOLS, tool_choice=NAMED))
        assert schema(bench) == T["function"]["parameters"]
        ok(await bench.chat(tools=TOOLS, tool_choice="required"))
        listed = schema(bench)
        assert (listed["type"], listed["minItems"], "maxItems" in listed) == ("array", 1, False)
        names = [one["properties"]["name"]["enum"] for one in listed["items"]["anyOf"]]
        assert names == [["get_weather"], ["ping"]]
        ok(await bench.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
        assert schema(bench)["maxItems"] == 1


async def test_a_forced_call_behind_a_thought_waits_for_its_end(tmp_path: Path) -> None:
    options = {"chat_template": template(tmp_path, THINKING), "tool_call_parser": "hermes"}
    calls = [("get_weather", '{"city": "Oslo"}')]
    async with open_gateway(tmp_path, ANY, **options) as bench:
        said = await ask_swept(bench, f"hm</think>\n\n{CALL}", tools=TOOLS, tool_choice="required")
        assert said.shown == ("hm", "", calls, "tool_calls")
        assert reasoning_ended(bench) is False
        said = await ask_swept(bench, CALL, tools=TOOLS, tool_choice="required", **OFF)
        assert said.shown == ("", "", calls, "tool_calls")
        assert reasoning_ended(bench) is True


async def test_tools_and_a_format_share_an_answer(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        both: dict[str, Any] = {"tools": TOOLS, "response_format": FORMAT}
        assert (await ask_swept(bench, '{"a":1}', **both)).shown == ("", '{"a":1}', [], "stop")
        assert schema(bench) == SCHEMA
        said = await ask_swept(bench, CALL, **both, tool_choice="required")
        assert said.shown == ("", "", [("get_weather", '{"city": "Oslo"}')], "tool_calls")
        assert tag(bench)["type"] == "tags_with_separator", "a forced call takes the format's place"
        ok(await bench.chat(**both, tool_choice="none"))
        assert schema(bench) == SCHEMA


@pytest.mark.parametrize("parser", ["hermes", "pythonic"])
async def test_a_tokenspeed_engine_gets_one_constraint_too(tmp_path: Path, parser: str) -> None:
    async with open_gateway(tmp_path, ANY, protocol=TOKENSPEED, tool_call_parser=parser) as bench:
        slot = {"hermes": "structural_tag", "pythonic": "json_schema"}[parser]
        slots = ("json_schema", "regex", "ebnf", "structural_tag")
        for fields, wanted in (
            ({"tools": TOOLS, "tool_choice": "required"}, slot),
            ({"response_format": FORMAT}, "json_schema"),
            ({"tools": TOOLS}, None),
        ):
            ok(await bench.chat(**fields))
            sampling = bench.engine.received[-1].sampling
            assert [name for name in slots if sampling.get(name) is not None] == ([wanted] if wanted else [])


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_the_other_apis_force_calls_and_formats_alike(tmp_path: Path, path: str) -> None:
    parameters = T["function"]["parameters"]
    if path == "/v1/messages":
        base: dict[str, Any] = {"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        tools: Any = [{"name": "get_weather", "input_schema": parameters}]
        choices: list[Any] = [{"type": "any"}, {"type": "tool", "name": "get_weather"}]
        format_ = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    else:
        base = {"input": "hi"}
        tools = [{"type": "function", "name": "get_weather", "parameters": parameters}]
        choices = ["required", {"type": "function", "name": "get_weather"}]
        format_ = {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
    async with open_gateway(tmp_path, ANY, tool_call_parser="hermes") as bench:
        for choice in choices:
            body = base | {"model": MODEL, "tools": tools, "tool_choice": choice}
            ok(await bench.http.post(path, json=body))
            [one] = tag(bench)["tags"]
            assert one["content"]["json_schema"] == parameters
        ok(await bench.http.post(path, json=base | {"model": MODEL} | format_))
        assert schema(bench) == SCHEMA
