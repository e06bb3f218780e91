"""Rules both engine protocols share: what a request may hold before it may go to an engine.

An engine trusts its gateway. A value that does not decode makes a vLLM engine deaf without a word; a
prompt longer than the context, or a token id outside the vocabulary, ends its process and every other
request with it. So whatever could do that is refused here, as the client's fault and by the name the
client knows the field by. The rules are those of vLLM 0.27.1 to 0.33.0 and TokenSpeed 0.1.0 and 0.1.1.

Fields are checked for their type as well, since Python's ints, floats and bools mix freely and the
engines' decoders do not let them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import ContextLengthExceeded, InvalidRequest
from smg_trio.wire.tensors import ITEM_SIZES

if TYPE_CHECKING:
    from smg_trio.core.requests import GenerationRequest, SamplingParams, StructuredOutput
    from smg_trio.core.tensors import TensorValue

DEFAULT_MAX_LOGPROBS: Final = 20
"""Most top candidates per position unless the caller says otherwise (vLLM's ``--max-logprobs``)."""

INT32_MAX: Final = (1 << 31) - 1
"""Engines keep token ids and token budgets in 32-bit arrays; a larger value ends them."""
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1
MAX_NESTING: Final = 64
"""Deepest nesting of schemas and passed-through values; vLLM's own limit for schemas."""

MAX_BIAS: Final = 100.0
"""Biases beyond this are clamped when encoded, as vLLM's server does; beyond it nothing changes but the
risk of an overflow in the engine."""

_TAG_WRAPPER_NESTING: Final = 16
_STRUCTURED_PARAMS: Final = {"json": "response_format", "json_object": "response_format"}


def number(value: Any, param: str) -> float:
    """Check that ``value`` is a finite int or float."""
    if type(value) is not int and not isinstance(value, float):
        raise InvalidRequest(f"{param} must be a number.", param=param)
    # The bounds refuse inf and NaN, and ints that msgpack cannot hold.
    bound = INT64_MAX if type(value) is int else 1e300
    if not -bound < value < bound:
        raise InvalidRequest(f"{param} must be a finite number.", param=param)
    return value


def in_range(value: Any, low: float, high: float, param: str) -> None:
    """Check that ``value`` is a number in [low, high]."""
    if not low <= number(value, param) <= high:
        raise InvalidRequest(f"{param} must be in [{low:g}, {high:g}], got {value}.", param=param)


def integer(value: Any, param: str, low: int = INT64_MIN, high: int = INT64_MAX) -> None:
    """Check that ``value`` is an int (no bool) in low..high."""
    if type(value) is not int:
        raise InvalidRequest(f"{param} must be an integer.", param=param)
    if value < low:
        raise InvalidRequest(f"{param} must be at least {low}, got {value}.", param=param)
    if value > high:
        raise InvalidRequest(f"{param} must be at most {high}.", param=param)


def flag(value: Any, param: str) -> None:
    """Check that ``value`` is a bool."""
    if type(value) is not bool:
        raise InvalidRequest(f"{param} must be true or false.", param=param)


def text(value: Any, param: str) -> None:
    """Check that ``value`` is a str that UTF-8 can say (JSON can hold lone surrogates)."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string.", param=param)
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{param} is not valid Unicode text.", param=param) from None


def token_ids(ids: Collection[int], vocab_size: int | None, param: str) -> None:
    """Check that all ids are ints within the vocabulary (or, if it is unknown, 0..2**31-1)."""
    if not ids:
        return
    # Over a long prompt these three passes run in C.
    if set(map(type, ids)) != {int}:
        raise InvalidRequest(f"{param} must contain only integer token ids.", param=param)
    low, high = min(ids), max(ids)
    limit = INT32_MAX if vocab_size is None else vocab_size - 1
    if low < 0 or high > limit:
        size = "" if vocab_size is None else f" Vocabulary size: {vocab_size}."
        raise InvalidRequest(f"{param} contains out-of-vocab token id {low if low < 0 else high}.{size}", param=param)


def ids_or_none(ids: Sequence[int] | None, vocab_size: int | None, param: str) -> None:
    """Like `token_ids` for an optional list or tuple."""
    if ids is not None:
        sequence(ids, param)
        token_ids(ids, vocab_size, param)


def sequence(value: Any, param: str) -> None:
    """Check that ``value`` is a list or tuple."""
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"{param} must be a list.", param=param)


def passed_through(value: Any, param: str, *, depth: int = MAX_NESTING) -> None:
    """Check that msgpack can say ``value``: plain types, 64-bit ints, text keys, bounded nesting.

    Args:
        value: what an engine's plugin or connector will read; its meaning is not known here.
        param: the API's name of the field.
        depth: levels of nesting left.
    """
    if value is None or isinstance(value, (bool, float, bytes)):
        return
    if isinstance(value, str):
        text(value, param)
    elif isinstance(value, int):
        integer(value, param, INT64_MIN, UINT64_MAX)
    elif depth == 0:
        raise InvalidRequest(f"{param} is nested too deeply.", param=param)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            text(key, param)
            passed_through(item, param, depth=depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            passed_through(item, param, depth=depth - 1)
    else:
        raise InvalidRequest(f"{param} holds a value that cannot be sent.", param=param)


def tensor(value: TensorValue, param: str) -> None:
    """Check that the data of a tensor fills its shape."""
    if math.prod(value.shape) * ITEM_SIZES.get(value.dtype, -1) != len(value.data):
        raise InvalidRequest(f"{param} does not match its shape and dtype.", param=param)


def envelope(request: GenerationRequest) -> None:
    """Check the fields around the sampling: ids, priority, arrival, salt."""
    text(request.request_id, "request_id")
    if not request.request_id:
        raise InvalidRequest("request_id must not be empty.", param="request_id")
    if (request.sampling is None) == (request.pooling is None):
        raise InvalidRequest("A request must either generate or pool.", param="task")
    integer(request.priority, "priority")
    number(request.arrival_time, "arrival_time")
    if request.cache_salt is not None:
        text(request.cache_salt, "cache_salt")
    if request.rank is not None:
        integer(request.rank, "data_parallel_rank", 0, 0xFFFF)


def prompt(ids: Sequence[int], vocab_size: int | None) -> None:
    """Check that the prompt is not empty and within the vocabulary."""
    if not ids:
        raise InvalidRequest("The prompt must contain at least one token.", param="prompt")
    token_ids(ids, vocab_size, "prompt")


def context_length(prompt_tokens: int, completion_tokens: int, limit: int, room: int) -> None:
    """Check that prompt and completion fit.

    Args:
        prompt_tokens, completion_tokens: what is asked for; 0 completion tokens for pooling.
        limit: the context window, 0 if unknown.
        room: positions after the prompt that must stay free.

    Raises:
        ContextLengthExceeded: with vLLM's wording, which clients parse.
    """
    if limit < 1:
        return
    if prompt_tokens > limit - room:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens. However, your request has "
            f"{prompt_tokens} input tokens. Please reduce the length of the input messages.",
            param="prompt",
        )
    total = prompt_tokens + completion_tokens
    if total > limit:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens. However, you requested {total} tokens "
            f"({prompt_tokens} in the messages, {completion_tokens} in the completion). "
            "Please reduce the length of the messages or completion.",
            param="max_tokens",
        )


def lengths(sampling: SamplingParams) -> None:
    """Check `max_tokens` and `min_tokens`."""
    integer(sampling.max_tokens, "max_tokens", 1)
    integer(sampling.min_tokens, "min_tokens", 0)
    if sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be less than or equal to max_tokens={sampling.max_tokens}, got {sampling.min_tokens}.",
            param="min_tokens",
        )


def probabilities(sampling: SamplingParams) -> None:
    """Check what both engines bound alike: `top_p`, `min_p`, presence and frequency penalties."""
    if not 0.0 < number(sampling.top_p, "top_p") <= 1.0:
        raise InvalidRequest(f"top_p must be in (0, 1], got {sampling.top_p}.", param="top_p")
    in_range(sampling.min_p, 0.0, 1.0, "min_p")
    in_range(sampling.presence_penalty, -2.0, 2.0, "presence_penalty")
    in_range(sampling.frequency_penalty, -2.0, 2.0, "frequency_penalty")


def stops(sampling: SamplingParams, vocab_size: int | None) -> None:
    """Check the ids that end a sequence; engines index their logits with them."""
    flag(sampling.ignore_eos, "ignore_eos")
    sequence(sampling.stop_token_ids, "stop_token_ids")
    token_ids(sampling.stop_token_ids, vocab_size, "stop_token_ids")
    token_ids(sampling.all_stop_token_ids, vocab_size, "stop_token_ids")
    if sampling.eos_token_id is not None:
        token_ids((sampling.eos_token_id,), vocab_size, "stop_token_ids")


def logit_bias(bias: Mapping[int, float] | None, vocab_size: int | None) -> None:
    """Check ids and values of a bias map."""
    if bias is None:
        return
    if not isinstance(bias, Mapping):
        raise InvalidRequest("logit_bias must be a map of token ids to numbers.", param="logit_bias")
    token_ids(bias.keys(), vocab_size, "logit_bias")
    for value in bias.values():
        number(value, "logit_bias")


def clamped_bias(value: float) -> float:
    """A bias within what engines are given."""
    return min(MAX_BIAS, max(-MAX_BIAS, float(value)))


def thinking_budget(value: int | None) -> None:
    """Check `thinking_token_budget`: None, -1 for unlimited, or a count."""
    if value is not None:
        integer(value, "thinking_token_budget", -1, INT32_MAX)


def structured_output(constraint: StructuredOutput) -> None:
    """Check what can be checked without a compiler; a constraint that passes may still not compile."""
    param = structured_param(constraint)
    match constraint.kind:
        case "json":
            _json_document(constraint.value, MAX_NESTING, param)
        case "structural_tag":
            _json_document(constraint.value, MAX_NESTING + _TAG_WRAPPER_NESTING, param)
        case "json_object":
            if constraint.value is not True:
                raise InvalidRequest("json_object must be true if set.", param=param)
        case "choice":
            _choices(constraint.value, param)
        case "regex":
            _pattern(constraint.value, param)
        case "grammar":
            text(constraint.value, param)
            if not constraint.value.strip():
                raise InvalidRequest("grammar must not be empty.", param=param)
        case _:
            raise InvalidRequest("Unknown kind of structured output.", param=param)
    _structured_options(constraint, param)


def structured_param(constraint: StructuredOutput) -> str:
    """The API field a constraint most likely came from."""
    return _STRUCTURED_PARAMS.get(constraint.kind, "structured_outputs")


def _structured_options(constraint: StructuredOutput, param: str) -> None:
    flag(constraint.disable_any_whitespace, param)
    flag(constraint.disable_additional_properties, param)
    if constraint.whitespace_pattern is not None:
        text(constraint.whitespace_pattern, param)


def _choices(value: Any, param: str) -> None:
    sequence(value, param)
    if not value:
        raise InvalidRequest("choice must not be an empty list.", param=param)
    for choice in value:
        text(choice, param)


def _pattern(value: Any, param: str) -> None:
    text(value, param)
    if "\0" in value:
        raise InvalidRequest("regex must not contain a NUL character.", param=param)


def _json_document(value: Any, limit: int, param: str) -> None:
    if isinstance(value, str):
        text(value, param)
        value = _parsed(value, param)
    if not isinstance(value, (dict, bool)):
        raise InvalidRequest("A JSON schema must be an object.", param=param)
    if _nests_deeper(value, limit):
        raise InvalidRequest(
            f"The JSON schema is nested too deeply: objects and arrays may nest at most {limit} levels.",
            param=param,
        )
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidRequest("The JSON schema holds a value that JSON cannot say.", param=param) from None


def _parsed(document: str, param: str) -> Any:
    try:
        return json.loads(document)
    except RecursionError:
        raise InvalidRequest("The JSON schema is nested too deeply.", param=param) from None
    except ValueError:
        raise InvalidRequest("The JSON schema is not valid JSON.", param=param) from None


def _nests_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list, tuple))
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list, tuple))
        ]
        if not level:
            return False
    return True
