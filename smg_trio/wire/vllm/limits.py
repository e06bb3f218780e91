"""What a request to vLLM may hold, beyond the rules both engines share.

Three sources: what ``SamplingParams`` checks while it is decoded (a failure there makes the engine
deaf), what vLLM's own front end checks and the engine core does not, and the fixed table sizes of the
0.32 model runner, which raises in the middle of a step (and so ends the engine) when they overflow.

They stand in `vllm/sampling_params.py` (``SamplingParams.__post_init__``, ``_verify_args``) and below
`vllm/v1/worker/gpu/sample/` of vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.core.tensors import TensorValue
from smg_trio.wire import limits
from smg_trio.wire.vllm.media_check import check_media

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.requests import (
        GenerationRequest,
        LoraAdapter,
        PoolingParams,
        RepetitionDetection,
        SamplingParams,
        StructuredOutput,
    )

BACKENDS: Final = frozenset({"xgrammar", "guidance", "outlines", "lm-format-enforcer"})
"""Grammar backends by their wire name; ``auto`` must be resolved before the wire."""
POOLING_TASKS: Final = frozenset(
    {"embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"}
)
MAX_LOGPROB_TOKEN_IDS: Final = 128
MAX_ALLOWED_TOKEN_IDS: Final = 1024
MAX_LOGIT_BIAS: Final = 1024
MAX_MASKED_STOP_IDS: Final = 128
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_TOKENS: Final = 1024
_MAX_PATTERN: Final = 1 << 31
_LORA_FLAG_SINCE: Final = (0, 32)
_LATE_CHUNKING_SINCE: Final = (0, 33)


def check_request(request: GenerationRequest, info: EngineInfo, vocab_size: int | None, max_logprobs: int) -> None:
    """Apply every rule. Raises InvalidRequest, ContextLengthExceeded, UnsupportedFeature, MediaMismatch."""
    limits.envelope(request)
    _check_extra(request)
    prompt_tokens = _prompt_length(request, vocab_size)
    if request.sampling is not None:
        check_sampling(request.sampling, vocab_size, max_logprobs)
        limits.context_length(prompt_tokens, request.sampling.max_tokens, info.max_model_len, room=1)
    elif request.pooling is not None:
        _check_pooling(request.pooling, info)
        limits.context_length(prompt_tokens, 0, info.max_model_len, room=0)
    if request.lora is not None:
        _check_lora(request.lora, info)
    _check_metadata(request)
    if request.media:
        check_media(request, info)


def check_sampling(sampling: SamplingParams, vocab_size: int | None, max_logprobs: int) -> None:
    """Apply every rule about sampling."""
    limits.lengths(sampling)
    limits.probabilities(sampling)
    limits.in_range(sampling.temperature, 0.0, 2.0, "temperature")
    _check_scalars(sampling)
    limits.stops(sampling, vocab_size)
    if sampling.min_tokens:
        masked = {*sampling.all_stop_token_ids, *sampling.stop_token_ids}
        _at_most(len(masked), MAX_MASKED_STOP_IDS, "stop_token_ids")
    _check_logprobs(sampling, vocab_size, max_logprobs)
    limits.logit_bias(sampling.logit_bias, vocab_size)
    _at_most(len(sampling.logit_bias or ()), MAX_LOGIT_BIAS, "logit_bias")
    _check_allowed(sampling.allowed_token_ids, vocab_size)
    _check_bad_words(sampling.bad_words_token_ids, vocab_size)
    if sampling.structured_output is not None:
        _check_structured(sampling.structured_output)
    if sampling.repetition_detection is not None:
        _check_repetition(sampling.repetition_detection)
    _check_extra_args(sampling.extra_args)
    for name, value in (sampling.extra_sampling or {}).items():
        _check_extra_sampling(name, value, vocab_size)


def _check_scalars(sampling: SamplingParams) -> None:
    limits.integer(sampling.top_k, "top_k", -1)
    if limits.number(sampling.repetition_penalty, "repetition_penalty") <= 0.0:
        raise InvalidRequest(
            f"repetition_penalty must be greater than zero, got {sampling.repetition_penalty}.",
            param="repetition_penalty",
        )
    if sampling.seed is not None:
        limits.integer(sampling.seed, "seed")
    limits.thinking_budget(sampling.thinking_token_budget)
    if sampling.skip_reading_prefix_cache is not None:
        limits.flag(sampling.skip_reading_prefix_cache, "skip_reading_prefix_cache")


def _check_logprobs(sampling: SamplingParams, vocab_size: int | None, cap: int) -> None:
    _check_logprob_count(sampling.logprobs, "logprobs", vocab_size, cap)
    _check_logprob_count(sampling.prompt_logprobs, "prompt_logprobs", vocab_size, cap)
    ids = sampling.logprob_token_ids
    if ids is None:
        return
    limits.ids_or_none(ids, vocab_size, "logprob_token_ids")
    _at_most(len(ids), MAX_LOGPROB_TOKEN_IDS, "logprob_token_ids")
    if sampling.logprobs is not None and sampling.logprobs != len(ids):
        raise InvalidRequest(
            "When both logprobs and logprob_token_ids are set, logprobs must equal the number of ids, "
            f"got {sampling.logprobs} and {len(ids)}.",
            param="logprob_token_ids",
        )


def _check_logprob_count(count: int | None, param: str, vocab_size: int | None, cap: int) -> None:
    if count is None:
        return
    limits.integer(count, param, -1)
    if cap == -1:
        cap = limits.INT64_MAX if vocab_size is None else vocab_size
    asked = vocab_size if count == -1 else count
    if count == -1 and vocab_size is None and cap < limits.INT64_MAX:
        raise InvalidRequest(f"{param} of the whole vocabulary is more than the {cap} allowed.", param=param)
    if asked is not None and asked > cap:
        raise InvalidRequest(f"Requested {param} of {asked}, which is greater than max allowed: {cap}", param=param)


def _check_allowed(ids: tuple[int, ...] | None, vocab_size: int | None) -> None:
    if ids is None:
        return
    limits.ids_or_none(ids, vocab_size, "allowed_token_ids")
    if not ids:
        raise InvalidRequest("allowed_token_ids must not be empty.", param="allowed_token_ids")
    _at_most(len(ids), MAX_ALLOWED_TOKEN_IDS, "allowed_token_ids")


def _check_bad_words(words: tuple[tuple[int, ...], ...] | None, vocab_size: int | None) -> None:
    if words is None:
        return
    limits.sequence(words, "bad_words")
    for word in words:
        limits.ids_or_none(word, vocab_size, "bad_words")
        if not word:
            raise InvalidRequest("bad_words must not hold an empty word.", param="bad_words")
    _at_most(len(words), MAX_BAD_WORDS, "bad_words")
    _at_most(sum(map(len, words)), MAX_BAD_WORD_TOKENS, "bad_words")


def _check_structured(constraint: StructuredOutput) -> None:
    limits.structured_output(constraint)
    if constraint.backend is not None and constraint.backend not in BACKENDS:
        raise InvalidRequest(
            f"Unknown structured output backend '{constraint.backend}'.",
            param=limits.structured_param(constraint),
        )


def _check_repetition(detection: RepetitionDetection) -> None:
    param = "repetition_detection"
    limits.integer(detection.max_pattern_size, param, 0, _MAX_PATTERN)
    limits.integer(detection.min_pattern_size, param, 0, _MAX_PATTERN)
    limits.integer(detection.min_count, param, 0, _MAX_PATTERN)
    if detection.min_pattern_size > detection.max_pattern_size:
        raise InvalidRequest("min_pattern_size must not exceed max_pattern_size.", param=param)
    if detection.max_pattern_size > 0 and detection.min_count < 2:
        raise InvalidRequest("min_count must be at least 2 to detect repetition.", param=param)


def _check_extra_args(extra: Mapping[str, Any] | None) -> None:
    if extra is None:
        return
    _expect_map(extra, "extra_args")
    limits.passed_through(extra, "extra_args")
    transfer = extra.get("kv_transfer_params")
    if transfer is not None:
        _expect_map(transfer, "kv_transfer_params")


def _check_extra_sampling(name: str, value: Any, vocab_size: int | None) -> None:
    check = _EXTRA_SAMPLING.get(name)
    if check is None:
        raise UnsupportedFeature(f"Sampling field '{name}' is not supported.", param=name)
    check(value, vocab_size)


def _check_trace(value: Any, vocab_size: int | None) -> None:
    limits.ids_or_none(value, vocab_size, "trace_decode_token_ids")
    if not value:
        raise InvalidRequest("trace_decode_token_ids must not be empty.", param="trace_decode_token_ids")


_EXTRA_SAMPLING: Final[dict[str, Callable[[Any, int | None], None]]] = {
    "watermarking": lambda value, _: limits.flag(value, "watermarking"),
    "routed_experts_prompt_start": lambda value, _: limits.integer(value, "routed_experts_prompt_start", 0),
    "trace_decode_token_ids": _check_trace,
}


def _check_pooling(pooling: PoolingParams, info: EngineInfo) -> None:
    # Whether the model supports the task only the engine knows (utility get_supported_tasks).
    if pooling.task not in POOLING_TASKS:
        raise InvalidRequest(f"Unknown pooling task '{pooling.task}'.", param="task")
    if pooling.dimensions is not None:
        limits.integer(pooling.dimensions, "dimensions", 1)
    if pooling.use_activation is not None:
        limits.flag(pooling.use_activation, "use_activation")
    if pooling.skip_reading_prefix_cache is not None:
        limits.flag(pooling.skip_reading_prefix_cache, "skip_reading_prefix_cache")
    if pooling.second_text_start is not None:
        limits.integer(pooling.second_text_start, "second_text_start", 0)
    if pooling.late_chunking is not None:
        _check_late_chunking(pooling, info)


def _check_late_chunking(pooling: PoolingParams, info: EngineInfo) -> None:
    # Older engines do not know the field, and would answer with a vector per token.
    if info.release < _LATE_CHUNKING_SINCE:
        raise UnsupportedFeature(
            f"Late chunking needs an engine of vLLM 0.33 or newer, not {info.engine_version or 'an older one'}.",
            param="late_chunking_params",
        )
    limits.integer(pooling.late_chunking, "late_chunking_params.chunk_size", 1)
    if pooling.task != "token_embed":
        raise InvalidRequest("Late chunking requires the task token_embed.", param="late_chunking_params")
    if pooling.skip_reading_prefix_cache is not True:
        raise InvalidRequest("Late chunking needs every token computed anew.", param="late_chunking_params")


def _check_lora(lora: LoraAdapter, info: EngineInfo) -> None:
    limits.integer(lora.adapter_id, "lora", 1)
    for value in (lora.name, lora.path, lora.base_model_name or "-"):
        limits.text(value, "lora")
        if not value:
            raise InvalidRequest("A LoRA adapter needs a name and a path.", param="lora")
    # Engines before 0.32 do not say whether they were started with LoRA.
    if not info.supports_lora and info.release >= _LORA_FLAG_SINCE:
        raise UnsupportedFeature("The engine was not started with LoRA support.", param="lora")


def _check_metadata(request: GenerationRequest) -> None:
    if request.reasoning_ended is not None:
        limits.flag(request.reasoning_ended, "reasoning_ended")
    if request.external_request_id is not None:
        limits.text(request.external_request_id, "request_id")
    for key, value in (request.trace_headers or {}).items():
        limits.text(key, "trace_headers")
        limits.text(value, "trace_headers")


def _prompt_length(request: GenerationRequest, vocab_size: int | None) -> int:
    embeds = request.extra.get("prompt_embeds")
    if embeds is None or request.prompt_token_ids:
        limits.prompt(request.prompt_token_ids, vocab_size)
    return max(len(request.prompt_token_ids), 0 if embeds is None else embeds.shape[0])


def _check_extra(request: GenerationRequest) -> None:
    for name, value in request.extra.items():
        match name:
            case "prompt_embeds":
                _check_tensor(value, name, dimensions=2)
            case "prompt_is_token_ids":
                limits.sequence(value, name)
                for item in value:
                    limits.flag(item, name)
            case "reasoning_parser_kwargs":
                _expect_map(value, name)
                limits.passed_through(value, name)
            case "session_id":
                limits.text(value, name)
            case _:
                raise UnsupportedFeature(f"Request field '{name}' is not supported.", param=name)


def _check_tensor(value: Any, param: str, dimensions: int) -> None:
    if not isinstance(value, TensorValue) or len(value.shape) != dimensions or 0 in value.shape:
        raise InvalidRequest(f"{param} must be a tensor of {dimensions} dimensions.", param=param)
    limits.tensor(value, param)


def _expect_map(value: Any, param: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{param} must be a map.", param=param)


def _at_most(count: int, limit: int, param: str) -> None:
    if count > limit:
        raise InvalidRequest(f"{param} holds {count} entries, more than the {limit} allowed.", param=param)
