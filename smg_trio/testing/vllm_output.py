"""Output messages of vLLM's wire (0.27.1, 0.32.0 and 0.33.0), encoded by concatenation. Pure.

The hot path is one token for each of many sequences per step: a sequence's output is then its pre-encoded head,
the token and a constant tail, and the statistics are a template with five holes.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.testing import tensors

if TYPE_CHECKING:
    from smg_trio.testing.messages import Message
    from smg_trio.testing.options import EngineOptions
    from smg_trio.testing.sequences import Load, RunningSequence

FINISH_CODES = {
    FinishReason.STOP: 0,
    FinishReason.LENGTH: 1,
    FinishReason.ABORT: 2,
    FinishReason.ERROR: 3,
    FinishReason.REPETITION: 4,
}

_NIL = b"\xc0"
_FLOAT = struct.Struct(">Bd")
_UNKNOWN = "field of a newer engine"


class VllmOutputs:
    """Encodes `EngineCoreOutputs` of one engine."""

    def __init__(self, options: EngineOptions) -> None:
        old = not options.is_since(0, 32)
        self._since_033 = options.is_since(0, 33)
        self._options = options
        self._pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
        self._output_fields = 14 if old else 19 if self._since_033 else 18
        self._prompt_elements = 4 if old else 5
        extra = [_UNKNOWN] * options.extra_fields
        self._plain_tail = self._packed([None] * 11 + [0] + [None] * (self._output_fields - 14) + extra)
        self._output_size = self._output_fields + len(extra)
        batch_size = (8 if old else 9) + len(extra)
        self._batch_head = self._array_head(batch_size) + self._pack(options.rank)
        weights = [] if old else ["default"]
        self._step_tail = self._packed([None, None, None, None, *weights, *extra])
        self._weights_and_extra = self._packed([*([] if old else [None]), *extra])
        self._stats_parts = _stats_template(old=old)
        self._tokens: dict[int, bytes] = {}

    def step(self, saying: Sequence[RunningSequence], load: Load | None, now: float) -> Message:
        """One message with all outputs of a step for one front; without load, one without statistics."""
        frames = tensors.Frames()
        parts = [self._batch_head, self._array_head(len(saying))]
        tokens, tail = self._tokens, self._plain_tail
        for sequence in saying:
            ids = sequence.token_ids
            if sequence.head and sequence.plain and sequence.finish is None and len(ids) == 1:
                token = ids[0]
                parts.append(sequence.head)
                parts.append(tokens.get(token) or self._token(token))
                parts.append(tail)
            else:
                parts.append(self._output(sequence, frames, now))
        self._close(parts, load, now)
        return [b"".join(parts), *frames.aux]

    def idle(self, load: Load, now: float) -> Message | None:
        """The statistics-only message; None with statistics off."""
        if not self._options.stats:
            return None
        parts = [self._batch_head, b"\x90"]
        self._close(parts, load, now)
        return [b"".join(parts)]

    def ended(
        self,
        request_ids: Sequence[str],
        reason: FinishReason,
        now: float,
        error: EngineError | None = None,
        missing: Sequence[str] = (),
    ) -> Message:
        """Finishes without tokens and without statistics; the ids are named a second time.

        ``missing``: cache keys of media that came without data and are not there.
        """
        parts = [self._batch_head, self._array_head(len(request_ids))]
        middle: list[Any] = [[], None, None, None, FINISH_CODES[reason], *[None] * 7, 0]
        last = self._last_fields(error)
        if missing and self._output_fields > 14:
            last[0] = list(missing)
        rest = [*middle, *last]
        for request_id in request_ids:
            parts += [self._array_head(self._output_size), self._pack(request_id), self._packed(rest)]
        parts.append(self._packed([None, now, None, list(request_ids), None, None]))
        parts.append(self._weights_and_extra)
        return [b"".join(parts)]

    def utility(self, call_id: int, failure: str | None, result: Any, now: float) -> Message:
        """A utility reply; the result is wrapped as [type info = nil, value]."""
        wrapped = None if failure is not None else [None, result]
        return [self._notice([None, now, [call_id, failure, wrapped], None, None, None])]

    def wave_complete(self, wave: int, now: float) -> Message:
        """The lockstep pause notice."""
        return [self._notice([None, now, None, None, wave, None])]

    def _notice(self, fields: Sequence[Any]) -> bytes:
        return b"".join((self._batch_head, b"\x90", self._packed(fields), self._weights_and_extra))

    def _close(self, parts: list[bytes], load: Load | None, now: float) -> None:
        if self._options.stats and load is not None:
            self._stats(parts, load)
        else:
            parts.append(_NIL)
        parts.append(_FLOAT.pack(0xCB, now))
        parts.append(self._step_tail)

    def _stats(self, parts: list[bytes], load: Load) -> None:
        pack, texts = self._pack, self._stats_parts
        values = (
            pack(load.running),
            pack(load.waiting),
            _FLOAT.pack(0xCB, load.kv_usage),
            pack(load.prefix_requests),
            pack(load.prefix_queries),
            pack(load.prefix_hits),
        )
        for text, value in zip(texts, values, strict=False):
            parts.append(text)
            parts.append(value)
        parts.append(texts[-1])

    def _token(self, token: int) -> bytes:
        packed: bytes = self._pack(token)
        encoded = self._tokens[token] = b"\x91" + packed
        return encoded

    def _output(self, sequence: RunningSequence, frames: tensors.Frames, now: float) -> bytes:
        """One output, whatever it carries."""
        if not sequence.head:
            sequence.head = self._array_head(self._output_size) + self._pack(sequence.request.request_id)
        ids = list(sequence.token_ids)
        finish = None if sequence.finish is None else FINISH_CODES[sequence.finish]
        fields = [
            ids,
            self._sample_logprobs(sequence, frames),
            self._prompt_logprobs(sequence, frames),
            self._pooled(sequence, frames),
            finish,
            sequence.stop_reason,
            self._events(sequence) if sequence.first and self._options.stats else None,
            self._kv_transfer(sequence),
            None,
            None,
            self._prefill(sequence) if sequence.first else None,
            None,
            0,
            *self._last_fields(sequence.error),
        ]
        return sequence.head + self._packed(fields)

    def _last_fields(self, error: EngineError | None) -> list[Any]:
        """What follows the 14 fields that all versions have."""
        fields: list[Any] = [None] * (self._output_fields - 14)
        if self._since_033 and error is not None:
            fields[-1] = {"code": error.code, "message": error.message, "retryable": error.retryable}
        return fields + [_UNKNOWN] * self._options.extra_fields

    def _sample_logprobs(self, sequence: RunningSequence, frames: tensors.Frames) -> list[Any] | None:
        count, chosen = sequence.request.logprobs, sequence.request.sampling.get("logprob_token_ids")
        if not sequence.token_ids:
            return None
        if chosen:
            return tensors.chosen_logprobs(frames, sequence.token_ids, chosen)
        if count is None:
            return None
        return tensors.sample_logprobs(frames, sequence.token_ids, count, self._options.vocab_size)

    def _prompt_logprobs(self, sequence: RunningSequence, frames: tensors.Frames) -> list[Any] | None:
        count, prompt = sequence.request.prompt_logprobs, sequence.request.prompt_token_ids
        if count is None or not sequence.first or len(prompt) < 2:
            return None
        vocab_size, elements = self._options.vocab_size, self._prompt_elements
        return tensors.prompt_logprobs(frames, prompt, count, vocab_size, elements=elements)

    def _pooled(self, sequence: RunningSequence, frames: tensors.Frames) -> list[Any] | None:
        pooling, prompt = sequence.request.pooling, sequence.request.prompt_token_ids
        if pooling is None:
            return None
        size = pooling.get("dimensions") or self._options.embedding_size
        if str(pooling.get("task")).startswith("token_"):
            # One vector per token, or per chunk of so many: made of the chunk's tokens as of a prompt's.
            (length,) = (pooling.get("late_chunking_params") or [1]) if self._since_033 else [1]
            chunks = [prompt[start : start + length] for start in range(0, len(prompt), length)]
            rows = b"".join([embedding(chunk, size).tobytes() for chunk in chunks])
            return frames.tensor("float32", (len(chunks), size), rows)
        if pooling.get("task") == "classify":
            size = self._options.class_count
        vector = embedding(prompt, size)
        return frames.tensor("float32", (size,), vector.tobytes())

    def _kv_transfer(self, sequence: RunningSequence) -> Any:
        if sequence.finish is None:
            return None
        return (sequence.request.sampling.get("extra_args") or {}).get("kv_transfer_params")

    def _events(self, sequence: RunningSequence) -> list[dict[str, Any]]:
        return [
            {"type": 1, "timestamp": sequence.queued_at},
            {"type": 2, "timestamp": sequence.scheduled_at},
        ]

    def _prefill(self, sequence: RunningSequence) -> dict[str, int]:
        prompt, cached = len(sequence.request.prompt_token_ids), sequence.cached_tokens
        return {
            "num_prompt_tokens": prompt,
            "num_computed_tokens": prompt - cached,
            "num_cached_tokens": cached,
            "num_local_cached_tokens": cached,
            "num_external_cached_tokens": 0,
            "num_cache_creation_tokens": 0,
        }

    def _packed(self, values: Sequence[Any]) -> bytes:
        """The values one after the other, without an array header."""
        return b"".join([self._pack(value) for value in values])

    @staticmethod
    def _array_head(size: int) -> bytes:
        if size < 16:
            return bytes((0x90 | size,))
        return struct.pack(">BH", 0xDC, size) if size < 65536 else struct.pack(">BI", 0xDD, size)


def embedding(prompt: Sequence[int], size: int) -> array[float]:
    """A unit vector that depends on the prompt: float32[size]."""
    seed = sum((i + 1) * token for i, token in enumerate(prompt)) + 1
    values = [math.sin(seed * (i + 1)) for i in range(size)]
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return array("f", [value / norm for value in values])


_HOLES = (0x7001, 0x7002, 0x7003, 0x7004, 0x7005, 0x7006)


def _stats_template(*, old: bool) -> list[bytes]:
    """The statistics map cut at its holes: running, waiting, kv usage, prefix requests, queries, hits."""
    running, waiting, usage, requests, queries, hits = _HOLES
    prefix: dict[str, Any] = {"reset": False, "requests": requests, "queries": queries, "hits": hits}
    prefix |= {"preempted_requests": 0, "preempted_queries": 0, "preempted_hits": 0}
    prefix |= {} if old else {"hits_by_source": {}}
    stages = {"waiting_to_start": 0, "in_progress": 0, "completed_waiting": 0}
    stats: dict[str, Any] = {"num_running_reqs": running, "num_waiting_reqs": waiting}
    stats |= {"num_skipped_waiting_reqs": 0}
    stats |= {} if old else {"num_kv_fetch_reqs_by_stage": stages}
    stats |= {"step_counter": 0, "current_wave": 0, "kv_cache_usage": usage, "iteration_details": None}
    stats |= {"prefix_cache_stats": prefix, "connector_prefix_cache_stats": None}
    stats |= {"kv_cache_eviction_events": [], "spec_decoding_stats": None, "kv_connector_stats": None}
    stats |= {} if old else {"ec_connector_stats": None}
    stats |= {"waiting_lora_adapters": {}, "running_lora_adapters": {}}
    stats |= {"cudagraph_stats": None, "perf_stats": None}
    rest, parts = msgpack.packb(stats), []
    for hole in _HOLES:
        before, rest = rest.split(msgpack.packb(hole), 1)
        parts.append(before)
    return [*parts, rest]
