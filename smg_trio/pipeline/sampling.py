"""What the client said about sampling, the model's defaults and the context window → engine terms. Pure.

Rules are those of vLLM 0.32's API server (``sampling_params.py``, ``entrypoints/utils.py:get_max_tokens``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smg_trio.core.errors import InvalidRequest
from smg_trio.core.requests import SamplingParams

if TYPE_CHECKING:
    from smg_trio.api.parameters.sampling import SamplingFields
    from smg_trio.text.model_files import ModelText

_ENGINE_DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def resolve_sampling(
    fields: SamplingFields, text: ModelText, *, prompt_length: int, max_model_len: int
) -> SamplingParams:
    """Engine sampling for one choice; a further choice i differs by its seed only (see `with_seed_of`).

    Raises:
        InvalidRequest: max_tokens larger than the whole context window.
    """
    defaults = {**_ENGINE_DEFAULTS, **text.default_sampling} if text.default_sampling else _ENGINE_DEFAULTS
    eos = text.eos_token_ids
    extra_eos = () if fields.ignore_eos else eos[1:]
    stop_token_ids = tuple(dict.fromkeys((*fields.stop_token_ids, *extra_eos))) if extra_eos else fields.stop_token_ids
    return SamplingParams(
        max_tokens=resolve_max_tokens(
            fields,
            default=_whole(text.default_sampling.get("max_new_tokens")),
            prompt_length=prompt_length,
            max_model_len=max_model_len,
        ),
        min_tokens=fields.min_tokens,
        temperature=float(_first(fields.temperature, defaults["temperature"])),
        top_p=float(_first(fields.top_p, defaults["top_p"])),
        top_k=max(0, int(_first(fields.top_k, defaults["top_k"]))),
        min_p=float(_first(fields.min_p, defaults["min_p"])),
        repetition_penalty=float(_first(fields.repetition_penalty, defaults["repetition_penalty"])),
        presence_penalty=float(_first(fields.presence_penalty, defaults["presence_penalty"])),
        frequency_penalty=float(_first(fields.frequency_penalty, defaults["frequency_penalty"])),
        seed=fields.seed,
        eos_token_id=eos[0] if eos and not fields.ignore_eos else None,
        stop_token_ids=stop_token_ids,
        all_stop_token_ids=frozenset((*stop_token_ids, *eos)),
        ignore_eos=fields.ignore_eos,
        # Engines refuse both unless the counts agree, and look for the best ones then, which were not asked for.
        logprobs=None if fields.logprob_token_ids else fields.logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        logprob_token_ids=fields.logprob_token_ids,
        logit_bias=fields.logit_bias,
        allowed_token_ids=fields.allowed_token_ids,
        bad_words_token_ids=_bad_words(fields, text),
        structured_output=fields.structured_output,
        thinking_token_budget=fields.thinking_token_budget,
        repetition_detection=fields.repetition_detection,
        extra_args=_extra_args(fields),
    )


def resolve_max_tokens(fields: SamplingFields, *, default: int | None, prompt_length: int, max_model_len: int) -> int:
    """The most tokens the answer may have: what was asked, the model's own default, what the window leaves.

    At least 1, so that a prompt that fills the window is refused for its own length, by the worker's check.
    """
    asked = fields.max_tokens
    if asked is not None and asked > max_model_len and not fields.max_tokens_is_bound:
        raise InvalidRequest(
            f"{fields.max_tokens_param}={asked} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens.",
            param=fields.max_tokens_param,
        )
    wanted = [limit for limit in (asked, default) if limit is not None]
    return max(1, min([*wanted, max_model_len - prompt_length]))


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


def _whole(value: int | float | None) -> int | None:
    return None if value is None else int(value)


def _bad_words(fields: SamplingFields, text: ModelText) -> tuple[tuple[int, ...], ...] | None:
    if not fields.bad_words:
        return None
    return tuple(ids for word in fields.bad_words for ids in text.tokenizer.encode_bad_word(word))


def _extra_args(fields: SamplingFields) -> Mapping[str, Any] | None:
    if fields.kv_transfer_params is None:
        return fields.extra_args
    return {**(fields.extra_args or {}), "kv_transfer_params": fields.kv_transfer_params}
