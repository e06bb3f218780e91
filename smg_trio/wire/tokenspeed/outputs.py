"""TokenSpeed output messages (``BatchTokenIDOutSlim``, one array per column) to `EngineBatch`.

0.1.0 sends 10 elements, older builds 9, 0.1.1 sends 14: the last four are the engine's load.

Mirrors TokenSpeed 0.1.1's `tokenspeed/runtime/engine/io_struct.py` (``BatchTokenIDOutSlim``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

from smg_trio.core.engines import EngineLoad
from smg_trio.core.errors import ProtocolViolation
from smg_trio.core.outputs import EngineBatch, FinishReason, GenerationOutput, PositionLogprobs
from smg_trio.wire.packing import MALFORMED, Malformed, describe, unpack

TAG: Final = "BatchTokenIDOutSlim"
_REQUIRED_LENGTH: Final = 4
_LENGTH: Final = 14
_ENGINE_INDEX: Final = 9

_FINISH_REASONS: Final[dict[Any, FinishReason | None]] = {
    "": None,
    None: None,
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ERROR,
}


def decode_outputs(frames: Sequence[bytes]) -> EngineBatch:
    """Decode one output message (a single frame; more are ignored).

    Raises:
        ProtocolViolation: "output": the message does not follow the protocol; nothing of it is used.
    """
    try:
        message = unpack(frames[0])
        if type(message) is not list or len(message) < _REQUIRED_LENGTH or message[0] != TAG:
            raise Malformed(f"output message is not a {TAG}")
        message += [None] * (_LENGTH - len(message))
        return _batch(message)
    except MALFORMED as error:
        raise ProtocolViolation("output", describe(error)) from None


def _batch(message: list[Any]) -> EngineBatch:
    rank = message[_ENGINE_INDEX] or 0
    if type(rank) is not int:
        raise Malformed("engine index is not an integer")
    return EngineBatch(rank, _outputs(message), _load(*message[10:_LENGTH]))


def _outputs(message: list[Any]) -> list[tuple[str, GenerationOutput]]:
    outputs: list[tuple[str, GenerationOutput]] = []
    rows = zip(message[1] or (), message[2], message[3], strict=True)
    for (request_id, token_ids, reason), cached, values, ids in zip(
        rows, _column(message[6]), _column(message[7]), _column(message[8]), strict=False
    ):
        if type(request_id) is not str or type(token_ids) is not list:
            raise Malformed("output without a request id and token ids")
        output = GenerationOutput(token_ids)
        if reason:
            # A reason this version does not know still ends the request.
            output.finish_reason = _FINISH_REASONS.get(reason, FinishReason.STOP)
        if type(cached) is int:
            output.cached_tokens = cached
        if values and ids is not None:
            output.logprobs = _logprobs(values, ids)
        outputs.append((request_id, output))
    return outputs


def _column(column: Any) -> Any:
    """An optional column, endless so that a short one costs its tail only."""
    if not column:
        return repeat(None)
    if type(column) is not list:
        raise Malformed("output column is not an array")
    return _padded(column)


def _padded(column: list[Any]) -> Any:
    yield from column
    yield from repeat(None)


def _logprobs(values: Any, ids: Any) -> list[PositionLogprobs]:
    # Only the sampled token has a logprob here, and no rank.
    if type(values) is not list or type(ids) is not list:
        raise Malformed("logprob columns are not arrays")
    return [PositionLogprobs([token_id], [float(value)]) for token_id, value in zip(ids, values, strict=True)]


def _load(running: Any, waiting: Any, active_pages: Any, total_pages: Any) -> EngineLoad | None:
    # No pages at all is how an engine says that it reports no load.
    if not total_pages:
        return None
    if not all(type(value) is int for value in (running, waiting, active_pages, total_pages)):
        raise Malformed("load report holds something other than integers")
    return EngineLoad(running, waiting, active_pages / total_pages)
