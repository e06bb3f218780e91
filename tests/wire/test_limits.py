"""The rules both engines share, asked through both codecs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import ClientFault, ContextLengthExceeded, InvalidRequest
from smg_trio.core.requests import GenerationRequest, StructuredOutput
from smg_trio.wire import limits
from smg_trio.wire.codec import codec_for

from .requests_made import INFO, VOCAB, asked

NAN, INF = float("nan"), float("inf")
BOTH = pytest.mark.parametrize("protocol", list(EngineProtocol))


def refusal(protocol: EngineProtocol, request: GenerationRequest, info: EngineInfo = INFO) -> ClientFault:
    with pytest.raises(ClientFault) as caught:
        codec_for(protocol).check(request, info, VOCAB)
    return caught.value


@BOTH
def test_a_plain_request_passes(protocol: EngineProtocol) -> None:
    codec_for(protocol).check(asked(), INFO, VOCAB)


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", NAN), ("temperature", INF), ("temperature", "1"),
        ("temperature", True), ("top_p", 0.0), ("top_p", 1.5), ("top_p", NAN), ("top_k", -2), ("top_k", 5.0),
        ("top_k", True), ("min_p", -0.1), ("min_p", 1.1), ("presence_penalty", 3.0),
        ("frequency_penalty", -2.1), ("repetition_penalty", -1.0), ("repetition_penalty", INF),
        ("repetition_penalty", 10**400), ("max_tokens", 0), ("max_tokens", None), ("max_tokens", 5.0),
        ("min_tokens", -1), ("min_tokens", 17), ("logprobs", -2), ("logprobs", True), ("seed", 1.5),
        ("seed", 1 << 63), ("thinking_token_budget", -2), ("thinking_token_budget", 1 << 31),
        ("repetition_penalty", 1 << 64), ("thinking_token_budget", 2.0),
        ("stop_token_ids", (VOCAB,)), ("stop_token_ids", (-1,)), ("stop_token_ids", 5), ("stop_token_ids", None),
        ("ignore_eos", 1),
        ("logit_bias", {VOCAB: 1.0}), ("logit_bias", {-1: 1.0}), ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: NAN}), ("logit_bias", [5]),
    ],
)  # fmt: skip
def test_a_wrong_sampling_value_is_refused_by_its_name(protocol: EngineProtocol, field: str, value: Any) -> None:
    fault = refusal(protocol, asked({field: value}))
    assert isinstance(fault, InvalidRequest)
    assert fault.param == field


@BOTH
@pytest.mark.parametrize("field", ["eos_token_id", "all_stop_token_ids"])
def test_resolved_stop_ids_stay_in_the_vocabulary(protocol: EngineProtocol, field: str) -> None:
    for value in (VOCAB, -1):
        ids: Any = value if field == "eos_token_id" else frozenset({value})
        assert refusal(protocol, asked({field: ids})).param == "stop_token_ids"


@BOTH
@pytest.mark.parametrize("ids", [[], [-1], [VOCAB], [1, VOCAB, 2], [1.0], ["1"], [True]])
def test_a_prompt_an_engine_would_die_of_is_refused(protocol: EngineProtocol, ids: list[Any]) -> None:
    assert refusal(protocol, asked(prompt_token_ids=ids)).param == "prompt"


@BOTH
def test_without_a_known_vocabulary_ids_have_31_bits(protocol: EngineProtocol) -> None:
    codec = codec_for(protocol)
    codec.check(asked(prompt_token_ids=[(1 << 31) - 1]), INFO, None)
    for outside in (-1, 1 << 31):
        with pytest.raises(InvalidRequest):
            codec.check(asked(prompt_token_ids=[outside]), INFO, None)


@BOTH
def test_prompt_and_completion_must_fit_the_context(protocol: EngineProtocol) -> None:
    codec_for(protocol).check(asked({"max_tokens": 97}), INFO, VOCAB)
    fault = refusal(protocol, asked({"max_tokens": 98}))
    assert isinstance(fault, ContextLengthExceeded)
    assert fault.param == "max_tokens"
    assert fault.message == (
        "This model's maximum context length is 100 tokens. However, you requested 101 tokens "
        "(3 in the messages, 98 in the completion). Please reduce the length of the messages or completion."
    )


def test_a_prompt_leaves_room_for_a_token() -> None:
    longest = {EngineProtocol.VLLM: 99, EngineProtocol.TOKENSPEED: 98}
    for protocol, size in longest.items():
        codec_for(protocol).check(asked({"max_tokens": 1}, prompt_token_ids=[1] * size), INFO, VOCAB)
        fault = refusal(protocol, asked({"max_tokens": 1}, prompt_token_ids=[1] * (size + 1)))
        assert isinstance(fault, ContextLengthExceeded)
        assert f"your request has {size + 1} input tokens" in fault.message


def test_an_unknown_context_is_not_checked() -> None:
    info = EngineInfo(max_model_len=0)
    codec_for(EngineProtocol.TOKENSPEED).check(asked({"max_tokens": 10**6}), info, VOCAB)


@BOTH
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json", ""), ("json", "{"), ("json", "[]"), ("json", 5), ("json", {"a": NAN}), ("json", "\ud800"),
        ("json", '{"a": NaN}'), ("json", "[" * 100_000), ("json_object", False), ("json_object", None),
        ("regex", "a\0"), ("regex", 5), ("regex", "\ud800"), ("choice", []), ("choice", "ab"),
        ("choice", [1]), ("grammar", " \n"), ("grammar", None), ("structural_tag", ""),
        ("structural_tag", "{"), ("other", "x"),
    ],
)  # fmt: skip
def test_a_constraint_that_cannot_be_meant_is_refused(protocol: EngineProtocol, kind: Any, value: Any) -> None:
    fault = refusal(protocol, asked({"structured_output": StructuredOutput(kind=kind, value=value)}))
    assert fault.param in {"response_format", "structured_outputs"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"items": value}
    return value


def test_schemas_nest_as_deep_as_vllm_lets_them() -> None:
    limits.structured_output(StructuredOutput(kind="json", value=nested(64)))
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        limits.structured_output(StructuredOutput(kind="json", value=nested(65)))
    limits.structured_output(StructuredOutput(kind="structural_tag", value=nested(80)))
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        limits.structured_output(StructuredOutput(kind="structural_tag", value=nested(81)))


@BOTH
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": ""}, "request_id"), ({"request_id": "\ud800"}, "request_id"),
        ({"priority": 1.5}, "priority"), ({"priority": 1 << 63}, "priority"),
        ({"arrival_time": NAN}, "arrival_time"), ({"rank": -1}, "data_parallel_rank"),
        ({"rank": 1 << 16}, "data_parallel_rank"), ({"sampling": None}, "task"),
        ({"cache_salt": 5}, "cache_salt"), ({"cache_salt": "\udfff"}, "cache_salt"),
    ],
)  # fmt: skip
def test_the_envelope_is_checked_too(protocol: EngineProtocol, fields: dict[str, Any], param: str) -> None:
    assert refusal(protocol, asked(**fields)).param == param


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_passes_through_can_be_packed(value: object) -> None:
    from smg_trio.wire.packing import pack, unpack

    try:
        limits.passed_through(value, "extra_args")
    except InvalidRequest:
        return
    assert pack(unpack(pack(value))) == pack(value)
