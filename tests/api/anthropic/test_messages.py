"""Messages bodies: what comes out as a chat, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.api.anthropic.messages import (
    MessagesRequest,
    count_tokens_body,
    parse_count_tokens_request,
    parse_messages_request,
)
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedFeature
from smg_trio.core.media import MediaSource

HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {"a": {"type": "integer"}}}}


def parse(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 9, "messages": HI, **fields}
    return parse_messages_request(json.dumps(body).encode())


def chat_messages(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return parse(messages=list(messages), **fields).chat.messages


def refused(error: type[InvalidRequest | UnsupportedFeature] = InvalidRequest, **fields: Any) -> str | None:
    with pytest.raises(error) as caught:
        parse(**fields)
    return caught.value.param


def test_max_tokens_is_a_bound_that_may_exceed_the_window() -> None:
    assert parse(max_tokens=64_000).chat.sampling.max_tokens_is_bound


def test_a_plain_body_becomes_a_plain_chat() -> None:
    request = parse(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["\n\nHuman:"], stream=True)
    chat = request.chat
    assert chat.model == "m"
    assert chat.messages == HI
    assert chat.stream
    assert chat.add_generation_prompt
    assert not chat.continue_final_message
    assert (chat.sampling.temperature, chat.sampling.top_p, chat.sampling.top_k) == (0.5, 0.9, 5)
    assert chat.sampling.max_tokens == 9
    assert chat.sampling.stop == ("\n\nHuman:",)
    assert chat.tool_choice.mode == "none"
    assert request.user_id is None


def test_the_system_prompt_comes_first_its_blocks_joined_without_billing_headers() -> None:
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: hash=1"},
        {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief."},
    ]
    assert parse(system=blocks).chat.messages[0] == {"role": "system", "content": "Be brief."}
    assert parse(system="Be brief.").chat.messages[0] == {"role": "system", "content": "Be brief."}
    assert parse(system="").chat.messages == HI
    assert parse(system=[]).chat.messages == HI


def test_inline_system_messages_stay_where_they_are() -> None:
    assert chat_messages(*HI, {"role": "system", "content": [{"type": "text", "text": "now"}]}, *HI)[1] == {
        "role": "system",
        "content": "now",
    }


def test_a_tool_turn_becomes_calls_and_results_before_what_the_user_says() -> None:
    messages = chat_messages(
        *HI,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "thanks"},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"}]},
            ],
        },
    )
    assert messages[1:] == [
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}],
            "content": "Let me see.",
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "1"},
        {"role": "user", "content": "thanks"},
    ]


def test_results_may_be_text_blocks_or_nothing_and_need_no_user_text() -> None:
    def result(content: Any) -> list[dict[str, Any]]:
        block = {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": True}
        return chat_messages({"role": "user", "content": [block]})

    assert result("ok") == [{"role": "tool", "tool_call_id": "t", "content": "ok"}]
    assert result(None)[0]["content"] == ""
    assert result([{"type": "text", "text": "a"}, {"type": "tool_reference", "tool_name": "g"}])[0]["content"] == "a\ng"


def test_documents_of_text_and_search_results_are_text() -> None:
    document = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "body"},
    }
    nested = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}}
    found = {"type": "search_result", "title": "R", "source": "s", "content": [{"type": "text", "text": "y"}]}
    (message,) = chat_messages({"role": "user", "content": [document, nested, found]})
    assert [part["text"] for part in message["content"]] == ["T\nbody", "x", "R\ns\ny"]


def test_a_last_assistant_turn_is_continued_unless_it_is_empty() -> None:
    chat = parse(messages=[*HI, {"role": "assistant", "content": "The answer is"}]).chat
    assert chat.continue_final_message
    assert not chat.add_generation_prompt
    assert chat.messages[-1]["content"] == "The answer is"
    empty = parse(messages=[*HI, {"role": "assistant", "content": ""}]).chat
    assert empty.messages == HI
    assert empty.add_generation_prompt


def test_a_last_turn_of_calls_without_results_is_refused() -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    assert refused(messages=[*HI, call]) == "messages"


def test_tools_take_the_chat_form() -> None:
    chat = parse(tools=[TOOL, {**TOOL, "name": "g", "type": "custom", "strict": True}]).chat
    assert chat.tools[0] == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"properties": {"a": {"type": "integer"}}, "type": "object"},
        },
    }
    assert chat.tools[1]["function"]["strict"] is True
    assert chat.tool_choice.mode == "auto"
    assert chat.parallel_tool_calls


@pytest.mark.parametrize(
    ("choice", "mode", "name"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "f"}, "named", "f"),
    ],
)
def test_the_tool_choice(choice: dict[str, Any], mode: str, name: str | None) -> None:
    chat = parse(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True}).chat
    assert (chat.tool_choice.mode, chat.tool_choice.name) == (mode, name)
    assert not chat.parallel_tool_calls


def test_auto_needs_no_tools() -> None:
    assert parse(tool_choice={"type": "auto"}, tools=[]).chat.tool_choice.mode == "none"
    assert refused(tool_choice={"type": "any"}) == "tool_choice"


def test_thinking_in_chat_terms() -> None:
    enabled = parse(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert enabled.chat.sampling.thinking_token_budget == 1024
    assert enabled.chat.chat_template_kwargs == {"enable_thinking": True, "thinking": True}
    assert enabled.show_thinking
    assert parse(thinking={"type": "disabled"}).chat.reasoning_effort == "none"
    assert parse(thinking={"type": "adaptive"}, output_config={"effort": "high"}).chat.reasoning_effort == "high"
    assert not parse(thinking={"type": "adaptive", "display": "omitted"}).show_thinking
    own = parse(
        thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000, chat_template_kwargs={"thinking": 0}
    )
    assert own.chat.chat_template_kwargs == {"enable_thinking": True, "thinking": 0}


def test_an_output_format_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    output = parse(output_config={"format": {"type": "json_schema", "schema": schema}}).chat.sampling.structured_output
    assert output is not None
    assert (output.kind, output.value) == ("json", schema)


def test_sampling_fields_of_the_chat_api_work_here_too() -> None:
    sampling = parse(seed=7, min_p=0.1, ignore_eos=True, cache_salt="s", vllm_xargs={"a": 1}).chat.sampling
    assert (sampling.seed, sampling.min_p, sampling.ignore_eos, sampling.cache_salt) == (7, 0.1, True, "s")
    assert sampling.extra_args == {"a": 1}
    assert parse(metadata={"user_id": "u"}).user_id == "u"
    assert parse(stop=["x"]).chat.sampling.stop == ()
    assert parse(max_tokens=0).chat.sampling.max_tokens == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "messages"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "output_config.format.schema.type",
        ),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"metadata": []}, "metadata"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ],
)
def test_refusals_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}},
        {"type": "container_upload", "file_id": "f"},
    ],
)
def test_media_that_are_not_read_are_refused_by_type(block: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "see"}, block]
    assert refused(UnsupportedFeature, messages=[{"role": "user", "content": content}]) == "messages[0].content[1]"
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    nested = refused(UnsupportedFeature, messages=[{"role": "user", "content": [result]}])
    assert nested == "messages[0].content[0].content[1]"


PICTURES = [
    ({"type": "base64", "media_type": "image/png", "data": "AA=="}, "AA==", True),
    ({"type": "base64", "data": "AA=="}, "AA==", True),
    ({"type": "url", "url": "https://x/y.png"}, "https://x/y.png", False),
]


@pytest.mark.parametrize(("source", "location", "bare"), PICTURES)
def test_images_stay_at_their_places_in_turns_and_in_results(source: Any, location: str, bare: bool) -> None:
    block = {"type": "image", "source": source}
    content = [{"type": "text", "text": "see"}, block, {"type": "text", "text": "this"}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    tool, user = parse(messages=[{"role": "user", "content": [result, *content]}]).chat.messages
    for message, where in ((tool, "messages[0].content[0].content[1]"), (user, "messages[0].content[2]")):
        assert [part["type"] for part in message["content"]] == ["text", "image", "text"]
        assert message["content"][1].source == MediaSource("image", location, where, bare_base64=bare)
    [alone] = parse(messages=[{"role": "user", "content": [block]}]).chat.messages
    assert [part["type"] for part in alone["content"]] == ["image"]


@pytest.mark.parametrize(
    ("source", "param"),
    [
        (None, "source"),
        ({}, "source.type"),
        ({"type": "url"}, "source.url"),
        ({"type": "url", "url": ""}, "source.url"),
        ({"type": "base64", "media_type": "image/png"}, "source.data"),
        ({"type": "base64", "data": 5}, "source.data"),
        ("x", "source"),
    ],
)
def test_an_image_without_a_source_is_refused_by_the_member(source: Any, param: str) -> None:
    block = {"type": "image", "source": source}
    assert refused(messages=[{"role": "user", "content": [block]}]) == f"messages[0].content[0].{param}"


def test_tools_of_anthropics_servers_are_left_out_and_that_is_noted() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    chat = parse(tools=[search, TOOL]).chat
    assert [tool["function"]["name"] for tool in chat.tools] == ["f"]
    assert ["web_search_20250305" in note for note in chat.notes] == [True]
    assert refused(tools=[search, TOOL], tool_choice={"type": "tool", "name": "web_search"}) == "tool_choice"


def test_tools_whose_definition_only_anthropics_models_know_are_refused_by_their_type() -> None:
    assert refused(UnsupportedFeature, tools=[{"type": "bash_20250124", "name": "bash"}]) == "tools[0].type"


def test_what_tools_on_anthropics_servers_did_is_read_as_calls_and_results() -> None:
    content = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "zzz"}],
        },
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "echo", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [{"type": "text", "text": "hi"}]},
        {"type": "text", "text": "Found."},
    ]
    first, found, second, echoed, answer, _ = chat_messages(*HI, {"role": "assistant", "content": content}, *HI)[1:]
    assert (first["content"], first["tool_calls"][0]["function"]["name"]) == ("I search.", "web_search")
    assert found["tool_call_id"] == "srvtoolu_1"
    assert json.loads(found["content"]) == [{"type": "web_search_result", "title": "T", "url": "u"}]
    assert second["tool_calls"][0]["id"] == "mcptoolu_1"
    assert (echoed["content"], answer) == ("hi", {"role": "assistant", "content": "Found."})


class TestToolChanges:
    """``tool_addition`` and ``tool_removal`` in system turns, and deferred tools."""

    ping: ClassVar = {"name": "ping", "input_schema": {"type": "object"}, "defer_loading": True}
    reference: ClassVar = {"type": "tool_reference", "name": "ping"}

    def offered(self, *blocks: Any, **fields: Any) -> list[str]:
        turns = [{"role": "system", "content": [{"type": "text", "text": "NEW"}, block]} for block in blocks]
        chat = parse(messages=[*HI, *turns], **{"tools": [TOOL, self.ping], **fields}).chat
        assert [message["content"] for message in chat.messages if message["role"] == "system"] == ["NEW"] * len(turns)
        return [tool["function"]["name"] for tool in chat.tools]

    def test_a_deferred_tool_is_offered_once_it_is_added(self) -> None:
        assert self.offered() == ["f"]
        addition = {"type": "tool_addition", "tool": self.reference}
        removal = {"type": "tool_removal", "tool": self.reference}
        assert self.offered(addition) == ["f", "ping"]
        assert self.offered(addition, removal) == ["f"]
        assert self.offered(addition, removal, addition) == ["f", "ping"]

    def test_a_declared_tool_can_be_taken_away(self) -> None:
        assert self.offered({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}) == ["ping"]

    def test_a_new_tool_comes_with_its_definition(self) -> None:
        definition = {"name": "new", "description": "d", "input_schema": {"properties": {}}}
        change = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
        assert self.offered(change) == ["f", "new"]

    def test_a_deferred_tool_that_a_search_found_or_that_was_called_is_offered(self) -> None:
        reference = {"type": "tool_reference", "tool_name": "ping"}
        found = {"type": "tool_result", "tool_use_id": "t", "content": [reference]}
        called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ping", "input": {}}]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
        for turns in ([{"role": "user", "content": [found]}], [called, result]):
            chat = parse(messages=[*HI, *turns], tools=[TOOL, self.ping]).chat
            assert [tool["function"]["name"] for tool in chat.tools] == ["f", "ping"]

    def test_deferred_tools_are_offered_where_nothing_could_find_them(self) -> None:
        assert self.offered(tools=[self.ping]) == ["ping"]
        search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
        assert self.offered(tools=[search, TOOL, self.ping]) == ["f", "ping"]

    def test_a_turn_of_nothing_but_changes_is_no_message(self) -> None:
        change = {"role": "system", "content": [{"type": "tool_addition", "tool": self.reference}]}
        assert parse(messages=[*HI, change], tools=[TOOL, self.ping]).chat.messages == HI

    @pytest.mark.parametrize(
        ("block", "param"),
        [
            ({"type": "tool_addition"}, "tool"),
            ({"type": "tool_addition", "tool": {"type": "x"}}, "tool.type"),
            ({"type": "tool_addition", "tool": {"type": "tool_reference"}}, "tool.name"),
            ({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "no"}}, "tool.name"),
            ({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "no"}}, "tool.name"),
            ({"type": "tool_removal", "tool": {"type": "tool_definition"}}, "tool.type"),
            ({"type": "tool_addition", "tool": {"type": "tool_definition"}}, "tool.definition"),
            ({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {}}}, "tool.definition.name"),
        ],
    )
    def test_what_is_wrong_with_a_change_is_named(self, block: dict[str, Any], param: str) -> None:
        where = "messages[1].content[0]"
        turn = {"role": "system", "content": [block]}
        assert refused(messages=[*HI, turn], tools=[TOOL, self.ping]) == f"{where}.{param}"

    @pytest.mark.parametrize("kind", ["tool_addition", "tool_removal"])
    @pytest.mark.parametrize("role", ["user", "assistant"])
    def test_changes_are_refused_outside_system_turns(self, kind: str, role: str) -> None:
        block = {"type": kind, "tool": self.reference}
        turns = [*HI, {"role": role, "content": [block]}, *HI]
        assert refused(messages=turns, tools=[self.ping]) == "messages[1].content[0].type"
        assert refused(system=[block], tools=[self.ping]) == "system[0].type"


def test_tool_names_are_unique() -> None:
    assert refused(tools=[TOOL, TOOL]) == "tools[1].name"


def test_one_constraint_only() -> None:
    format_ = {"type": "json_schema", "schema": {"type": "object"}}
    assert refused(output_config={"format": format_}, structured_outputs={"regex": "a"}) == "output_config.format"


def test_counting_takes_the_same_conversation_without_limits_on_the_answer() -> None:
    body = {"model": "m", "messages": HI, "system": "s", "tools": [TOOL], "thinking": {"type": "disabled"}}
    chat = parse_count_tokens_request(json.dumps(body).encode(), RequestLimits())
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert chat.tools[0]["function"]["name"] == "f"
    assert chat.reasoning_effort == "none"
    assert json.loads(count_tokens_body(12)) == {"input_tokens": 12}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.text(max_size=3)
    | st.sampled_from(["user", "text", "tool", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "input", "source", "id", "input_schema"]), inner
        )
    ),
    max_leaves=12,
)
names = ["model", "messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "output_config", "metadata"]


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from([*names, "stop_sequences", "stream"]), json_values))
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": HI, **fields}
    for reader in (parse_messages_request, parse_count_tokens_request):
        with contextlib.suppress(SmgError):
            reader(json.dumps(body).encode())
