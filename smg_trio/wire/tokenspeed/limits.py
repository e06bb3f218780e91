"""What a request to TokenSpeed may hold, beyond the rules both engines share.

TokenSpeed survives a bad value, but answers it with an empty finish ``abort`` and no reason, so the
same values are refused here with one. What its wire cannot say is an unsupported feature, never
silently dropped; only hints (priority, trace headers) are.

Mirrors ``SamplingParams.verify`` of TokenSpeed 0.1.1's `tokenspeed/runtime/sampling/sampling_params.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.wire import limits

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.requests import GenerationRequest, SamplingParams

MAX_TOP_K: Final = 127
"""Largest `top_k` the sampler takes; off is a case of its own."""
_MAX_TEMPERATURE: Final = 1e6
# The engine keeps one more position than vLLM does: prompt_len < max_model_len - 1.
_ROOM: Final = 2
_BACKEND: Final = "xgrammar"
NO_MEDIA: Final = (
    "TokenSpeed engines take no images, video or audio over this protocol: their headless transport leaves out the "
    "step that would work them in. Serve the model with vLLM."
)


def check_request(request: GenerationRequest, info: EngineInfo, vocab_size: int | None) -> None:
    """Apply every rule. Raises InvalidRequest, ContextLengthExceeded, UnsupportedFeature."""
    limits.envelope(request)
    if request.sampling is None:
        raise UnsupportedFeature("TokenSpeed engines do not pool.", param="task")
    if request.media:
        raise UnsupportedFeature(NO_MEDIA, param="messages")
    _refuse_set(
        {
            "lora": request.lora,
            "cache_salt": request.cache_salt,
            **dict(request.extra),
        }
    )
    limits.prompt(request.prompt_token_ids, vocab_size)
    check_sampling(request.sampling, vocab_size)
    limits.context_length(len(request.prompt_token_ids), request.sampling.max_tokens, info.max_model_len, room=_ROOM)


def check_sampling(sampling: SamplingParams, vocab_size: int | None) -> None:
    """Apply every rule about sampling."""
    limits.lengths(sampling)
    limits.probabilities(sampling)
    limits.in_range(sampling.temperature, 0.0, _MAX_TEMPERATURE, "temperature")
    limits.in_range(sampling.repetition_penalty, 0.0, 2.0, "repetition_penalty")
    limits.integer(sampling.top_k, "top_k", -1)
    if sampling.top_k > MAX_TOP_K:
        raise InvalidRequest(f"top_k must be 0 (disable) or in [1, {MAX_TOP_K}], got {sampling.top_k}.", param="top_k")
    if sampling.seed is not None:
        limits.integer(sampling.seed, "seed", -1)
    limits.thinking_budget(sampling.thinking_token_budget)
    limits.stops(sampling, vocab_size)
    limits.logit_bias(sampling.logit_bias, vocab_size)
    _check_logprobs(sampling.logprobs)
    if sampling.structured_output is not None:
        _check_structured(sampling)
    _refuse_unsupported(sampling)


def _check_logprobs(logprobs: int | None) -> None:
    if logprobs is None:
        return
    limits.integer(logprobs, "logprobs", -1)
    if logprobs != 0:
        raise UnsupportedFeature(
            "TokenSpeed engines give the logprob of the sampled token only; ask for 0 top logprobs.",
            param="top_logprobs",
        )


def _check_structured(sampling: SamplingParams) -> None:
    constraint = sampling.structured_output
    assert constraint is not None
    limits.structured_output(constraint)
    if (
        constraint.backend not in (None, _BACKEND)
        or constraint.disable_any_whitespace
        or constraint.disable_additional_properties
        or constraint.whitespace_pattern is not None
    ):
        raise UnsupportedFeature(
            "TokenSpeed engines take no options of structured outputs.",
            param=limits.structured_param(constraint),
        )


def _refuse_unsupported(sampling: SamplingParams) -> None:
    _refuse_set(
        {
            "prompt_logprobs": sampling.prompt_logprobs,
            "logprob_token_ids": sampling.logprob_token_ids,
            "allowed_token_ids": sampling.allowed_token_ids,
            "bad_words": sampling.bad_words_token_ids or None,
            "repetition_detection": sampling.repetition_detection,
            "skip_reading_prefix_cache": sampling.skip_reading_prefix_cache or None,
            "extra_args": sampling.extra_args or None,
            **dict(sampling.extra_sampling or {}),
        }
    )


def _refuse_set(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if value is not None:
            raise UnsupportedFeature(f"{name} is not supported by TokenSpeed engines.", param=name)
