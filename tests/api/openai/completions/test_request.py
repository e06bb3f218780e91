"""Completions bodies to completions requests."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.api.openai.completions.request import CompletionRequest, parse_completion_request
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedFeature


def parse(limits: RequestLimits | None = None, **body: Any) -> CompletionRequest:
    whole = {"model": "m", "prompt": "hi", **body}
    return parse_completion_request(json.dumps(whole).encode(), limits or RequestLimits())


def test_a_minimal_body_has_vllms_defaults() -> None:
    request = parse()
    assert request == CompletionRequest(model="m", prompts=["hi"], sampling=request.sampling)
    assert request.sampling.max_tokens == 16
    assert request.add_special_tokens
    assert parse(max_tokens=None) == request
    assert parse(best_of=3, suffix="", user="u") == request


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_every_form_of_a_prompt(prompt: Any, prompts: list[Any]) -> None:
    assert parse(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        (5, "prompt"),
        ({}, "prompt"),
        ([1, "a"], "prompt"),
        ([1, True], "prompt"),
        ([1, -2], "prompt"),
        ([1, 2**63], "prompt"),
        ([True], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], [1.5]], "prompt[1]"),
        ([[1], [-1]], "prompt[1]"),
        ([None], "prompt[0]"),
        (["a"] * 1025, "prompt"),
    ],
)
def test_a_wrong_prompt_is_refused_by_name(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(prompt=prompt)
    assert caught.value.param == param


def test_many_token_ids_are_one_prompt() -> None:
    assert parse(prompt=list(range(5000))).prompts == [list(range(5000))]


def test_an_echo_needs_no_generation_and_wants_the_prompts_logprobs() -> None:
    request = parse(echo=True, max_tokens=0, logprobs=2)
    assert request.sampling.max_tokens == 0
    assert (request.logprobs, request.sampling.logprobs, request.sampling.prompt_logprobs) == (2, 2, 2)
    assert parse(echo=True, logprobs=2, prompt_logprobs=5).sampling.prompt_logprobs == 5
    assert parse(echo=True, logprobs=1, stream=True).sampling.prompt_logprobs == 1
    assert parse(echo=True).sampling.prompt_logprobs is None


@pytest.mark.parametrize(("given_value", "read"), [(0, 0), (5, 5), (True, 1), (False, None), (None, None), ("3", 3)])
def test_logprobs_are_a_number_and_chats_spelling_works(given_value: object, read: int | None) -> None:
    request = parse(logprobs=given_value)
    assert request.logprobs == request.sampling.logprobs == read


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": "x"}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": 0, "echo": True, "max_tokens": 0}, "logprob_token_ids"),
        ({"n": 1.5}, "n"),
        ({"echo": 7}, "echo"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    assert caught.value.param == param


@pytest.mark.parametrize("body", [{"suffix": "x"}, {"prompt_embeds": "AAAA"}, {"use_beam_search": True}])
def test_what_no_engine_core_does_is_unsupported(body: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        parse(**body)
    assert caught.value.param in body


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*CompletionRequest.__dataclass_fields__, "prompt"]), anything, max_size=5))
def test_no_body_raises_anything_but_our_own_errors(body: dict[str, Any]) -> None:
    for candidate in (body, {"prompt": "x", **body}):
        with contextlib.suppress(SmgError):
            parse_completion_request(json.dumps(candidate).encode())
