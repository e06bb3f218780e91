"""Responses bodies: what comes out as a chat, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from smg_trio.api.openai.responses.fold import ResponseFold
from smg_trio.api.openai.responses.items import make_item_id, resolve_references
from smg_trio.api.openai.responses.object import ResponseAnswer
from smg_trio.api.openai.responses.request import ResponsesRequest, parse_responses_request
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedFeature
from smg_trio.core.events import (
    ChoiceFinish,
    ChoiceUpdate,
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from smg_trio.core.media import MediaSource
from smg_trio.core.outputs import FinishReason

ITEMS: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


def counted_ids() -> Callable[[str], str]:
    numbers = count()
    return lambda prefix: f"{prefix}_{next(numbers)}"


def parse(**fields: Any) -> ResponsesRequest:
    body = {"model": "m", "input": "hi", **fields}
    return parse_responses_request(json.dumps(body).encode(), make_id=counted_ids())


def chat_messages(*items: Any) -> list[dict[str, Any]]:
    request = parse(input=list(items))
    for item in request.input:
        ITEMS.validate_python(item, strict=True)
    return request.chat().messages


def refused(error: type[InvalidRequest | UnsupportedFeature] = InvalidRequest, **fields: Any) -> str | None:
    with pytest.raises(error) as caught:
        parse(**fields).chat()
    return caught.value.param


def test_a_text_is_a_message_of_the_users() -> None:
    request = parse(instructions="Be brief.", max_output_tokens=7, temperature=0.5, top_p=0.9, stream=True)
    assert request.input == [
        {
            "id": "msg_0",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        }
    ]
    chat = request.chat()
    assert chat.model == "m"
    assert chat.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert (chat.sampling.max_tokens, chat.sampling.max_tokens_param) == (7, "max_output_tokens")
    assert (chat.sampling.temperature, chat.sampling.top_p) == (0.5, 0.9)
    assert chat.sampling.logprobs is None
    assert chat.stream
    assert request.store
    assert not request.background


def test_items_of_every_local_kind_become_turns() -> None:
    assert chat_messages(
        {"role": "developer", "content": "be"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "see", "annotations": []}],
        },
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ) == [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "see",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": "no"},
    ]


def test_a_summary_stands_in_for_a_thought() -> None:
    item = {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "s"}],
        "encrypted_content": "x",
    }
    assert chat_messages(item) == [{"role": "assistant", "reasoning": "s"}]


def test_reasoning_that_only_another_server_can_read_is_left_out_and_noted() -> None:
    user = {"role": "user", "content": "hi"}
    chat = parse(input=[user, {"type": "reasoning", "summary": [], "encrypted_content": "x"}, user]).chat()
    assert [message["role"] for message in chat.messages] == ["user", "user"]
    assert ["encrypted reasoning" in note for note in chat.notes] == [True]


def test_items_of_tools_that_ran_elsewhere_are_calls_and_results() -> None:
    items = [
        {"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
        {"type": "mcp_call", "name": "echo", "server_label": "s", "arguments": '{"a": 1}', "output": "1"},
        {"type": "file_search_call", "queries": ["q"], "results": [{"text": "found"}]},
        {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
        {"type": "shell_call", "call_id": "c2", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c2", "output": [{"stdout": "b.txt"}]},
        {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "delete_file", "path": "x"}},
        {"type": "apply_patch_call_output", "call_id": "c3", "status": "completed", "output": "gone"},
    ]
    messages = parse(input=items).chat().messages
    calls = [message["tool_calls"][0] for message in messages[::2]]
    results = messages[1::2]
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == [
        ("code_interpreter", {"code": "1+1"}),
        ("s__echo", {"a": 1}),
        ("file_search", {"queries": ["q"]}),
        ("local_shell", {"type": "exec", "command": ["ls"]}),
        ("shell", {"commands": ["ls"]}),
        ("apply_patch", {"type": "delete_file", "path": "x"}),
    ]
    assert [call["id"] for call in calls] == [result["tool_call_id"] for result in results]
    texts = ["2", "1", '[{"text": "found"}]', "a.txt", '[{"stdout": "b.txt"}]', "gone"]
    assert [result["content"] for result in results] == texts


def test_items_that_hold_nothing_to_read_are_left_out_and_noted() -> None:
    kinds = ["web_search_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"]
    chat = parse(input=[{"role": "user", "content": "hi"}, *({"type": kind} for kind in kinds)]).chat()
    assert chat.messages == [{"role": "user", "content": "hi"}]
    assert sorted(note.split()[3] for note in chat.notes) == sorted(kinds)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "mcp_call"}, "input[0].name"),
        ({"type": "shell_call", "action": "ls"}, "input[0].action"),
        ({"type": "shell_call", "call_id": 1}, "input[0].call_id"),
        ({"type": "shell_call_output", "output": "x"}, "input[0].call_id"),
    ],
)
def test_what_is_wrong_with_an_item_of_another_server_is_named(item: dict[str, Any], param: str) -> None:
    assert refused(input=[item]) == param


def test_a_response_goes_on_from_what_was_said() -> None:
    fold = ResponseFold(ResponseAnswer(response_id="resp", model="m", created_at=1))
    events = (ReasoningDelta("hm"), ContentDelta("see"), ToolCallStart(0, "f", "c1"), ToolCallArguments(0, "{}"))
    fold.feed(ChoiceUpdate(0, events, finish=ChoiceFinish(FinishReason.STOP)))
    history = [*parse(input="first").input, *fold.response()["output"]]
    request = parse(
        input=[{"type": "function_call_output", "call_id": "c1", "output": "1"}],
        instructions="new",
        previous_response_id="resp",
    )
    assert request.chat(history).messages == [
        {"role": "system", "content": "new"},
        {"role": "user", "content": "first"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "see",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]


def test_references_name_known_items() -> None:
    known = parse(input="first").input
    request = parse(input=[{"type": "item_reference", "id": "msg_0"}, {"id": "other"}])
    assert [item["type"] for item in request.input] == ["item_reference"] * 2
    with pytest.raises(InvalidRequest) as caught:
        request.chat(known)
    assert caught.value.param == "input[1].id"
    own = resolve_references(request.input, {"msg_0": known[0], "other": known[0]})
    assert [message["content"] for message in request.chat(own=own).messages] == ["first", "first"]


def test_an_unfinished_last_turn_is_continued() -> None:
    def chat(status: str) -> Any:
        item = {"type": "message", "role": "assistant", "status": status, "content": "so"}
        return parse(input=[{"role": "user", "content": "hi"}, item]).chat()

    assert chat("incomplete").continue_final_message
    assert not chat("in_progress").add_generation_prompt
    assert chat("completed").add_generation_prompt
    assert not parse(input=[{"role": "user", "content": "hi", "status": "incomplete"}]).chat().continue_final_message


def test_flat_tools_take_the_chat_form_and_are_shown_as_they_came() -> None:
    request = parse(tools=[TOOL], tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False)
    chat = request.chat()
    assert chat.tools == [
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": TOOL["parameters"], "strict": True},
        }
    ]
    assert (chat.tool_choice.mode, chat.tool_choice.name, chat.parallel_tool_calls) == ("named", "f", False)
    assert request.shown["tools"] == [{**TOOL, "description": None}]
    assert request.shown["tool_choice"] == {"type": "function", "name": "f"}
    assert parse(tool_choice="auto").chat().tool_choice.mode == "none"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    assert parse(tools=[TOOL], tool_choice=allowed).chat().tool_choice.mode == "required"


def test_text_formats_are_constraints() -> None:
    def constraint(format_: Any) -> Any:
        return parse(text={"format": format_, "verbosity": "low"}).chat().sampling.structured_output

    assert constraint({"type": "text"}) is None
    assert constraint(None) is None
    assert constraint({"type": "json_object"}).kind == "json_object"
    schema = constraint({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True})
    assert (schema.kind, schema.value) == ("json", {"type": "object"})


def test_fields_that_load_tools_and_frameworks_send_are_taken() -> None:
    request = parse(
        ignore_eos=True,
        seed=3,
        chat_template_kwargs={"a": 1},
        stop=["x"],
        stop_token_ids=[5],
        top_k=4,
        min_p=0.1,
        skip_special_tokens=False,
        max_tokens=99,
        response_format={"type": "bad"},
        unknown=1,
        reasoning={"effort": "low", "summary": "auto"},
        include_reasoning=False,
        priority=2,
        stream_options={"include_obfuscation": False},
    )
    chat = request.chat()
    sampling = chat.sampling
    assert (sampling.ignore_eos, sampling.seed, sampling.stop, sampling.stop_token_ids) == (True, 3, ("x",), (5,))
    assert (sampling.top_k, sampling.min_p, sampling.skip_special_tokens, sampling.priority) == (4, 0.1, False, 2)
    assert sampling.max_tokens is None
    assert chat.chat_template_kwargs == {"a": 1}
    assert chat.reasoning_effort == "low"
    assert not chat.include_reasoning


def test_logprobs_are_included_on_request() -> None:
    request = parse(include=["message.output_text.logprobs", "reasoning.encrypted_content"], top_logprobs=3)
    assert request.logprobs
    assert request.chat().sampling.logprobs == 3
    assert parse(top_logprobs=3).chat().sampling.logprobs is None


def test_truncation_keeps_the_prompts_end() -> None:
    assert parse(truncation="auto").chat().sampling.truncate_prompt_tokens == -1
    assert parse(truncation="disabled").chat().sampling.truncate_prompt_tokens is None


def test_a_conversation_is_named_by_id_or_object() -> None:
    assert parse(conversation="conv_1").conversation == "conv_1"
    request = parse(conversation={"id": "conv_1"}, input=None)
    assert request.shown["conversation"] == {"id": "conv_1"}
    assert request.input == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "x"}]}]}, "input[0].summary[0].type"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"conversation": {}}, "conversation.id"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a" * 65: ""}}, "metadata." + "a" * 65),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"truncation": "some"}, "truncation"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_refusals_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "image_generation_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"tools": [{"type": "unheard_of"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_what_is_hosted_elsewhere_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(UnsupportedFeature, **fields) == param


PICTURE = {"type": "input_image", "image_url": "https://x/y.png"}
PARTS = [{"type": "input_text", "text": "see"}, PICTURE, {"type": "input_text", "text": "this"}]


def test_images_stay_at_their_places_in_messages_and_in_outputs() -> None:
    items = [
        {"role": "user", "content": PARTS},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": PARTS},
        {"role": "user", "content": [PICTURE]},
    ]
    asked = parse(input=items)
    assert asked.input[0]["content"][1] == {"detail": "auto", **PICTURE}, "as it is kept and listed"
    user, _, tool, alone = asked.chat().messages
    for message, where in ((user, "input[0].content[1]"), (tool, "input[2].output[1]")):
        assert [part["type"] for part in message["content"]] == ["text", "image", "text"]
        assert message["content"][1].source == MediaSource("image", "https://x/y.png", where)
    assert [part["type"] for part in alone["content"]] == ["image"]
    later = parse(input="and?", previous_response_id="r").chat(asked.input)
    source = later.messages[0]["content"][1].source
    assert source.where == f"item '{asked.input[0]['id']}'.content[1]"


@pytest.mark.parametrize(
    ("part", "param"),
    [({}, ".image_url"), ({"image_url": 5}, ".image_url"), ({"image_url": "https://x", "detail": "most"}, ".detail")],
)
def test_an_image_that_is_malformed_is_refused_by_the_member(part: dict[str, Any], param: str) -> None:
    asked = [{"role": "user", "content": [{"type": "input_image", **part}]}]
    assert refused(input=asked) == f"input[0].content[0]{param}"


def test_made_ids_differ() -> None:
    assert make_item_id("msg") != make_item_id("msg")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.text(max_size=3)
    | st.sampled_from(["user", "input_text", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "id", "output", "call_id", "format", "effort"]),
            inner,
        )
    ),
    max_leaves=12,
)
names = ["input", "tools", "tool_choice", "text", "reasoning", "conversation", "metadata", "include", "stream", "store"]


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(names), json_values))
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "input": "hi", **fields}).encode()
    with contextlib.suppress(SmgError):
        parse_responses_request(body, RequestLimits()).chat()
