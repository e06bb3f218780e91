"""What a client may say about sampling, in API terms, read the same way on every endpoint.

Names, defaults and bounds are vLLM's (0.32: ``chat_completion/protocol.py``, ``sampling_params.py``).
Where the client is silent the value stays None, so that a model's ``generation_config.json`` and then the
engine's defaults can fill it later. What needs the vocabulary, the tokenizer or the context length is
checked later too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from smg_trio.api.parameters.constraints import parse_structured_output
from smg_trio.api.parameters.fields import (
    Reader,
    array_of,
    boolean,
    describe,
    described,
    filled_string,
    integer,
    mapping,
    number,
    object_schema,
    one_of,
    read_fields,
    refuse,
    schema_of,
    token_id,
    wire_mapping,
    within,
)
from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.records import record
from smg_trio.core.requests import RepetitionDetection, StructuredOutput

if TYPE_CHECKING:
    from smg_trio.api.parameters.limits import RequestLimits

MAX_BAD_WORDS = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_TOKEN_IDS = 131_072
"""Ids in a list of them (`stop_token_ids`, `allowed_token_ids`, `logit_bias`): most vocabularies have no more, and
looking at so many takes 5 ms."""
MAX_STOP_CHARS = 1_024
"""Of one stop string: what looks for it has a state of some 300 bytes for each character."""
MAX_BAD_WORD_CHARS = 1_024
"""Of one bad word: engines take 1,024 tokens of all of them."""
_MAX_TOP_K = 2**31 - 1
_MAX_SALT_CHARS = 128
_SALT_FORBIDDEN = frozenset("@/\\\x00")


@record
class SamplingFields:
    """Everything a request says about sampling; None = the client is silent.

    Attributes:
        top_k: 0 = off (a client's -1 is read as 0); at most 2**31 - 1.
        max_tokens: int >= 1 (0 only with a completions request that echoes); may exceed the context.
        max_tokens_param: the field it came from, for error messages.
        max_tokens_is_bound: more than the context window is cut to it instead of refused.
        stop: no string is empty.
        stop_token_ids: int >= 0, without duplicates, not yet checked against the vocabulary.
        logprobs: number of candidates beside the sampled token; 0 = the sampled one only; -1 = all. As many as
            ``logprob_token_ids`` where those are given.
        prompt_logprobs: the same for the prompt.
        logprob_token_ids: report exactly these ids instead of the top ones.
        logit_bias: token id -> bias in -100..100.
        bad_words: texts never to be produced; none is empty.
        thinking_token_budget: None also for the client's -1 (unlimited).
        truncate_prompt_tokens: keep this many prompt tokens; -1 = as many as fit.
        extra_args: passed through to the engine (``vllm_xargs``, ``ec_transfer_params``).
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    max_tokens_is_bound: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    structured_output: StructuredOutput | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    extra_args: Mapping[str, Any] | None = None
    priority: int = 0
    cache_salt: str | None = None


def parse_sampling(
    obj: Mapping[str, Any],
    limits: RequestLimits,
    *,
    logprobs: int | None,
    logprobs_param: str = "logprobs",
    may_be_empty: bool = False,
    default_max_tokens: int | None = None,
) -> SamplingFields:
    """Read the sampling part of a body.

    Args:
        obj: the whole body.
        limits: the operator's bounds.
        logprobs: candidates per generated token, which each API spells in its own way.
        logprobs_param: how this API spells it.
        may_be_empty: whether ``max_tokens: 0`` is meaningful (echo without generation).
        default_max_tokens: what a silent client gets.

    Raises:
        InvalidRequest: naming the field that is out of bounds.
        UnsupportedFeature: for beam search.
    """
    found = read_fields(obj, READERS)
    found.pop("use_beam_search", None)
    found["logprobs"] = _bounded_logprobs(logprobs, logprobs_param, limits)
    if logprobs is not None and (ids := found.get("logprob_token_ids")):
        found["logprobs"] = len(ids)
    if "stop" in found and len(found["stop"]) > limits.max_stop_strings:
        raise refuse("stop", f"at most {limits.max_stop_strings} stop strings are allowed")
    if (prompt_logprobs := found.get("prompt_logprobs")) is not None:
        _bounded_logprobs(prompt_logprobs, "prompt_logprobs", limits)
    _settle_max_tokens(found, may_be_empty, default_max_tokens)
    if not limits.kv_transfer_params:
        _refuse_kv_transfer(found)
    _settle_extra_args(found)
    found["structured_output"] = parse_structured_output(obj)
    return SamplingFields(**found)


def _settle_max_tokens(found: dict[str, Any], may_be_empty: bool, default: int | None) -> None:
    if (completion := found.pop("max_completion_tokens", None)) is not None:
        found["max_tokens"] = completion
        found["max_tokens_param"] = "max_completion_tokens"
    asked = found.setdefault("max_tokens", default)
    if asked is None:
        return
    param = found.get("max_tokens_param", "max_tokens")
    if asked < (0 if may_be_empty else 1):
        raise refuse(param, f"must be at least 1, got {asked}")
    if found.get("min_tokens", 0) > max(asked, 1):
        raise refuse("min_tokens", f"must not be greater than {param}={asked}, got {found['min_tokens']}")


def _refuse_kv_transfer(found: Mapping[str, Any]) -> None:
    for param, holder in (("kv_transfer_params", found), ("vllm_xargs.kv_transfer_params", found.get("vllm_xargs"))):
        if holder and holder.get("kv_transfer_params") is not None:
            raise refuse(param, "this server takes no KV transfer parameters from clients (--allow-kv-transfer-params)")


def _settle_extra_args(found: dict[str, Any]) -> None:
    extra = found.pop("vllm_xargs", None)
    if (encoder := found.pop("ec_transfer_params", None)) is not None:
        extra = {**(extra or {}), "ec_transfer_params": encoder}
    if extra:
        found["extra_args"] = extra


def _bounded_logprobs(asked: int | None, param: str, limits: RequestLimits) -> int | None:
    if asked is None or limits.max_logprobs == -1:
        return asked
    if asked == -1:
        raise refuse(param, f"the whole vocabulary is more than the {limits.max_logprobs} allowed candidates")
    if asked > limits.max_logprobs:
        raise refuse(param, f"at most {limits.max_logprobs} candidates are allowed, got {asked}")
    return asked


def shown_candidates(sampling: SamplingFields, asked: int) -> int:
    """How many candidates an answer shows: all that come (-1) where they were asked for by id, as vLLM's servers do."""
    return asked if sampling.logprob_token_ids is None else -1


@described({"type": "integer", "minimum": -1})
def candidates(value: Any, param: str) -> int:
    """A number of logprob candidates: >= 0, or -1 for the whole vocabulary."""
    found = integer(value, param)
    if found < -1:
        raise refuse(param, f"must be -1 or at least 0, got {found}")
    return found


def choices(value: Any, limits: RequestLimits) -> int:
    """``n``: how many choices per prompt."""
    return 1 if value is None else int(within(integer, 1, limits.max_n)(value, "n"))


def check_choices(prompts: int, n: int, limits: RequestLimits) -> None:
    """Refuse a request of more answers than one may have: each is a request of its own to an engine."""
    if prompts * n > limits.max_choices:
        raise refuse("n", f"{prompts} prompts with n={n} are more than the {limits.max_choices} answers allowed")


_from_minus_1 = within(integer, -1)


@described(schema_of(_from_minus_1))
def _top_k(value: Any, param: str) -> int:
    # More than any vocabulary is the same as off; the engine keeps it in 32 bits.
    return max(0, min(int(_from_minus_1(value, param)), _MAX_TOP_K))


@described({"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS})
def _stop_string(value: Any, param: str) -> str:
    return _short_string(value, param, MAX_STOP_CHARS)


_stop_strings = array_of(_stop_string)


@described({"anyOf": [schema_of(_stop_string), schema_of(_stop_strings)]})
def _stop(value: Any, param: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_stop_string(value, param),)
    if not isinstance(value, list):
        raise refuse(param, f"expected a string or an array of strings, got {describe(value)}")
    return tuple(_stop_strings(value, param))


def _short_string(value: Any, param: str, limit: int) -> str:
    if len(filled_string(value, param)) > limit:
        raise refuse(param, f"at most {limit} characters are allowed, got {len(value)}")
    return str(value)


_id_list = array_of(token_id, maximum=MAX_TOKEN_IDS)


@described(schema_of(_id_list))
def _token_ids(value: Any, param: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_id_list(value, param)))


@described({**schema_of(_id_list), "minItems": 1})
def _allowed_token_ids(value: Any, param: str) -> tuple[int, ...]:
    allowed = _token_ids(value, param)
    if not allowed:
        raise refuse(param, "must not be an empty array")
    return allowed


_short_id_list = array_of(token_id, maximum=MAX_LOGPROB_TOKEN_IDS)


@described(schema_of(_short_id_list))
def _logprob_token_ids(value: Any, param: str) -> tuple[int, ...] | None:
    return tuple(dict.fromkeys(_short_id_list(value, param))) or None


@described({"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARS})
def _bad_word(value: Any, param: str) -> str:
    return _short_string(value, param, MAX_BAD_WORD_CHARS)


_bad_word_list = array_of(_bad_word, maximum=MAX_BAD_WORDS)


@described(schema_of(_bad_word_list))
def _bad_words(value: Any, param: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_bad_word_list(value, param)))


@described({"type": "object", "additionalProperties": {"type": "number"}})
def _logit_bias(value: Any, param: str) -> dict[int, float] | None:
    biases = {}
    if len(mapping(value, param)) > MAX_TOKEN_IDS:
        raise refuse(param, f"at most {MAX_TOKEN_IDS} entries are allowed, got {len(value)}")
    for key, bias in mapping(value, param).items():
        biases[token_id(key, f"{param}.{key}")] = min(100.0, max(-100.0, number(bias, f"{param}.{key}")))
    return biases or None


@described({"type": "integer", "minimum": -1})
def _thinking_token_budget(value: Any, param: str) -> int | None:
    # vLLM is strict here: no text, no 5.0.
    if type(value) is not int or value < -1:
        raise refuse(param, f"must be a non-negative integer or -1 for unlimited, got {describe(value)}")
    budget = integer(value, param)
    return None if budget == -1 else budget


@described({"type": "integer"})
def _seed(value: Any, param: str) -> int | None:
    seed = integer(value, param)
    return None if seed == -1 else seed  # vLLM: -1 means unseeded


@described({"type": "string", "minLength": 1, "maxLength": _MAX_SALT_CHARS})
def _cache_salt(value: Any, param: str) -> str:
    salt = filled_string(value, param)
    if len(salt) > _MAX_SALT_CHARS or not _SALT_FORBIDDEN.isdisjoint(salt):
        raise refuse(param, r"at most 128 characters are allowed, and none of '@', '/', '\' and NUL")
    return salt


_REPETITION_READERS: dict[str, Reader] = dict.fromkeys(
    ("max_pattern_size", "min_pattern_size", "min_count"), within(integer, 0, 2**31 - 1)
)


@described(object_schema(_REPETITION_READERS))
def _repetition_detection(value: Any, param: str) -> RepetitionDetection | None:
    found = read_fields(mapping(value, param), _REPETITION_READERS, prefix=f"{param}.")
    largest = found.get("max_pattern_size", 0)
    if found.get("min_pattern_size", 0) > largest:
        raise refuse(f"{param}.min_pattern_size", f"must not be greater than max_pattern_size={largest}")
    if largest == 0:
        return None
    if found.get("min_count", 0) < 2:
        raise refuse(f"{param}.min_count", "must be at least 2")
    return RepetitionDetection(**found)


@described({"const": False})
def _no_beam_search(value: Any, param: str) -> None:
    if boolean(value, param):
        raise UnsupportedFeature("'use_beam_search' is not supported: engine cores do not search.", param=param)


READERS: dict[str, Reader] = {
    "temperature": within(number, 0, 2),
    "top_p": within(number, None, 1, above=0),
    "top_k": _top_k,
    "min_p": within(number, 0, 1),
    "presence_penalty": within(number, -2, 2),
    "frequency_penalty": within(number, -2, 2),
    "repetition_penalty": within(number, above=0),
    "seed": _seed,
    "max_tokens": integer,
    "max_completion_tokens": integer,
    "min_tokens": within(integer, 0),
    "stop": _stop,
    "stop_token_ids": _token_ids,
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "prompt_logprobs": candidates,
    "logprob_token_ids": _logprob_token_ids,
    "logit_bias": _logit_bias,
    "allowed_token_ids": _allowed_token_ids,
    "bad_words": _bad_words,
    "thinking_token_budget": _thinking_token_budget,
    "repetition_detection": _repetition_detection,
    "truncate_prompt_tokens": within(integer, -1),
    "truncation_side": one_of(("left", "right")),
    "kv_transfer_params": wire_mapping,
    "ec_transfer_params": wire_mapping,
    "vllm_xargs": wire_mapping,
    "priority": integer,
    "cache_salt": _cache_salt,
    "use_beam_search": _no_beam_search,
}
