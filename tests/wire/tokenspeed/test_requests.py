"""TokenSpeed requests beyond the golden vectors."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.requests import GenerationRequest, PoolingParams, StructuredOutput
from smg_trio.wire.codec import codec_for

from ..requests_made import INFO, VOCAB, asked  # noqa: TID252 - the tests are not an installed package

TOKENSPEED = codec_for(EngineProtocol.TOKENSPEED)
MAX_NEW, STOP_IDS, TEMPERATURE, TOP_K, SCHEMA, REGEX, EBNF, TAG = 0, 2, 3, 5, 11, 12, 13, 14
IGNORE_EOS, BUDGET, BIAS, SEED = 15, 19, 22, 23


def payload(request: GenerationRequest) -> list[Any]:
    TOKENSPEED.check(request, INFO, VOCAB)
    decoded: list[Any] = msgpack.unpackb(TOKENSPEED.encode_add(request)[1])
    return decoded


def sampling(**fields: Any) -> list[Any]:
    wire = payload(asked(fields))[5]
    assert isinstance(wire, list)
    return wire


def test_every_request_is_streamed() -> None:
    fields = payload(asked(stream=False))
    assert fields[0] == "TokenizedGenerateReqInput"
    assert fields[10:] == [True]


def test_greedy_is_top_k_one_with_a_pinned_seed() -> None:
    for wire in (sampling(temperature=0.0, seed=5), sampling(temperature=1e-7, top_k=40)):
        assert (wire[TEMPERATURE], wire[TOP_K], wire[SEED]) == (1.0, 1, 0)
    wire = sampling(temperature=0.7, top_k=1)
    assert (wire[TEMPERATURE], wire[TOP_K], wire[SEED]) == (0.7, 1, 0)


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_off_is_a_large_number(off: int) -> None:
    assert sampling(top_k=off)[TOP_K] == 1 << 30


def test_minus_one_means_unset_for_seed_and_thinking_budget() -> None:
    wire = sampling(seed=-1, thinking_token_budget=-1)
    assert (wire[SEED], wire[BUDGET]) == (None, None)
    wire = sampling(seed=7, thinking_token_budget=9)
    assert (wire[SEED], wire[BUDGET]) == (7, 9)


def test_stop_ids_and_bias_take_its_shapes() -> None:
    wire = sampling(stop_token_ids=(9, 7, 9), logit_bias={11: -2}, ignore_eos=True)
    assert (wire[STOP_IDS], wire[BIAS], wire[IGNORE_EOS]) == ([7, 9], {"11": -2.0}, True)
    assert (sampling()[STOP_IDS], sampling()[BIAS]) == (None, None)


@pytest.mark.parametrize(
    ("kind", "value", "slot", "text"),
    [
        ("json", {"type": "array"}, SCHEMA, '{"type": "array"}'),
        ("json_object", True, SCHEMA, '{"type":"object"}'),
        ("regex", "a+", REGEX, "a+"),
        ("choice", ["a", "b"], EBNF, 'root ::= "a" | "b"'),
        ("grammar", "root ::= x", EBNF, "root ::= x"),
        ("structural_tag", '{"a":1}', TAG, '{"a":1}'),
    ],
)
def test_each_constraint_has_one_slot(kind: Any, value: Any, slot: int, text: str) -> None:
    wire = sampling(structured_output=StructuredOutput(kind=kind, value=value))
    assert {i: wire[i] for i in (SCHEMA, REGEX, EBNF, TAG) if wire[i] is not None} == {slot: text}


def test_pooling_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="sampling"):
        TOKENSPEED.encode_add(asked(sampling=None, pooling=PoolingParams(task="embed")))
