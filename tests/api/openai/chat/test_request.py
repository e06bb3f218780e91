"""Chat bodies to chat requests."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.api.openai.chat.request import ChatRequest, chat_request_from, parse_chat_request
from smg_trio.api.openai.chat.tools import ToolChoice
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedFeature

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def parse(limits: RequestLimits | None = None, **body: Any) -> ChatRequest:
    whole = {"model": "m", "messages": [USER], **body}
    return parse_chat_request(json.dumps(whole).encode(), limits or RequestLimits())


def test_a_minimal_body_has_vllms_defaults() -> None:
    request = parse()
    assert request == ChatRequest(model="m", messages=[USER], sampling=request.sampling)
    assert request.sampling.logprobs is None
    assert request.sampling.max_tokens is None
    assert request.tool_choice == ToolChoice("none")
    assert request.add_generation_prompt
    assert not request.add_special_tokens


def test_a_model_may_be_left_out() -> None:
    assert parse(model=None).model == ""
    assert chat_request_from({"messages": [USER]}).model == ""


def test_unknown_null_and_legacy_fields_are_ignored() -> None:
    legacy = {"functions": [{"name": "f"}], "function_call": "auto"}
    ignored = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "zzz": [1]}
    nulls = dict.fromkeys(["temperature", "stream", "n", "tools", "tool_choice", "stop", "logprobs", "top_logprobs"])
    assert parse(**legacy, **ignored, **nulls) == parse()


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"stream": True}, "stream", True),
        ({"stream": True, "stream_options": {"include_usage": True, "x": 1}}, "include_usage", True),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "continuous_usage_stats",
            True,
        ),
        ({"stream": True, "stream_options": {}}, "include_usage", False),
        ({"stream_options": {}}, "include_usage", False),
        ({"n": 3}, "n", 3),
        ({"logprobs": True}, "logprobs", True),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"add_generation_prompt": False}, "add_generation_prompt", False),
        ({"continue_final_message": True}, "add_generation_prompt", False),
        ({"add_special_tokens": True}, "add_special_tokens", True),
        ({"echo": True}, "echo", True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"documents": [{"title": "t", "text": "x"}]}, "documents", [{"title": "t", "text": "x"}]),
        ({"reasoning_effort": "minimal"}, "reasoning_effort", "minimal"),
        ({"include_reasoning": False}, "include_reasoning", False),
        ({"separate_reasoning": False}, "separate_reasoning", False),
        ({"return_token_ids": True}, "return_token_ids", True),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids", True),
        ({"request_id": "r-1"}, "request_id", "r-1"),
        ({"rid": "r-2"}, "request_id", "r-2"),
        ({"rid": "r-2", "request_id": "r-1"}, "request_id", "r-1"),
        ({"tools": [TOOL]}, "tool_choice", ToolChoice("auto")),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", ToolChoice("required")),
    ],
)
def test_what_a_client_may_say(body: dict[str, Any], field: str, value: object) -> None:
    assert getattr(parse(**body), field) == value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"model": 5}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream": "perhaps"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "?"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1, "max_tokens": 5}, "max_completion_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"documents": ["x"]}, "documents[0]"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"rid": "x" * 257}, "rid"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": []}, "tools"),
        ({"tools": [TOOL], "tool_choice": TOOL, "structured_outputs": {"regex": "a"}}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["mm_processor_kwargs", "media_io_kwargs", "prompt_embeds"])
def test_media_options_are_not_silently_dropped(name: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(**{name: {"a": 1}})
    assert caught.value.param == name
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(("body", "candidates"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 20}, 20)])
def test_logprobs_without_top_logprobs_are_the_sampled_tokens(body: dict[str, Any], candidates: int) -> None:
    assert parse(logprobs=True, **body).sampling.logprobs == candidates
    assert parse(logprobs=False).sampling.logprobs is None


def test_a_trusted_template_passes() -> None:
    assert parse(RequestLimits(trust_chat_template=True), chat_template="x").chat_template == "x"


def test_a_stream_may_ask_for_prompt_logprobs_of_nothing() -> None:
    assert parse(stream=True, prompt_logprobs=0).sampling.prompt_logprobs == 0


FIELDS = [*ChatRequest.__dataclass_fields__, "rid", "stream_options", "tool_choice", "response_format", "stop"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "function", "auto", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "function", "name", "tool_calls", "tools", "text"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=5), st.lists(anything, max_size=2), anything)
def test_no_body_raises_anything_but_our_own_errors(body: dict[str, Any], messages: list[Any], tools: Any) -> None:
    whole = {**body, "messages": [USER, *messages], "tools": [TOOL, tools]}
    for candidate in (body, whole, {"messages": [USER], **body}, {**body, "messages": [USER], "tools": [TOOL]}):
        with contextlib.suppress(SmgError):
            parse_chat_request(json.dumps(candidate).encode())
        with contextlib.suppress(SmgError):
            chat_request_from(candidate)
