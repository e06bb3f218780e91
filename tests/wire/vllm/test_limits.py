"""vLLM's own rules, and the law that nothing passes which its decoder would refuse."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import ClientFault, InvalidRequest, UnsupportedFeature
from smg_trio.core.requests import GenerationRequest, LoraAdapter, PoolingParams, RepetitionDetection, StructuredOutput
from smg_trio.core.tensors import TensorValue
from smg_trio.wire.codec import codec_for
from tests.golden.loading import STRICTNESS

from ..requests_made import INFO, VOCAB, asked, refusal  # noqa: TID252 - the tests are not an installed package

VLLM = codec_for(EngineProtocol.VLLM)

# What vLLM's decoder was asked, by the name it was recorded under, as the core request that asks the
# same. Left out is what a core request cannot say: shapes of the array, front-end-only fields.
ASKED: dict[str, GenerationRequest] = {
    "temperature int 0": asked({"temperature": 0}),
    "top_k float 5.0": asked({"top_k": 5.0}),
    "top_k float 5.5": asked({"top_k": 5.5}),
    "max_tokens 0": asked({"max_tokens": 0}),
    "temperature 2.5": asked({"temperature": 2.5}),
    "temperature 1e-3": asked({"temperature": 1e-3}),
    "top_p 0": asked({"top_p": 0.0}),
    "top_p 1.5": asked({"top_p": 1.5}),
    "top_k -1": asked({"top_k": -1}),
    "top_k -2": asked({"top_k": -2}),
    "presence 3": asked({"presence_penalty": 3.0}),
    "repetition 0": asked({"repetition_penalty": 0.0}),
    "min_tokens>max": asked({"min_tokens": 20, "max_tokens": 5}),
    "logprobs -2": asked({"logprobs": -2}),
    "seed -1": asked({"seed": -1}),
    "bad_words ['']": asked({"bad_words_token_ids": ((),)}),
    "priority None": asked(priority=None),
    "arrival_time int": asked(arrival_time=1700000000),
    "arrival_time None": asked(arrival_time=None),
    "so json dict": asked({"structured_output": StructuredOutput(kind="json", value={"type": "object"})}),
    "logit_bias str keys": asked({"logit_bias": {"5": 1.0}}),
    "logit_bias int keys": asked({"logit_bias": {5: 1.0}}),
    "stop_token_ids dup": asked({"stop_token_ids": (5, 5, 6)}),
    "lora 3 elems": asked(lora=LoraAdapter(name="n", adapter_id=1, path="/p")),
    "lora 4": asked(lora=LoraAdapter(name="n", adapter_id=1, path="/p", base_model_name="b")),
    "lora empty path": asked(lora=LoraAdapter(name="n", adapter_id=1, path="")),
    "lora id 0": asked(lora=LoraAdapter(name="n", adapter_id=0, path="/p")),
    "logprobs true": asked({"logprobs": True}),
    "thinking_token_budget -1": asked({"thinking_token_budget": -1}),
    "rep det min_count 1": asked(
        {"repetition_detection": RepetitionDetection(max_pattern_size=5, min_pattern_size=1, min_count=1)}
    ),
    "float32 temperature": asked({"temperature": struct.unpack("<f", struct.pack("<f", 0.7))[0]}),
    "extra_args nested": asked({"extra_args": {"a": {"b": [1, {"c": None}]}}}),
    # Stricter than the decoder: these decode and then kill the engine, or mean nothing.
    "seed 2**63": asked({"seed": 1 << 63}),
    "prompt ids []": asked(prompt_token_ids=[]),
    "negative token": asked(prompt_token_ids=[-1]),
    "max_tokens None": asked({"max_tokens": None}),
    "so json_object false": asked({"structured_output": StructuredOutput(kind="json_object", value=False)}),
    "sp nil": asked(sampling=None),
}
STRICTER = {
    "seed 2**63", "prompt ids []", "negative token", "max_tokens None", "so json_object false", "sp nil",
}  # fmt: skip
REFUSED = STRICTER | {
    "top_k float 5.0", "top_k float 5.5", "max_tokens 0", "temperature 2.5", "top_p 0", "top_p 1.5",
    "top_k -2", "presence 3", "repetition 0", "min_tokens>max", "logprobs -2", "bad_words ['']",
    "priority None", "arrival_time None", "logit_bias str keys", "lora empty path",
    "lora id 0", "logprobs true", "rep det min_count 1",
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_what_the_decoder_would_die_of_is_refused(name: str) -> None:
    assert (refusal(VLLM, ASKED[name]) is None) is (name not in REFUSED)


@pytest.mark.parametrize("recorded", STRICTNESS, ids=lambda path: path.stem)
def test_the_table_above_is_what_the_real_decoder_said(recorded: Path) -> None:
    said = {}
    for line in recorded.read_text().splitlines()[1:]:
        for name in ASKED:
            if line[5:].startswith(name + " "):
                said[name] = line.startswith("OK")
    assert said.keys() == ASKED.keys()
    assert {name for name, ok in said.items() if not ok} == REFUSED - STRICTER


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 1.0}, "prompt_logprobs"),
        ({"logprob_token_ids": (VOCAB,)}, "logprob_token_ids"),
        ({"logprob_token_ids": (1, 2), "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": (1,) * 129}, "logprob_token_ids"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (VOCAB,)}, "allowed_token_ids"),
        ({"allowed_token_ids": (1,) * 1025}, "allowed_token_ids"),
        ({"bad_words_token_ids": ((VOCAB,),)}, "bad_words"),
        ({"bad_words_token_ids": ((1,),) * 129}, "bad_words"),
        ({"bad_words_token_ids": ((1,) * 1025,)}, "bad_words"),
        ({"repetition_detection": RepetitionDetection(max_pattern_size=-1)}, "repetition_detection"),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=2, min_pattern_size=3, min_count=2)},
            "repetition_detection",
        ),
        ({"extra_args": {"a": 1 << 64}}, "extra_args"),
        ({"extra_args": {"a": object()}}, "extra_args"),
        ({"extra_args": {5: 1}}, "extra_args"),
        ({"extra_args": [1]}, "extra_args"),
        ({"extra_args": {"kv_transfer_params": "x"}}, "kv_transfer_params"),
        ({"skip_reading_prefix_cache": 1}, "skip_reading_prefix_cache"),
        ({"extra_sampling": {"watermarking": 1}}, "watermarking"),
        ({"extra_sampling": {"routed_experts_prompt_start": -1}}, "routed_experts_prompt_start"),
        ({"extra_sampling": {"trace_decode_token_ids": []}}, "trace_decode_token_ids"),
        ({"extra_sampling": {"unheard_of": 1}}, "unheard_of"),
        (
            {"structured_output": StructuredOutput(kind="regex", value="a", backend="auto")},
            "structured_outputs",
        ),
    ],
)
def test_what_the_engine_core_does_not_check_is_refused(sampling: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientFault) as caught:
        VLLM.check(asked(sampling), INFO, VOCAB)
    assert caught.value.param == param


def test_logprobs_have_a_cap_that_the_caller_states() -> None:
    whole = asked({"logprobs": -1, "prompt_logprobs": 30})
    VLLM.check(whole, INFO, VOCAB, max_logprobs=-1)
    VLLM.check(whole, INFO, VOCAB, max_logprobs=VOCAB)
    VLLM.check(whole, INFO, None, max_logprobs=-1)
    for vocab_size in (VOCAB, None):
        with pytest.raises(InvalidRequest, match="allowed"):
            VLLM.check(whole, INFO, vocab_size, max_logprobs=VOCAB - 1)


def test_masked_stop_ids_are_counted_only_where_they_are_masked() -> None:
    ids = frozenset(range(129))
    info = EngineInfo(max_model_len=100)
    VLLM.check(asked({"all_stop_token_ids": ids}), info, 1000)
    with pytest.raises(InvalidRequest, match="129 entries"):
        VLLM.check(asked({"all_stop_token_ids": ids, "min_tokens": 1}), info, 1000)


def test_lora_needs_an_engine_that_has_it() -> None:
    request = asked(lora=LoraAdapter(name="n", adapter_id=1, path="/p"))
    with pytest.raises(UnsupportedFeature):
        VLLM.check(request, EngineInfo(max_model_len=100, engine_version="0.32.0"), VOCAB)
    # Older engines do not say.
    VLLM.check(request, EngineInfo(max_model_len=100, engine_version="0.27.1"), VOCAB)


def test_pooling_uses_the_whole_context_and_known_tasks_only() -> None:
    def pooled(task: str, size: int, **more: Any) -> GenerationRequest:
        return asked(sampling=None, pooling=PoolingParams(task=task, **more), prompt_token_ids=[1] * size)

    VLLM.check(pooled("embed", 100, dimensions=8, use_activation=True), INFO, VOCAB)
    for wrong in (pooled("embed", 101), pooled("encode", 5), pooled("embed", 5, dimensions=0)):
        with pytest.raises(ClientFault):
            VLLM.check(wrong, INFO, VOCAB)


@pytest.mark.parametrize(
    "extra",
    [
        {"unknown": 1}, {"session_id": 5}, {"prompt_is_token_ids": [1]}, {"reasoning_parser_kwargs": [1]},
        {"mm_features": [{"data": None}]}, {"prompt_embeds": [1.0]},
        {"prompt_embeds": TensorValue("float32", (2,), b"\0" * 8)},
        {"prompt_embeds": TensorValue("float32", (2, 2), b"\0" * 8)},
        {"prompt_embeds": TensorValue("complex64", (1, 1), b"\0" * 8)},
    ],
)  # fmt: skip
def test_prepared_fields_are_checked(extra: dict[str, Any]) -> None:
    with pytest.raises(ClientFault) as caught:
        VLLM.check(asked(extra=extra), INFO, VOCAB)
    assert caught.value.param in extra


def test_embeddings_stand_for_a_prompt_and_count_as_one() -> None:
    embeds = TensorValue("float32", (98, 1), b"\0" * 4 * 98)
    VLLM.check(asked({"max_tokens": 2}, prompt_token_ids=(), extra={"prompt_embeds": embeds}), INFO, VOCAB)
    with pytest.raises(ClientFault, match="98 in the messages"):
        VLLM.check(asked(prompt_token_ids=(), extra={"prompt_embeds": embeds}), INFO, VOCAB)


def decoder_refuses(wire: dict[str, Any]) -> str:
    """The rules of ``SamplingParams`` as its decoder applies them, written a second time from the record."""

    def is_int(value: Any) -> bool:
        return type(value) is int

    get = wire.get
    rules = {
        "types": all(is_int(get(k, 0)) for k in ("max_tokens", "min_tokens", "top_k"))
        and all(is_int(get(k)) or get(k) is None for k in ("seed", "logprobs", "prompt_logprobs")),
        "temperature": math.isfinite(get("temperature", 1.0)) and 0 <= get("temperature", 1.0) <= 2,
        "top_p": 0 < get("top_p", 1.0) <= 1,
        "top_k": get("top_k", 0) >= -1,
        "min_p": 0 <= get("min_p", 0.0) <= 1,
        "penalties": abs(get("presence_penalty", 0)) <= 2 and abs(get("frequency_penalty", 0)) <= 2,
        "repetition": math.isfinite(get("repetition_penalty", 1.0)) and get("repetition_penalty", 1.0) > 0,
        "lengths": get("max_tokens", 16) >= 1 and 0 <= get("min_tokens", 0) <= get("max_tokens", 16),
        "logprobs": all((get(k) or 0) >= -1 for k in ("logprobs", "prompt_logprobs")),
        "bias": all(is_int(key) for key in get("logit_bias", {})),
        "ids": all(0 <= i < VOCAB for i in [*get("stop_token_ids", []), *get("logit_bias", {})]),
    }
    return next((name for name, held in rules.items() if not held), "")


MAYBE_NUMBER = st.floats(-3, 3) | st.floats() | st.integers(-3, 3) | st.booleans() | st.none()
MAYBE_COUNT = st.integers(-3, 25) | st.integers(-(1 << 70), 1 << 70) | st.booleans() | st.floats(0, 5)
MAYBE_IDS = st.lists(st.integers(-1, VOCAB + 1), max_size=3).map(tuple)
ANY_SAMPLING = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 30) | MAYBE_COUNT},
    optional={
        **dict.fromkeys(
            ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
            st.floats(0.1, 1) | MAYBE_NUMBER,
        ),
        **dict.fromkeys(("min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs"), MAYBE_COUNT),
        "stop_token_ids": MAYBE_IDS,
        "logit_bias": st.dictionaries(st.integers(-1, VOCAB) | st.text(max_size=1), st.floats(), max_size=2),
    },
)


@settings(max_examples=400)
@given(ANY_SAMPLING)
def test_nothing_passes_that_the_decoder_would_refuse(sampling: dict[str, Any]) -> None:
    request = asked(sampling)
    fault = refusal(VLLM, request)
    if fault is not None:
        assert fault.param in {*sampling, "max_tokens"}
        return
    payload = msgpack.unpackb(VLLM.encode_add(request)[1], strict_map_key=False)
    assert decoder_refuses(payload[3]) == ""


@pytest.mark.parametrize(
    ("version", "pooling", "param"),
    [
        ("0.33.0", {}, None),
        ("0.34.0rc1", {}, None),
        ("1.0", {}, None),
        ("0.32.0", {}, "late_chunking_params"),
        ("", {}, "late_chunking_params"),
        ("of our own", {}, "late_chunking_params"),
        ("0.33.0", {"task": "embed"}, "late_chunking_params"),
        ("0.33.0", {"skip_reading_prefix_cache": None}, "late_chunking_params"),
        ("0.33.0", {"late_chunking": 0}, "late_chunking_params.chunk_size"),
        ("0.33.0", {"late_chunking": 1 << 63}, "late_chunking_params.chunk_size"),
        ("0.33.0", {"late_chunking": True}, "late_chunking_params.chunk_size"),
    ],
)
def test_late_chunking_goes_to_engines_that_know_it(version: str, pooling: dict[str, Any], param: str | None) -> None:
    fields = {"task": "token_embed", "skip_reading_prefix_cache": True, "late_chunking": 4} | pooling
    request = asked(sampling=None, pooling=PoolingParams(**fields))
    info = EngineInfo(max_model_len=100, engine_version=version)
    if param is None:
        VLLM.check(request, info, VOCAB)
        return
    with pytest.raises((InvalidRequest, UnsupportedFeature)) as caught:
        VLLM.check(request, info, VOCAB)
    assert caught.value.param == param
