"""vLLM's engine protocol from the engine's side: handshake, input and output messages. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.testing.commands import (
    Abort,
    Add,
    Command,
    EngineRequest,
    Fatal,
    Ignored,
    Malformed,
    StartWave,
    UtilityCall,
)
from smg_trio.testing.vllm_media import decode_features
from smg_trio.testing.vllm_output import VllmOutputs
from smg_trio.testing.vllm_request import CONSTRAINTS, Undecodable, decode_request, unpack

if TYPE_CHECKING:
    from smg_trio.testing.messages import Message
    from smg_trio.testing.options import EngineOptions
    from smg_trio.testing.sequences import Load, RunningSequence

_BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer")
_CONFIG_HASH = "5f" * 32


class VllmCodec:
    """The wire of one vLLM engine (0.27.1, 0.32.0 or 0.33.0 shapes)."""

    init_timeout_s = 300.0
    malformed_is_fatal = True

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._outputs = VllmOutputs(options)
        self._grammar = GrammarBackend()

    def hello(self) -> bytes:
        """HELLO: sent before the model is loaded; every headless engine says ``local`` False."""
        return _pack({"status": "HELLO", "local": False, "headless": True})

    def ready(self) -> bytes:
        """READY; only a lockstep rank adds a hash of its configuration."""
        message: dict[str, Any] = {"status": "READY", "local": False, "headless": True}
        if self._options.lockstep:
            message["parallel_config_hash"] = _CONFIG_HASH
        return _pack(message)

    def registration(self) -> bytes:
        """``EngineCoreReadyResponse`` with every key: vLLM's own API server decodes it typed."""
        return _pack(_registration(self._options))

    def addresses(self, init: bytes) -> tuple[list[str], list[str]]:
        """All input and output addresses. Raises ValueError for what a real engine cannot take."""
        message = msgpack.unpackb(init)
        if "parallel_config" not in message:
            raise ValueError("INIT without parallel_config")
        addresses = message["addresses"]
        return addresses["inputs"], addresses["outputs"]

    def decode(self, frames: Sequence[bytes], now: float) -> Command:
        """Decode ``[type, payload, aux…]``; bytes the real decoder rejects give `Malformed`."""
        try:
            return self._decode(frames, now)
        except Undecodable as error:
            return Malformed(str(error))

    def step(self, saying: Sequence[RunningSequence], load: Load | None, now: float) -> Message:
        """The one message of a step to a front."""
        return self._outputs.step(saying, load, now)

    def idle(self, load: Load, now: float) -> Message | None:
        """The trailing statistics message."""
        return self._outputs.idle(load, now)

    def ended(
        self,
        requests: Sequence[EngineRequest],
        reason: FinishReason,
        load: Load,
        now: float,
        error: EngineError | None = None,
        missing: Sequence[str] = (),
    ) -> Message:
        """Finish outputs outside a step; they carry no statistics."""
        if error is None and requests[0].failure is not None:
            error = EngineError(f"Invalid structured outputs: {requests[0].failure}", "validation_error")
        return self._outputs.ended([request.request_id for request in requests], reason, now, error, missing)

    def utility_reply(self, call_id: int, failure: str | None, result: Any, now: float) -> Message:
        """Answer to a utility call."""
        return self._outputs.utility(call_id, failure, result, now)

    def wave_complete(self, wave: int, now: float) -> Message:
        """Lockstep pause notice."""
        return self._outputs.wave_complete(wave, now)

    def _decode(self, frames: Sequence[bytes], now: float) -> Command:
        kind = frames[0] if frames else b""
        if kind == b"\x05":
            return Ignored()
        if len(frames) < 2 or kind not in (b"\x00", b"\x01", b"\x02", b"\x03", b"\x04"):
            raise Undecodable(f"unknown request type {kind.hex()!r} with {len(frames)} frames")
        payload = unpack(frames[1])
        if kind == b"\x00":
            return self._add(payload, frames[1:], now)
        if kind == b"\x04":
            return Fatal("Executor failed.")
        return _control(kind, payload)

    def _add(self, payload: Any, frames: Sequence[bytes], now: float) -> Command:
        fields = decode_request(payload)
        media = decode_features(fields["mm_features"], frames)
        fatal = self._fatal(fields)
        if fatal is not None:
            return Fatal(f"{fields['request_id']}: {fatal}")
        request = _request(fields, payload, now)
        request.failure = self._failure(request)
        request.media = media
        return Add(request)

    def _fatal(self, fields: Mapping[str, Any]) -> str | None:
        """Why the step loop would die of this request."""
        prompt = fields["prompt_token_ids"]
        if not prompt:
            return "empty prompt"
        pooling = fields["pooling_params"]
        if len(prompt) >= self._options.max_model_len + (pooling is not None):
            return f"prompt of {len(prompt)} tokens does not fit {self._options.max_model_len}"
        if not 0 <= min(prompt) <= max(prompt) < self._options.vocab_size:
            return "prompt token id outside the vocabulary"
        if pooling is not None:
            task = pooling.get("task")
            return None if task in self._options.supported_tasks else f"Unsupported task: {task!r}"
        if fields["sampling_params"] is None:
            return "neither sampling nor pooling parameters"
        return None if "generate" in self._options.supported_tasks else "the model pools and cannot generate"

    def _failure(self, request: EngineRequest) -> str | None:
        if request.pooling is not None:
            return None
        if request.max_tokens is None:
            return "max_tokens is missing"
        constraint = request.sampling.get("structured_outputs")
        return None if constraint is None else self._grammar.failure(constraint)


class GrammarBackend:
    """The one grammar backend of an engine: the first structured request settles which."""

    def __init__(self) -> None:
        self._name: str | None = None

    def failure(self, constraint: Mapping[str, Any]) -> str | None:
        """Why the constraint cannot be compiled, or None."""
        if self._name is None:
            if constraint.get("_backend") not in _BACKENDS:
                return f"Unsupported structured output backend: {constraint.get('_backend')}"
            self._name = constraint["_backend"]
        kind = next(kind for kind in CONSTRAINTS if constraint.get(kind) is not None)
        if kind == "choice" and self._name == "xgrammar":
            return "grammar is not of valid supported types. (choice)"
        return _compile_failure(kind, constraint[kind])


def _compile_failure(kind: str, value: Any) -> str | None:
    try:
        if kind == "regex":
            re.compile(value)
        elif kind in ("json", "structural_tag") and isinstance(value, str):
            json.loads(value)
        elif kind == "grammar" and not re.search(r"::=|:", value):
            return "no rule in the grammar"
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return None


def _control(kind: bytes, payload: Any) -> Command:
    """ABORT, START_DP_WAVE and UTILITY payloads; the step loop chokes on a wrong shape."""
    try:
        if kind == b"\x01":
            return Abort(tuple(str(request_id) for request_id in payload))
        if kind == b"\x02":
            wave, exclude = payload
            return StartWave(int(wave), int(exclude))
        client_index, call_id, method, args = payload
        return UtilityCall(int(call_id), str(method), tuple(args), int(client_index))
    except (TypeError, ValueError) as error:
        return Fatal(f"malformed control message: {error}")


def _request(fields: Mapping[str, Any], payload: Sequence[Any], now: float) -> EngineRequest:
    sampling = fields["sampling_params"] or {}
    stop = frozenset(sampling.get("stop_token_ids") or ())
    pooling = fields["pooling_params"]
    return EngineRequest(
        request_id=fields["request_id"],
        prompt_token_ids=fields["prompt_token_ids"],
        max_tokens=sampling.get("max_tokens", 16),
        min_tokens=sampling.get("min_tokens", 0),
        eos_token_id=sampling.get("_eos_token_id"),
        stop_token_ids=stop,
        masked_token_ids=stop | frozenset(sampling.get("_all_stop_token_ids") or ()),
        allowed_token_ids=tuple(sampling.get("allowed_token_ids") or ()),
        seed=sampling.get("seed"),
        logprobs=sampling.get("logprobs"),
        prompt_logprobs=sampling.get("prompt_logprobs"),
        priority=fields.get("priority", 0),
        wave=fields.get("current_wave", 0),
        client_index=fields.get("client_index", 0),
        cache_salt=fields["cache_salt"],
        skip_prefix_cache=bool(sampling.get("skip_reading_prefix_cache")),
        pooling=pooling,
        repetition=sampling.get("repetition_detection"),
        sampling=sampling,
        payload=payload,
        received_at=now,
    )


def _registration(options: EngineOptions) -> dict[str, Any]:
    tokens = options.num_gpu_blocks * options.block_size
    values: dict[str, Any] = {
        "max_model_len": options.max_model_len,
        "num_gpu_blocks": options.num_gpu_blocks,
        "block_size": options.block_size,
        "dp_stats_address": None,
        "dtype": "bfloat16",
        "vllm_version": options.engine_version,
        "world_size": 1,
        "data_parallel_size": options.group_size if options.lockstep else 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "data_parallel_rank": options.rank,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.batched_tokens,
        "instance_id": f"fake-engine-{options.rank}",
    }
    if options.is_since(0, 32):
        values |= {"supports_lora": options.supports_lora, "max_loras": 4 if options.supports_lora else 0}
        values |= {"mamba_block_size": None, "weight_transfer_backend": None, "enable_sleep_mode": True}
        values |= {"supports_draft_weight_updates": False, "effective_attention_block_size": options.block_size}
    values |= {"kv_cache_size_tokens": tokens, "kv_cache_max_concurrency": tokens / options.max_model_len}
    values |= {"kv_events_config": None}
    if options.is_since(0, 33):
        values |= {"coord_store_port": 0, "coordinator_input_address": None, "coordinator_output_address": None}
    return values


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed
