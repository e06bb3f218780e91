"""Sampling fields: names, defaults and bounds are vLLM's, and every refusal names its field."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.api.parameters.sampling import SamplingFields, choices, parse_sampling
from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedFeature
from smg_trio.core.requests import RepetitionDetection


def parse(limits: RequestLimits | None = None, logprobs: int | None = None, **body: Any) -> SamplingFields:
    return parse_sampling(body, limits or RequestLimits(), logprobs=logprobs)


def test_a_silent_client_leaves_room_for_the_models_defaults() -> None:
    assert parse() == SamplingFields()
    silent = dict.fromkeys(["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"])
    assert parse(**silent) == SamplingFields()
    assert SamplingFields().temperature is None


@pytest.mark.parametrize(
    ("field", "given", "read"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("temperature", "0.5", 0.5),
        ("top_p", 1, 1.0),
        ("top_p", 1e-9, 1e-9),
        ("top_k", -1, 0),
        ("top_k", 0, 0),
        ("top_k", 40.0, 40),
        ("top_k", 2**40, 2**31 - 1),
        ("min_p", 1, 1.0),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("repetition_penalty", 0.1, 0.1),
        ("seed", 99999999999, 99999999999),
        ("seed", -(2**63), -(2**63)),
        ("seed", -1, None),
        ("max_tokens", 1, 1),
        ("max_tokens", 1e9, 10**9),
        ("max_tokens", "5", 5),
        ("max_tokens", 5.0, 5),
        ("max_tokens", None, None),
        ("min_tokens", 3, 3),
        ("stop", "x", ("x",)),
        ("stop", ["x", "y"], ("x", "y")),
        ("stop", [], ()),
        ("stop_token_ids", [3, 1, 3], (3, 1)),
        ("include_stop_str_in_output", True, True),
        ("ignore_eos", "true", True),
        ("skip_special_tokens", False, False),
        ("spaces_between_special_tokens", 0, False),
        ("prompt_logprobs", 0, 0),
        ("prompt_logprobs", 20, 20),
        ("logprob_token_ids", [1, 2], (1, 2)),
        ("logprob_token_ids", [], None),
        ("logit_bias", {"7": 1, " 8 ": -1000, "9": "0.5"}, {7: 1.0, 8: -100.0, 9: 0.5}),
        ("logit_bias", {}, None),
        ("allowed_token_ids", [1], (1,)),
        ("bad_words", ["a", "b", "a"], ("a", "b")),
        ("thinking_token_budget", 0, 0),
        ("thinking_token_budget", -1, None),
        ("truncate_prompt_tokens", -1, -1),
        ("truncation_side", "left", "left"),
        ("kv_transfer_params", {"a": {"b": 1}}, {"a": {"b": 1}}),
        ("priority", -5, -5),
        ("cache_salt", "abc", "abc"),
        (
            "repetition_detection",
            {"max_pattern_size": 5, "min_count": 3},
            RepetitionDetection(max_pattern_size=5, min_count=3),
        ),
        ("repetition_detection", {"max_pattern_size": 0}, None),
    ],
)
def test_what_vllm_accepts_is_read(field: str, given: object, read: object) -> None:
    assert getattr(parse(RequestLimits(kv_transfer_params=True), **{field: given}), field) == read


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", -0.1, "temperature"),
        ("temperature", 2.1, "temperature"),
        ("temperature", float("inf"), "temperature"),
        ("temperature", "hot", "temperature"),
        ("temperature", True, "temperature"),
        ("temperature", [], "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.1, "top_p"),
        ("top_k", -2, "top_k"),
        ("top_k", 1.5, "top_k"),
        ("min_p", -0.1, "min_p"),
        ("min_p", 1.1, "min_p"),
        ("presence_penalty", 2.1, "presence_penalty"),
        ("frequency_penalty", -2.1, "frequency_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("seed", 2**63, "seed"),
        ("seed", "x", "seed"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_completion_tokens", 0, "max_completion_tokens"),
        ("min_tokens", -1, "min_tokens"),
        ("stop", "", "stop"),
        ("stop", ["a", ""], "stop[1]"),
        ("stop", [1], "stop[0]"),
        ("stop", 1, "stop"),
        ("stop", list("abcde"), "stop"),
        ("stop_token_ids", [-1], "stop_token_ids[0]"),
        ("stop_token_ids", 5, "stop_token_ids"),
        ("ignore_eos", "perhaps", "ignore_eos"),
        ("prompt_logprobs", -2, "prompt_logprobs"),
        ("prompt_logprobs", 21, "prompt_logprobs"),
        ("prompt_logprobs", -1, "prompt_logprobs"),
        ("logprob_token_ids", list(range(129)), "logprob_token_ids"),
        ("logit_bias", {"abc": 1}, "logit_bias.abc"),
        ("logit_bias", {"-1": 1}, "logit_bias.-1"),
        ("logit_bias", {"1": "x"}, "logit_bias.1"),
        ("logit_bias", [1], "logit_bias"),
        ("allowed_token_ids", [], "allowed_token_ids"),
        ("bad_words", [""], "bad_words[0]"),
        ("bad_words", ["x"] * 129, "bad_words"),
        ("thinking_token_budget", -2, "thinking_token_budget"),
        ("thinking_token_budget", 5.0, "thinking_token_budget"),
        ("thinking_token_budget", "5", "thinking_token_budget"),
        ("truncate_prompt_tokens", -2, "truncate_prompt_tokens"),
        ("truncation_side", "middle", "truncation_side"),
        ("kv_transfer_params", {"a": 2**64}, "kv_transfer_params"),
        ("kv_transfer_params", [], "kv_transfer_params"),
        ("vllm_xargs", {"a": 2**70}, "vllm_xargs"),
        ("priority", 2**63, "priority"),
        ("cache_salt", "", "cache_salt"),
        ("cache_salt", "a/b", "cache_salt"),
        ("cache_salt", "x" * 129, "cache_salt"),
        ("repetition_detection", {"max_pattern_size": 3}, "repetition_detection.min_count"),
        (
            "repetition_detection",
            {"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2},
            "repetition_detection.min_pattern_size",
        ),
        ("use_beam_search", True, "use_beam_search"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(field: str, value: object, param: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedFeature)) as caught:
        parse(**{field: value})
    assert caught.value.param == param
    assert field in caught.value.message


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    sampling = parse(max_tokens=5, max_completion_tokens=7)
    assert (sampling.max_tokens, sampling.max_tokens_param) == (7, "max_completion_tokens")
    assert parse(max_tokens=5, max_completion_tokens=None).max_tokens == 5


def test_min_tokens_must_fit_into_max_tokens() -> None:
    assert parse(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequest, match="min_tokens"):
        parse(min_tokens=6, max_tokens=5)


def test_extra_arguments_are_gathered() -> None:
    sampling = parse(vllm_xargs={"a": 1}, ec_transfer_params={"b": 2})
    assert sampling.extra_args == {"a": 1, "ec_transfer_params": {"b": 2}}
    assert parse(vllm_xargs={}).extra_args is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"vllm_xargs": {"a": 1, "kv_transfer_params": {"a": 1}}}, "vllm_xargs.kv_transfer_params"),
    ],
)
def test_kv_transfer_parameters_are_refused_unless_the_operator_allows_them(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match="--allow-kv-transfer-params") as caught:
        parse(**body)
    assert caught.value.param == param
    parse(RequestLimits(kv_transfer_params=True), **body)
    assert parse(**dict.fromkeys(body)).kv_transfer_params is None


def test_the_operator_sets_the_bounds() -> None:
    wide = RequestLimits(max_logprobs=-1, max_stop_strings=10, max_n=3)
    assert parse(wide, logprobs=-1, prompt_logprobs=-1, stop=list("abcde")).logprobs == -1
    assert choices(3, wide) == 3
    for bad in (0, 4, -1, 1.5, "x", True):
        with pytest.raises(InvalidRequest) as caught:
            choices(bad, wide)
        assert caught.value.param == "n"
    assert choices(None, wide) == 1


def test_logprobs_over_the_bound_name_the_apis_own_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_sampling({}, RequestLimits(), logprobs=21, logprobs_param="top_logprobs")
    assert caught.value.param == "top_logprobs"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [*SamplingFields.__dataclass_fields__, "max_completion_tokens", "response_format", "guided_json"]


@given(st.dictionaries(st.sampled_from([*FIELDS, "structured_outputs", "guided_regex"]), anything, max_size=4))
def test_no_body_raises_anything_but_our_own_errors(body: dict[str, Any]) -> None:
    with contextlib.suppress(SmgError):
        parse(**{key: value for key, value in body.items() if key != "logprobs"})
