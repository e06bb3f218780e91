"""``POST /v1/completions``: body to `CompletionRequest`.

Fields and defaults are those of vLLM 0.32's ``CompletionRequest``: ``max_tokens`` is 16 where the client is
silent, prompts may be token ids. ``best_of`` is ignored and ``suffix`` refused, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smg_trio.api.errors import load_json
from smg_trio.api.openai.chat.request import (
    check_logprob_extras,
    read_request_id,
    read_stream,
    refuse_media_options,
    settle_request_id,
)
from smg_trio.api.parameters.fields import INT64_MAX, Reader, boolean, describe, described, read_fields, refuse, string
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.parameters.sampling import (
    SamplingFields,
    candidates,
    check_choices,
    choices,
    parse_sampling,
    shown_candidates,
)
from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.records import record

if TYPE_CHECKING:
    from smg_trio.core.media import MediaSource

DEFAULT_MAX_TOKENS = 16
_LOOKED_AT_ONCE = 500_000

Prompt = str | list[int]


@record
class CompletionRequest:
    """A validated completions request.

    Attributes:
        model: "" where the client names none.
        prompts: at least one; each a text, or int[T >= 1] not yet checked against the vocabulary. Choice
            ``i * n + j`` of the answer is the j-th of prompt i.
        sampling: ``max_tokens`` is 0 only with ``echo``; ``prompt_logprobs`` is set also where ``echo`` and
            ``logprobs`` ask for the prompt's.
        media: of each prompt, in the order of their placeholders in it; empty where no prompt has any.
        echo: whether texts begin with the prompt.
    """

    model: str
    prompts: list[Prompt]
    sampling: SamplingFields
    media: Sequence[Sequence[MediaSource]] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage_stats: bool = False
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: str | None = None


def parse_completion_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> CompletionRequest:
    """Read and validate a completions body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for ``suffix``, ``prompt_embeds`` and beam search.
    """
    obj = load_json(body)
    found = {"model": "", **read_fields(obj, READERS)}
    found.update(read_stream(obj, found))
    refuse_media_options(obj)
    settle_request_id(found)
    if found.pop("suffix", ""):
        raise UnsupportedFeature("'suffix' is not supported.", param="suffix")
    prompts, n = parse_prompts(obj.get("prompt"), limits), choices(obj.get("n"), limits)
    check_choices(len(prompts), n, limits)
    sampling = _sampling(obj, found, limits)
    if found.get("logprobs") is not None:
        found["logprobs"] = shown_candidates(sampling, found["logprobs"])
    return CompletionRequest(
        prompts=prompts,
        sampling=sampling,
        n=n,
        **found,
    )


def _sampling(obj: Mapping[str, Any], found: dict[str, Any], limits: RequestLimits) -> SamplingFields:
    logprobs, echo = found.get("logprobs"), found.get("echo", False)
    sampling = parse_sampling(
        obj,
        limits,
        logprobs=logprobs,
        may_be_empty=echo,
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )
    check_logprob_extras(sampling, found.get("stream", False))
    if sampling.logprob_token_ids is not None and sampling.max_tokens == 0:
        raise refuse("logprob_token_ids", "needs a generated token: 'max_tokens' is 0")
    if echo and sampling.prompt_logprobs is None and logprobs is not None:
        sampling = replace(sampling, prompt_logprobs=logprobs)
    return sampling


def parse_prompts(value: Any, limits: RequestLimits, param: str = "prompt") -> list[Prompt]:
    """One prompt or many, as text or token ids, as a list of prompts.

    Raises:
        InvalidRequest: nothing, an empty prompt, too many, a mixture, a negative id.
    """
    if value is None or value in ("", []):
        raise refuse(param, "must not be empty")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refuse(param, f"expected a string or an array, got {describe(value)}")
    if type(value[0]) is int:
        return [_token_ids(value, param)]
    if len(value) > limits.max_prompts:
        raise refuse(param, f"at most {limits.max_prompts} prompts are allowed, got {len(value)}")
    if isinstance(value[0], str):
        return [string(item, f"{param}[{index}]") for index, item in enumerate(value)]
    return [_token_ids(item, f"{param}[{index}]") for index, item in enumerate(value)]


def _token_ids(value: Any, param: str) -> list[int]:
    if not isinstance(value, list):
        raise refuse(param, f"expected an array of token ids, got {describe(value)}")
    if not value:
        raise refuse(param, "must not be empty")
    # Prompts of 100 k ids are common: the checks run in C.
    for start in range(0, len(value), _LOOKED_AT_ONCE):
        part = value[start : start + _LOOKED_AT_ONCE]
        if set(map(type, part)) != {int}:
            raise refuse(param, "token ids must be integers")
        if min(part) < 0 or max(part) > INT64_MAX:
            raise refuse(param, "token ids must be in the vocabulary")
    return value


@described({"type": ["integer", "boolean"], "minimum": -1})
def _logprobs(value: Any, param: str) -> int | None:
    if isinstance(value, bool):  # chat's spelling
        return 1 if value else None
    return candidates(value, param)


READERS: dict[str, Reader] = {
    "model": string,
    "stream": boolean,
    "logprobs": _logprobs,
    "echo": boolean,
    "suffix": string,
    "add_special_tokens": boolean,
    "return_token_ids": boolean,
    "return_tokens_as_token_ids": boolean,
    "request_id": read_request_id,
    "rid": read_request_id,
}
