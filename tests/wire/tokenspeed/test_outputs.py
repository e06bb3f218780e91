"""TokenSpeed outputs beyond the golden vectors."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.engines import EngineLoad
from smg_trio.core.errors import ProtocolViolation
from smg_trio.core.outputs import EngineBatch, FinishReason, GenerationOutput, PositionLogprobs
from smg_trio.wire.tokenspeed.outputs import decode_outputs

FULL = [
    "BatchTokenIDOutSlim", ["a", "b"], [[1, 2], []], ["", "abort"], [3, 3], [2, 0], [1, 0],
    [[-0.5, -1.0], []], [[1, 2], []], 1, 2, 5, 100, 400,
]  # fmt: skip


def decode(message: list[Any]) -> EngineBatch:
    return decode_outputs([msgpack.packb(message)])


@given(st.integers(4, 14), st.lists(st.integers(-(1 << 63), 1 << 63) | st.none(), max_size=3))
def test_a_message_may_be_cut_and_grow_at_its_end(length: int, tail: list[Any]) -> None:
    batch = decode(FULL[:length] + (tail if length == 14 else []))
    (first_id, first), (second_id, second) = batch.outputs
    assert (first_id, second_id) == ("a", "b")
    logprobs = [PositionLogprobs([1], [-0.5]), PositionLogprobs([2], [-1.0])]
    assert first == GenerationOutput(
        [1, 2], cached_tokens=1 if length > 6 else None, logprobs=logprobs if length > 8 else None
    )
    assert (second.token_ids, second.finish_reason) == ([], FinishReason.ABORT)
    assert batch.rank == (1 if length > 9 else 0)
    assert batch.load == (EngineLoad(2, 5, 0.25) if length > 13 else None)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("", None), (None, None), ("stop", FinishReason.STOP), ("length", FinishReason.LENGTH),
        ("abort", FinishReason.ABORT), ("error", FinishReason.ERROR), ("other", FinishReason.STOP),
    ],
)  # fmt: skip
def test_an_unknown_finish_reason_still_ends_the_request(word: str | None, reason: FinishReason | None) -> None:
    ((_, output),) = decode(["BatchTokenIDOutSlim", ["a"], [[1]], [word]]).outputs
    assert output.finish_reason is reason


def test_no_pages_at_all_is_no_load_report() -> None:
    assert decode([*FULL[:10], 2, 5, 0, 0]).load is None


@pytest.mark.parametrize(
    "message",
    [
        [], ["BatchTokenIDOutSlim"], ["Other", *FULL[1:]], ["BatchTokenIDOutSlim", ["a"], [], [""]],
        ["BatchTokenIDOutSlim", ["a"], [5], [""]], ["BatchTokenIDOutSlim", [5], [[1]], [""]],
        ["BatchTokenIDOutSlim", ["a"], [[1]], [["stop"]]], [*FULL[:7], 5, 5], [*FULL[:9], "rank"],
        [*FULL[:7], [[-0.5], []], [[1, 2], []]], [*FULL[:10], "x", 5, 100, 400],
    ],
)  # fmt: skip
def test_a_broken_message_is_a_violation(message: list[Any]) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode(message)
    assert caught.value.stage == "output"
