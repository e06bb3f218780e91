"""vLLM requests beyond the golden vectors: what is left out, and what is never sent."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgpack
import pytest

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.requests import GenerationRequest, LoraAdapter, PoolingParams, StructuredOutput
from smg_trio.wire.codec import codec_for

from ..requests_made import INFO, VOCAB, asked  # noqa: TID252 - the tests are not an installed package

VLLM = codec_for(EngineProtocol.VLLM)


def payload(request: GenerationRequest, **more: Any) -> list[Any]:
    VLLM.check(request, INFO, VOCAB)
    decoded: list[Any] = msgpack.unpackb(VLLM.encode_add(request, **more)[1], strict_map_key=False)
    return decoded


def constraint(**fields: Any) -> dict[str, Any]:
    wire = payload(asked({"structured_output": StructuredOutput(**fields)}))[3]["structured_outputs"]
    assert isinstance(wire, dict)
    return wire


def test_a_plain_request_is_nine_elements_and_one_sampling_field() -> None:
    assert payload(asked()) == ["r", [1, 2, 3], None, {"max_tokens": 16}, None, 0.0, None, None, None]


def test_the_array_is_cut_after_the_last_element_that_is_set() -> None:
    assert payload(asked(), client_index=2)[9:] == [None, None, 2]
    assert payload(asked(priority=-1), wave=7)[9:] == [None, None, 0, 7, -1]
    assert payload(asked(extra={"session_id": "s"}))[20] == "s"
    assert payload(asked(reasoning_ended=False))[17] is False


def test_prompt_and_maps_of_any_kind_are_sent_as_arrays_and_maps() -> None:
    request = asked(prompt_token_ids=range(3), trace_headers=MappingProxyType({"traceparent": "x"}))
    fields = payload(request)
    assert fields[1] == [0, 1, 2]
    assert fields[14] == {"traceparent": "x"}
    nested = payload(asked({"extra_args": {"a": MappingProxyType({"b": 1})}}))
    assert nested[3]["extra_args"] == {"a": {"b": 1}}


def test_a_bias_is_clamped_to_what_it_can_mean() -> None:
    wire = payload(asked({"logit_bias": {1: 1e200, 2: -1e200, 3: 7}}))[3]
    assert wire["logit_bias"] == {1: 100.0, 2: -100.0, 3: 7.0}


def test_pooling_is_an_array_by_position() -> None:
    pooling = PoolingParams(task="embed", dimensions=8, use_activation=True)
    assert payload(asked(sampling=None, pooling=pooling))[3:5] == [None, [True, 8, None, None, "embed"]]


def test_pooling_says_more_only_where_it_must() -> None:
    per_token = PoolingParams(task="token_embed", use_activation=True, skip_reading_prefix_cache=True)
    whole = [True, None, None, None, "token_embed", False, True]
    assert payload(asked(sampling=None, pooling=per_token))[4] == whole
    pair = PoolingParams(task="classify", use_activation=True, second_text_start=7)
    extra = {"compressed_token_type_ids": 7}
    assert payload(asked(sampling=None, pooling=pair))[4] == [
        True,
        None,
        None,
        None,
        "classify",
        False,
        None,
        None,
        extra,
    ]


def test_lora_never_has_a_fifth_element() -> None:
    assert payload(asked(lora=LoraAdapter(name="n", adapter_id=1, path="/p")))[6] == ["n", 1, "/p"]
    named = LoraAdapter(name="n", adapter_id=1, path="/p", base_model_name="b")
    assert payload(asked(lora=named))[6] == ["n", 1, "/p", "b"]


def test_a_choice_is_a_grammar_for_xgrammar_only() -> None:
    assert constraint(kind="choice", value=("a", "b")) == {
        "_backend": "xgrammar",
        "grammar": 'root ::= "a" | "b"',
    }
    assert constraint(kind="choice", value=("a", "b"), backend="guidance") == {
        "_backend": "guidance",
        "choice": ["a", "b"],
    }


def test_options_of_a_constraint_are_sent_when_set() -> None:
    wire = constraint(
        kind="json_object",
        value=True,
        disable_any_whitespace=True,
        disable_additional_properties=True,
        whitespace_pattern=" ?",
    )
    assert wire == {
        "_backend": "xgrammar",
        "json_object": True,
        "disable_any_whitespace": True,
        "disable_additional_properties": True,
        "whitespace_pattern": " ?",
    }


@pytest.mark.parametrize("bound", [1 << 80, -(1 << 70)])
def test_a_schema_may_hold_integers_msgpack_cannot(bound: int) -> None:
    assert str(bound) in constraint(kind="json", value={"maximum": bound})["json"]


def test_a_type_that_cannot_be_sent_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError, match="object"):
        VLLM.encode_add(asked({"extra_args": {"a": object()}}))
