"""vLLM output messages (``EngineCoreOutputs``) to `EngineBatch`.

Runs once per engine step over every running request, so an output that holds nothing but new tokens
takes a short way: one C call decides it, one object is made. New token ids are not looked at one by
one; they are what the engine says they are.

Mirrors vLLM 0.32.0's `vllm/v1/engine/__init__.py` (``EngineCoreOutputs``, ``EngineCoreOutput``, ``UtilityOutput``,
``FinishReason``), `vllm/v1/outputs.py` (``LogprobsLists``) and `vllm/v1/metrics/stats.py` (``SchedulerStats``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from smg_trio.core.errors import ProtocolViolation
from smg_trio.core.outputs import (
    EngineBatch,
    EngineError,
    FinishReason,
    GenerationOutput,
    PositionLogprobs,
    UtilityReply,
)
from smg_trio.wire.packing import MALFORMED, Malformed, describe, expect_map, unpack
from smg_trio.wire.tensors import decode_rows, decode_tensor
from smg_trio.wire.vllm.statistics import note_events, note_statistics

# Positions in EngineCoreOutputs.
_ENGINE_INDEX, _OUTPUTS, _STATS, _UTILITY, _FINISHED, _WAVE_COMPLETE, _START_WAVE = 0, 1, 2, 4, 5, 6, 7
_BATCH_LENGTH: Final = 8
# Positions in EngineCoreOutput.
_NEW_LOGPROBS, _PROMPT_LOGPROBS, _POOLING, _FINISH, _STOP, _EVENTS, _KV_PARAMS = 2, 3, 4, 5, 6, 7, 8
_PREFILL, _NANS, _MM_MISS, _ERROR = 11, 13, 14, 18
_OUTPUT_LENGTH: Final = 19
# What a token-only output holds besides nil: id, tokens and the zero of num_nans_in_logits.
_PLAIN_VALUES: Final = 3

_FINISH_REASONS: Final = {
    0: FinishReason.STOP,
    1: FinishReason.LENGTH,
    2: FinishReason.ABORT,
    3: FinishReason.ERROR,
    4: FinishReason.REPETITION,
}


def decode_outputs(frames: Sequence[bytes]) -> EngineBatch:
    """Decode one output message: the payload frame, then auxiliary tensor frames.

    Raises:
        ProtocolViolation: "output": the message does not follow the protocol; nothing of it is used.
    """
    try:
        message = unpack(frames[0])
        if type(message) is not list:
            raise Malformed("output message is not an array")
        return _batch(message, frames)
    except MALFORMED as error:
        raise ProtocolViolation("output", describe(error)) from None


def _batch(message: list[Any], frames: Sequence[bytes]) -> EngineBatch:
    missing = _BATCH_LENGTH - len(message)
    if missing > 0:
        message += [None] * missing
    batch = EngineBatch(message[_ENGINE_INDEX] or 0)
    batch.outputs = _outputs(message[_OUTPUTS] or (), frames, batch)
    if type(batch.rank) is not int:
        raise Malformed("engine index is not an integer")
    if message[_STATS] is not None:
        note_statistics(batch, message[_STATS])
    # All four are nil in nearly every message: one C call says so.
    if message[_UTILITY:_BATCH_LENGTH] != _NO_NOTICES:
        _set_notices(batch, message)
    return batch


_MAX_WAVE: Final = 1 << 62
"""What is sent back is a little more, and has to fit into 64 bits."""
_NO_NOTICES: Final = [None] * (_BATCH_LENGTH - _UTILITY)


def _outputs(items: Sequence[Any], frames: Sequence[bytes], batch: EngineBatch) -> list[tuple[str, GenerationOutput]]:
    outputs: list[tuple[str, GenerationOutput]] = []
    append = outputs.append
    for item in items:
        request_id = item[0]
        token_ids = item[1]
        if type(request_id) is not str or type(token_ids) is not list:
            raise Malformed("output without a request id and token ids")
        output = GenerationOutput(token_ids)
        if item.count(None) != len(item) - _PLAIN_VALUES or len(item) <= _NANS or item[_NANS] is None:
            _fill(output, item, frames)
            if item[_EVENTS] is not None:
                note_events(batch, request_id, item[_EVENTS])
        append((request_id, output))
    return outputs


def _fill(output: GenerationOutput, item: list[Any], frames: Sequence[bytes]) -> None:
    """Set everything beside the token ids."""
    missing = _OUTPUT_LENGTH - len(item)
    if missing > 0:
        item += [None] * missing
    if item[_NEW_LOGPROBS] is not None:
        output.logprobs = _positions(item[_NEW_LOGPROBS], frames)
    if item[_PROMPT_LOGPROBS] is not None:
        output.prompt_logprobs = _positions(item[_PROMPT_LOGPROBS], frames)
    if item[_POOLING] is not None:
        output.pooled = [float(value) for value in decode_tensor(item[_POOLING], frames)[1]]
    if item[_KV_PARAMS] is not None:
        output.kv_transfer_params = expect_map(item[_KV_PARAMS])
    if item[_PREFILL] is not None:
        cached = expect_map(item[_PREFILL]).get("num_cached_tokens")
        output.cached_tokens = cached if type(cached) is int else None
    if item[_FINISH] is not None:
        _finish(output, item)


def _finish(output: GenerationOutput, item: list[Any]) -> None:
    # A reason this version does not know still ends the request; it must not fail the others.
    reason = item[_FINISH]
    output.finish_reason = _FINISH_REASONS.get(reason, FinishReason.STOP) if type(reason) is int else FinishReason.STOP
    stop = item[_STOP]
    output.stop_reason = stop if isinstance(stop, (int, str)) else None
    if output.finish_reason is FinishReason.ERROR:
        output.error = _error(item)


def _error(item: list[Any]) -> EngineError | None:
    """The engine's words: since 0.33 a map ``{code, message, retryable}`` (``RequestError``), before only hints."""
    said, missing_hashes, stop = item[_ERROR], item[_MM_MISS], item[_STOP]
    if type(said) is dict and isinstance(said.get("message"), str):
        code = said.get("code")
        return EngineError(said["message"], code if isinstance(code, str) else "", said.get("retryable") is True)
    if type(missing_hashes) is list and missing_hashes:
        # Sent again, with its data, the request can be answered.
        return EngineError("The engine no longer has media of this request.", "mm_cache_miss", retryable=True)
    return EngineError(stop) if isinstance(stop, str) else None


def _positions(value: Any, frames: Sequence[bytes]) -> list[PositionLogprobs]:
    """Decode ``[ids, logprobs, ranks, …]``; 0.27.1 sends 4 elements, newer ones 4 or 5."""
    if type(value) is not list or len(value) < 2:
        raise Malformed("logprobs are not an array of tensors")
    token_ids = decode_rows(value[0], frames)
    logprobs = decode_rows(value[1], frames)
    ranks = decode_tensor(value[2], frames)[1] if len(value) > 2 and value[2] is not None else None
    if ranks is None:
        ranks = [0] * len(token_ids)
    if not len(token_ids) == len(logprobs) == len(ranks):
        raise Malformed("logprob tensors differ in their number of rows")
    if token_ids and len(token_ids[0]) != len(logprobs[0]):
        raise Malformed("logprob tensors differ in their number of columns")
    # One element speaks for the tensor: it has one dtype.
    if token_ids and type(token_ids[0][0]) is not int:
        raise Malformed("logprob token ids are not integers")
    return list(map(PositionLogprobs, token_ids, logprobs, ranks))


def _set_notices(batch: EngineBatch, message: list[Any]) -> None:
    if message[_UTILITY] is not None:
        batch.utility = _utility(message[_UTILITY])
    if message[_FINISHED] is not None:
        batch.finished_request_ids = _request_ids(message[_FINISHED])
    batch.wave_complete = _wave(message[_WAVE_COMPLETE])
    batch.start_wave = _wave(message[_START_WAVE])


def _utility(value: Any) -> UtilityReply:
    """Decode ``[call_id, failure, result]`` where result is ``[type info, value]``."""
    if type(value) is not list or not value or type(value[0]) is not int:
        raise Malformed("utility reply without a call id")
    failure = value[1] if len(value) > 1 else None
    result = value[2] if len(value) > 2 else None
    if type(result) is list:
        result = result[1] if len(result) > 1 else None
    return UtilityReply(value[0], None if failure is None else str(failure), result)


def _request_ids(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(request_id) is str for request_id in value):
        raise Malformed("finished requests are not request ids")
    return tuple(value)


def _wave(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value <= _MAX_WAVE):
        raise Malformed("wave number is not a number of waves")
    return value
