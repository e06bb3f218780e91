"""vLLM outputs beyond the golden vectors: longer and shorter arrays, unknown values, wrong ones."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineLoad
from smg_trio.core.errors import ProtocolViolation
from smg_trio.core.outputs import EngineBatch, EngineError, FinishReason, GenerationOutput, PositionLogprobs
from smg_trio.wire.vllm.outputs import decode_outputs


def tensor(dtype: str, shape: list[int], code: str, *values: float) -> list[Any]:
    return [dtype, shape, msgpack.ExtType(3, struct.pack(f"<{len(values)}{code}", *values))]


LOGPROBS = [
    tensor("<i4", [1, 2], "i", 5, 6), tensor("<f4", [1, 2], "f", -0.5, -1.0), tensor("<i8", [1], "q", 1), None,
]  # fmt: skip
FULL = [
    "r", [5], LOGPROBS, LOGPROBS, tensor("float32", [2], "f", 0.5, 0.25), 0, 7,
    [{"type": 1, "timestamp": 0.5}], {"k": 1}, None, None, {"num_cached_tokens": 4}, None, 0, None,
]  # fmt: skip
POSITIONS = [PositionLogprobs([5, 6], [-0.5, -1.0], 1)]
# How many leading elements each attribute needs.
SET_AT = {
    "logprobs": (3, POSITIONS), "prompt_logprobs": (4, POSITIONS), "pooled": (5, [0.5, 0.25]),
    "finish_reason": (6, FinishReason.STOP), "stop_reason": (7, 7), "kv_transfer_params": (9, {"k": 1}),
    "cached_tokens": (12, 4),
}  # fmt: skip


def decode(*batch: Any, auxiliary: tuple[bytes, ...] = ()) -> EngineBatch:
    return decode_outputs([msgpack.packb(list(batch)), *auxiliary])


def one(output: list[Any]) -> GenerationOutput:
    ((_, decoded),) = decode(0, [output]).outputs
    return decoded


@given(st.integers(2, len(FULL)), st.lists(st.none() | st.integers(-(1 << 63), 1 << 63) | st.just([1]), max_size=4))
def test_an_output_may_be_cut_anywhere_and_grow_at_its_end(length: int, tail: list[Any]) -> None:
    whole = length == len(FULL)
    decoded = one(FULL[:length] + (tail if whole else []))
    expected = GenerationOutput([5])
    for name, (needed, value) in SET_AT.items():
        if length >= needed:
            setattr(expected, name, value)
    assert decoded == expected


@given(st.integers(0, 9), st.lists(st.text(max_size=3) | st.integers(0, 9), max_size=3))
def test_a_batch_may_be_cut_anywhere_and_grow_at_its_end(length: int, tail: list[Any]) -> None:
    stats = {"num_running_reqs": 1, "num_waiting_reqs": 2, "kv_cache_usage": 0.5, "new": 1}
    batch = [3, [["r", [1]]], stats, 1.5, [9, None, [None, True], "new"], ["r"], 4, 5, "default"]
    decoded = decode(*batch[:length], *(tail if length == 9 else ()))
    assert decoded.rank == (3 if length > 0 else 0)
    assert len(decoded.outputs) == (1 if length > 1 else 0)
    assert decoded.load == (EngineLoad(1, 2, 0.5) if length > 2 else None)
    assert (decoded.utility is not None) == (length > 4)
    assert decoded.finished_request_ids == (("r",) if length > 5 else ())
    assert (decoded.wave_complete, decoded.start_wave) == (
        4 if length > 6 else None,
        5 if length > 7 else None,
    )


@pytest.mark.parametrize("elements", [2, 3, 4, 5, 6])
def test_logprobs_of_every_length_are_read(elements: int) -> None:
    value = [*LOGPROBS, "new", "new"][:elements]
    expected = [PositionLogprobs([5, 6], [-0.5, -1.0], 1 if elements > 2 else 0)]
    assert one(["r", [5], value]).logprobs == expected
    assert one(["r", [5], None, value]).prompt_logprobs == expected


def test_the_plain_way_and_the_full_way_agree() -> None:
    plain = ["r", [1, 2], *[None] * 11, 0, *[None] * 4]
    assert one(plain) == one(["r", [1, 2]]) == GenerationOutput([1, 2])
    nans = list(plain)
    nans[13] = 3
    assert one(nans) == GenerationOutput([1, 2])
    # Three values that are set, but not the three of a token-only output.
    finished = list(plain)
    finished[13], finished[5] = None, 0
    assert one(finished).finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (0, FinishReason.STOP), (1, FinishReason.LENGTH), (2, FinishReason.ABORT), (3, FinishReason.ERROR),
        (4, FinishReason.REPETITION), (5, FinishReason.STOP), (-1, FinishReason.STOP),
        ("length", FinishReason.STOP), ([1], FinishReason.STOP),
    ],
)  # fmt: skip
def test_an_unknown_finish_reason_still_ends_the_request(wire: Any, reason: FinishReason) -> None:
    assert one(["r", [], None, None, None, wire]).finish_reason is reason


def test_an_engines_words_about_an_error_are_kept() -> None:
    missed = [None] * 6 + [0, ["h1", "h2"]]
    lost = one(["r", [], None, None, None, 3, None, *missed]).error
    assert lost is not None
    assert (lost.code, lost.retryable) == ("mm_cache_miss", True)
    assert one(["r", [], None, None, None, 3, "boom"]).error == EngineError("boom")
    assert one(["r", [], None, None, None, 3]).error is None
    assert one(["r", [], None, None, None, 0, "word"]).error is None


def _said(value: Any) -> EngineError | None:
    return one(["r", [], None, None, None, 3, *[None] * 7, 0, None, None, None, None, value]).error


def test_the_engine_s_own_error_is_read_where_it_stands_since_0_33() -> None:
    paused = {"code": "engine_paused", "message": "Generation is paused.", "retryable": True}
    assert _said(paused) == EngineError("Generation is paused.", "engine_paused", retryable=True)
    assert _said({"code": "validation_error", "message": "no"}) == EngineError("no", "validation_error")
    assert _said({"message": "no", "of_a_later_version": 1}) == EngineError("no")
    assert _said({"code": 7, "message": "no", "retryable": 1}) == EngineError("no")


@pytest.mark.parametrize("value", [None, 7, "unknown field", [], {}, {"message": 7}, {"code": "x"}])
def test_what_stands_there_in_other_versions_is_no_error(value: Any) -> None:
    assert _said(value) is None


def test_prompt_logprobs_of_a_one_token_prompt_are_no_positions() -> None:
    empty = [tensor("int32", [0, 2], "i"), tensor("float32", [0, 2], "f"), tensor("int32", [0], "i")]
    assert one(["r", [5], None, empty]).prompt_logprobs == []


@pytest.mark.parametrize(
    "outputs",
    [
        [["r"]], [[]], [["r", 5]], [[5, [1]]], [{"r": 1}], ["r"], [5], "r", 7,
        [["r", [1], [1, 2, 3]]], [["r", [1], [*LOGPROBS[:2], tensor("<i8", [2], "q", 1, 2)]]],
        [["r", [1], [LOGPROBS[0], tensor("<f4", [1, 1], "f", -0.5)]]],
        [["r", [1], [LOGPROBS[1], LOGPROBS[1]]]],
        [["r", [1], None, None, "pooled"]], [["r", [1], None, None, None, 0, None, None, "params"]],
        [["r", [1], *[None] * 9, "stats"]],
    ],
)  # fmt: skip
def test_a_message_with_one_broken_output_is_a_violation(outputs: Any) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode(0, outputs)
    assert caught.value.stage == "output"


@pytest.mark.parametrize(
    "batch",
    [
        ["0"], [0, [], []], [0, [], {"num_running_reqs": "1"}], [0, [], {"kv_cache_usage": None}],
        [0, [], None, 0.0, []], [0, [], None, 0.0, ["x"]], [0, [], None, 0.0, None, [1]],
        [0, [], None, 0.0, None, "ids"], [0, [], None, 0.0, None, None, "w"],
        [0, [], None, 0.0, None, None, None, 1.5],
    ],
)  # fmt: skip
def test_a_message_with_a_broken_notice_is_a_violation(batch: list[Any]) -> None:
    with pytest.raises(ProtocolViolation):
        decode(*batch)


def test_a_message_that_is_no_array_or_has_no_frame_is_a_violation() -> None:
    for frames in ([], [b""], [msgpack.packb({"a": 1})], [b"ENGINE_CORE_DEAD!"]):
        with pytest.raises(ProtocolViolation):
            decode_outputs(frames)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=5), st.lists(st.integers(0, 1 << 31), max_size=3)), max_size=8))
def test_outputs_keep_their_order_and_tokens(pairs: list[tuple[str, list[int]]]) -> None:
    wire = [[request_id, ids, *[None] * 11, 0, *[None] * 4] for request_id, ids in pairs]
    decoded = [(request_id, output.token_ids) for request_id, output in decode(0, wire).outputs]
    assert decoded == pairs
