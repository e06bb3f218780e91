"""What TokenSpeed would abort without a word, and what its wire cannot say."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.core.requests import (
    LoraAdapter,
    PoolingParams,
    RepetitionDetection,
    StructuredOutput,
)
from smg_trio.testing.pictures import qwen_picture
from smg_trio.wire.codec import codec_for

from ..requests_made import INFO, VOCAB, asked, refusal  # noqa: TID252 - the tests are not an installed package

TOKENSPEED = codec_for(EngineProtocol.TOKENSPEED)


@pytest.mark.parametrize(
    ("sampling", "param"),
    [({"top_k": 128}, "top_k"), ({"repetition_penalty": 2.1}, "repetition_penalty"), ({"seed": -2}, "seed")],
)
def test_what_its_verification_refuses_is_refused(sampling: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TOKENSPEED.check(asked(sampling), INFO, VOCAB)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 127}, {"top_k": 0}, {"top_k": -1}, {"repetition_penalty": 0.0}, {"repetition_penalty": 2.0},
        {"temperature": 5.0}, {"logprobs": 0}, {"seed": -1}, {"bad_words_token_ids": ()}, {"extra_args": {}},
    ],
)  # fmt: skip
def test_what_its_verification_accepts_passes(sampling: dict[str, Any]) -> None:
    TOKENSPEED.check(asked(sampling), INFO, VOCAB)


@pytest.mark.parametrize(
    ("sampling", "fields", "param"),
    [
        ({"logprobs": 1}, {}, "top_logprobs"), ({"logprobs": -1}, {}, "top_logprobs"),
        ({"prompt_logprobs": 0}, {}, "prompt_logprobs"), ({"logprob_token_ids": (1,)}, {}, "logprob_token_ids"),
        ({"allowed_token_ids": (1,)}, {}, "allowed_token_ids"), ({"bad_words_token_ids": ((1,),)}, {}, "bad_words"),
        ({"repetition_detection": RepetitionDetection(max_pattern_size=0)}, {}, "repetition_detection"),
        ({"skip_reading_prefix_cache": True}, {}, "skip_reading_prefix_cache"),
        ({"extra_args": {"kv_transfer_params": {}}}, {}, "extra_args"),
        ({"extra_sampling": {"watermarking": True}}, {}, "watermarking"),
        ({"structured_output": StructuredOutput(kind="regex", value="a", backend="guidance")}, {},
         "structured_outputs"),
        ({"structured_output": StructuredOutput(kind="json", value={}, whitespace_pattern=" ")}, {},
         "response_format"),
        ({}, {"cache_salt": "s"}, "cache_salt"),
        ({}, {"lora": LoraAdapter(name="n", adapter_id=1, path="/p")}, "lora"),
        ({}, {"extra": {"session_id": "s"}}, "session_id"),
        ({}, {"media": (qwen_picture(),)}, "messages"),
        ({}, {"sampling": None, "pooling": PoolingParams(task="embed")}, "task"),
    ],
)  # fmt: skip
def test_what_its_wire_cannot_say_is_unsupported(sampling: dict[str, Any], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        TOKENSPEED.check(asked(sampling, **fields), INFO, VOCAB)
    assert caught.value.param == param


def test_hints_are_dropped_without_a_word() -> None:
    TOKENSPEED.check(asked(priority=3, trace_headers={"traceparent": "x"}, rank=1), INFO, VOCAB)


ANY = st.integers(-3, 200) | st.floats(-3, 3) | st.booleans()
ANY_SAMPLING = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 30)},
    optional={
        **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), st.floats(0.1, 1) | ANY),
        **dict.fromkeys(("presence_penalty", "frequency_penalty"), st.floats(-1, 1) | ANY),
        **dict.fromkeys(("top_k", "min_tokens", "seed"), st.integers(0, 20) | ANY),
    },
)


@settings(max_examples=200)
@given(ANY_SAMPLING)
def test_nothing_passes_that_its_verification_would_abort(sampling: dict[str, Any]) -> None:
    request = asked(sampling)
    fault = refusal(TOKENSPEED, request)
    if fault is not None:
        assert fault.param in sampling
        return
    wire = msgpack.unpackb(TOKENSPEED.encode_add(request)[1])[5]
    assert len(wire) == 29
    assert wire[3] > 0
    assert 0 < wire[4] <= 1
    assert 1 <= wire[5] <= 127 or wire[5] == 1 << 30
    assert 0 <= wire[6] <= 1
    assert abs(wire[7]) <= 2
    assert abs(wire[8]) <= 2
    assert 0 <= wire[9] <= 2
    assert 0 <= wire[10] <= wire[0]
    assert wire[23] is None or wire[23] >= 0
    assert wire[28] is True
