"""Input messages of vLLM's wire, decoded as strictly as the real engine does. Pure.

Field order, types and value checks are those of 0.32.0's own decoder (its accept/reject list was run through the
real one). A message that fails here closes the real engine's input thread without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

Check = Callable[[Any], bool]

_INT64 = range(-(2**63), 2**64)


class Undecodable(Exception):
    """The real decoder would raise; the text says why."""


def unpack(frame: bytes) -> Any:
    """Decode one msgpack frame. Raises Undecodable."""
    try:
        return msgpack.unpackb(frame, raw=False, strict_map_key=False, use_list=True)
    except (ValueError, msgpack.exceptions.UnpackException, TypeError, RecursionError) as error:
        raise Undecodable(f"not msgpack: {type(error).__name__}") from None


def _int(value: Any) -> bool:
    return type(value) is int


def _float(value: Any) -> bool:
    return type(value) is float or type(value) is int


def _bool(value: Any) -> bool:
    return type(value) is bool


def _str(value: Any) -> bool:
    return type(value) is str


def _map(value: Any) -> bool:
    return type(value) is dict


def _any(value: Any) -> bool:
    return True


def _array(value: Any) -> bool:
    return type(value) is list


def _opt(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def _map_of(key: Check, item: Check) -> Check:
    return lambda value: type(value) is dict and all(key(k) and item(v) for k, v in value.items())


def _ints(value: Any) -> bool:
    return type(value) is list and set(map(type, value)) <= {int}


REQUEST_FIELDS: tuple[tuple[str, Check], ...] = (
    ("request_id", _str),
    ("prompt_token_ids", _opt(_ints)),
    ("mm_features", _opt(_list_of(_map))),
    ("sampling_params", _opt(_map)),
    ("pooling_params", _opt(_array)),
    ("arrival_time", _float),
    ("lora_request", _opt(_array)),
    ("cache_salt", _opt(_str)),
    ("data_parallel_rank", _opt(_int)),
    ("prompt_embeds", _opt(_array)),
    ("prompt_is_token_ids", _opt(_list_of(_bool))),
    ("client_index", _int),
    ("current_wave", _int),
    ("priority", _int),
    ("trace_headers", _opt(_map_of(_str, _str))),
    ("resumable", _bool),
    ("external_req_id", _opt(_str)),
    ("reasoning_ended", _opt(_bool)),
    ("reasoning_parser_kwargs", _opt(_map)),
    ("abort_immediately", _bool),
    ("session_id", _opt(_str)),
    ("kv_hints", _any),
)
REQUIRED_FIELDS = 9

POOLING_FIELDS: tuple[tuple[str, Check], ...] = (
    ("use_activation", _opt(_bool)),
    ("dimensions", _opt(_int)),
    ("step_tag_id", _opt(_int)),
    ("returned_token_ids", _opt(_ints)),
    ("task", _opt(_str)),
    ("requires_token_ids", _bool),
    ("skip_reading_prefix_cache", _opt(_bool)),
    ("late_interaction_params", _opt(_array)),
    ("extra_kwargs", _opt(_map)),
    ("output_kind", _int),
    ("late_chunking_params", _opt(_ints)),
)

_SAMPLING_FIELDS: Mapping[str, Check] = {
    "n": _int,
    "presence_penalty": _float,
    "frequency_penalty": _float,
    "repetition_penalty": _float,
    "temperature": _float,
    "watermarking": _opt(_bool),
    "top_p": _float,
    "top_k": _int,
    "min_p": _float,
    "seed": _opt(_int),
    "stop": lambda value: value is None or _str(value) or _list_of(_str)(value),
    "stop_token_ids": _opt(_ints),
    "ignore_eos": _bool,
    "max_tokens": _opt(_int),
    "min_tokens": _int,
    "logprobs": _opt(_int),
    "prompt_logprobs": _opt(_int),
    "prompt_logprob_start": _opt(_int),
    "logprob_token_ids": _opt(_ints),
    "flat_logprobs": _bool,
    "detokenize": _bool,
    "skip_special_tokens": _bool,
    "spaces_between_special_tokens": _bool,
    "include_stop_str_in_output": _bool,
    "output_kind": lambda value: type(value) is int and 0 <= value <= 2,
    "stream_interval": _opt(_int),
    "skip_clone": _bool,
    "output_text_buffer_length": _int,
    "_eos_token_id": _opt(_int),
    "_all_stop_token_ids": _ints,
    "_watermarking_skipped": _bool,
    "structured_outputs": _opt(_map),
    "logit_bias": _opt(_map_of(_int, _float)),
    "allowed_token_ids": _opt(_ints),
    "extra_args": _opt(_map),
    "bad_words": _opt(_list_of(_str)),
    "_bad_words_token_ids": _opt(_list_of(_ints)),
    "skip_reading_prefix_cache": _opt(_bool),
    "thinking_token_budget": _opt(_int),
    "repetition_detection": _opt(_map_of(_str, _int)),
    "routed_experts_prompt_start": _int,
    "trace_decode_token_ids": _opt(_ints),
}

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

_CONSTRAINT_FIELDS: Mapping[str, Check] = {
    "json": lambda value: value is None or _str(value) or _map(value),
    "regex": _opt(_str),
    "choice": _opt(_list_of(_str)),
    "grammar": _opt(_str),
    "json_object": _opt(_bool),
    "structural_tag": _opt(_str),
    "disable_any_whitespace": _bool,
    "disable_additional_properties": _bool,
    "whitespace_pattern": _opt(_str),
    "_backend": _opt(_str),
    "_backend_was_auto": _bool,
}


def decode_request(payload: Any) -> dict[str, Any]:
    """The fields of an ADD payload by name, defaults absent. Raises Undecodable."""
    if type(payload) is not list:
        raise Undecodable("request is not an array")
    if len(payload) < REQUIRED_FIELDS:
        raise Undecodable(f"Expected `array` of at least length {REQUIRED_FIELDS}, got {len(payload)}")
    fields: dict[str, Any] = {}
    for index, ((name, check), value) in enumerate(zip(REQUEST_FIELDS, payload, strict=False)):
        if not check(value):
            raise Undecodable(f"wrong type {type(value).__name__} at `$[{index}]` ({name})")
        fields[name] = value
    fields["pooling_params"] = decode_pooling(fields["pooling_params"])
    _check_lora(fields["lora_request"])
    if fields["sampling_params"] is not None:
        check_sampling(fields["sampling_params"])
    return fields


def decode_pooling(pooling: Sequence[Any] | None) -> dict[str, Any] | None:
    """Pooling parameters by name; on the wire they are an array, unlike sampling. Raises Undecodable."""
    if pooling is None:
        return None
    fields: dict[str, Any] = {}
    for index, ((name, check), value) in enumerate(zip(POOLING_FIELDS, pooling, strict=False)):
        if not check(value):
            raise Undecodable(f"wrong type {type(value).__name__} at `$[4][{index}]` ({name})")
        fields[name] = value
    return fields


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """Types, then values, of sampling parameters; unknown keys pass. Raises Undecodable."""
    for name, value in sampling.items():
        check = _SAMPLING_FIELDS.get(name)
        if check is not None and not check(value):
            raise Undecodable(f"wrong type {type(value).__name__} of sampling parameter {name}")
    for bad, message in _VALUE_CHECKS:
        if bad(sampling):
            raise Undecodable(message)
    constraint = sampling.get("structured_outputs")
    if constraint is not None:
        _check_constraint(constraint)


def _check_lora(lora: Sequence[Any] | None) -> None:
    if lora is None:
        return
    if len(lora) < 2 or not _str(lora[0]) or not _int(lora[1]) or not all(map(_str, lora[2:3])):
        raise Undecodable("malformed lora_request")
    if lora[1] < 1:
        raise Undecodable(f"id must be > 0, got {lora[1]}")
    if len(lora) < 3 or not lora[2]:
        raise Undecodable("lora_path cannot be empty")


def _check_constraint(constraint: Mapping[str, Any]) -> None:
    for name, value in constraint.items():
        check = _CONSTRAINT_FIELDS.get(name)
        if check is not None and not check(value):
            raise Undecodable(f"wrong type {type(value).__name__} of structured_outputs.{name}")
    kinds = [kind for kind in CONSTRAINTS if constraint.get(kind) is not None]
    if len(kinds) != 1:
        raise Undecodable(f"exactly one kind of structured outputs constraint is needed, got {kinds}")


def _outside(name: str, default: float, low: float, high: float, *, open_low: bool = False) -> Check:
    def bad(sampling: Any) -> bool:
        value = sampling.get(name, default)
        return not ((low < value if open_low else low <= value) and value <= high)

    return bad


def _below(name: str, low: int) -> Check:
    return lambda sampling: sampling.get(name) is not None and sampling[name] < low


def _empty_word(name: str) -> Check:
    def bad(sampling: Any) -> bool:
        words = sampling.get(name)
        return words is not None and "" in ([words] if isinstance(words, str) else words)

    return bad


def _min_above_max(sampling: Any) -> bool:
    limit = sampling.get("max_tokens", 16)
    return bool(limit is not None and sampling.get("min_tokens", 0) > limit)


def _greedy_many(sampling: Any) -> bool:
    return bool(sampling.get("temperature", 1.0) < 1e-5 and sampling.get("n", 1) > 1)


def _stop_without_text(sampling: Any) -> bool:
    return bool(sampling.get("stop")) and not sampling.get("detokenize", True)


def _few_repeats(sampling: Any) -> bool:
    detection = sampling.get("repetition_detection")
    if detection is None or not detection.get("max_pattern_size", 0):
        return False
    return bool(detection.get("min_count", 0) < 2)


def _wide_ints(sampling: Any) -> bool:
    pending = [sampling.get("extra_args")]
    while pending:
        value = pending.pop()
        if type(value) is int and value not in _INT64:
            return True
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False


_VALUE_CHECKS: tuple[tuple[Check, str], ...] = (
    (_below("n", 1), "n must be at least 1"),
    (_outside("presence_penalty", 0.0, -2, 2), "presence_penalty must be in [-2, 2]"),
    (_outside("frequency_penalty", 0.0, -2, 2), "frequency_penalty must be in [-2, 2]"),
    (
        _outside("repetition_penalty", 1.0, 0, math.nextafter(math.inf, 0), open_low=True),
        "repetition_penalty must be greater than zero",
    ),
    (_outside("temperature", 1.0, 0, 2), "temperature must be in [0, 2]"),
    (_outside("top_p", 1.0, 0, 1, open_low=True), "top_p must be in (0, 1]"),
    (_below("top_k", -1), "top_k must be 0 (disable), or at least 1"),
    (_outside("min_p", 0.0, 0, 1), "min_p must be in [0, 1]"),
    (_below("max_tokens", 1), "max_tokens must be at least 1"),
    (_below("min_tokens", 0), "min_tokens must be greater than or equal to 0"),
    (_min_above_max, "min_tokens must be less than or equal to max_tokens"),
    (_below("logprobs", -1), "logprobs must be non-negative or -1"),
    (_below("prompt_logprobs", -1), "prompt_logprobs must be non-negative or -1"),
    (_greedy_many, "n must be 1 when using greedy sampling"),
    (_empty_word("stop"), "stop cannot contain an empty string"),
    (_empty_word("bad_words"), "bad_words cannot contain an empty string"),
    (_stop_without_text, "stop strings are only supported when detokenize is True"),
    (_below("thinking_token_budget", -1), "thinking_token_budget must be non-negative or -1"),
    (_few_repeats, "min_count must be >= 2 to detect repetitive patterns in engine output"),
    (_wide_ints, "integers of extra_args must fit into 64 bits"),
)
