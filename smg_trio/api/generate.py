"""``POST /generate``: body to `GenerateRequest`, in the form that SGLang-style clients and Rust gateways use.

Prompts are text or token ids, one or many; how to sample stands in ``sampling_params`` under names of its own
(``max_new_tokens``, ``no_stop_trim``, ...). The names of the other APIs work there too. Unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.api.errors import load_json
from smg_trio.api.media import read_image_data
from smg_trio.api.openai.chat.request import read_request_id
from smg_trio.api.openai.completions.request import CompletionRequest, Prompt, parse_prompts
from smg_trio.api.parameters.fields import Reader, boolean, integer, mapping, read_fields, refuse, string, within
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.parameters.sampling import SamplingFields, check_choices, choices, parse_sampling, shown_candidates
from smg_trio.core.errors import InvalidRequest, UnsupportedContent

OWN_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
_OTHER_NAMES: Final = {other: own for own, other in OWN_NAMES.items()}
_REFUSED: Final = {"audio_data": "audio", "video_data": "video", "input_embeds": "embeddings as input"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A validated request.

    Attributes:
        completion: the same request in completions terms; the pipeline works on it.
        return_logprob: whether the tokens' log probabilities are shown.
        top_logprobs_num: candidates shown beside each token.
        input_logprobs: whether the prompt's are shown too (``logprob_start_len`` >= 0).
        logprob_start_len: first position of the prompt that is shown.
        rank: the data-parallel rank that is to answer.
    """

    completion: CompletionRequest
    return_logprob: bool = False
    top_logprobs_num: int = 0
    input_logprobs: bool = False
    logprob_start_len: int = 0
    rank: int | None = None


def parse_generate_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> GenerateRequest:
    """Read and validate a body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for audio, video, embeddings as input and beam search.
    """
    obj = load_json(body)
    found = read_fields(obj, READERS)
    for name, words in _REFUSED.items():
        if obj.get(name):
            raise UnsupportedContent(f"'{name}' is not supported ({words}).", param=name)
    shown = found.get("return_logprob", False)
    start = found.get("logprob_start_len", -1)
    if shown and start >= 0 and found.get("stream"):
        raise refuse("logprob_start_len", "is not available when 'stream' is true")
    parameters = found.get("sampling_params", {})
    top = found.get("top_logprobs_num", 0)
    sampling = _sampling(obj, parameters, limits, top if shown else None, top if shown and start >= 0 else None)
    prompts, n = _prompts(obj, limits), _choices(obj, parameters, limits)
    check_choices(len(prompts), n, limits)
    completion = CompletionRequest(
        model=found.get("model", ""),
        prompts=prompts,
        sampling=sampling,
        media=read_image_data(obj.get("image_data"), len(prompts)) if obj.get("image_data") else (),
        n=n,
        stream=found.get("stream", False),
        logprobs=sampling.logprobs,
        request_id=found.get("rid"),
    )
    return GenerateRequest(
        completion=completion,
        return_logprob=shown,
        top_logprobs_num=shown_candidates(sampling, top),
        input_logprobs=shown and start >= 0,
        logprob_start_len=max(0, start),
        rank=found.get("data_parallel_rank"),
    )


def _prompts(obj: Mapping[str, Any], limits: RequestLimits) -> list[Prompt]:
    text, ids = obj.get("text"), obj.get("input_ids")
    if (text is None) == (ids is None):
        raise refuse("text", "exactly one of 'text' and 'input_ids' is required")
    param = "input_ids" if text is None else "text"
    prompts = parse_prompts(ids if text is None else text, limits, param)
    if isinstance(prompts[0], str) != (param == "text"):
        raise refuse(param, "token ids belong into 'input_ids', text into 'text'")
    return prompts


def _choices(obj: Mapping[str, Any], parameters: Mapping[str, Any], limits: RequestLimits) -> int:
    return choices(parameters["n"] if parameters.get("n") is not None else obj.get("n"), limits)


def _sampling(
    obj: Mapping[str, Any],
    parameters: Mapping[str, Any],
    limits: RequestLimits,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingFields:
    fields = {OWN_NAMES.get(name, name): value for name, value in parameters.items() if value is not None}
    fields |= {name: obj[name] for name in ("priority", "cache_salt", "kv_transfer_params") if name in obj}
    fields["prompt_logprobs"] = prompt_logprobs
    if isinstance(tag := fields.pop("structural_tag", None), str):
        fields["structured_outputs"] = {"structural_tag": tag}
    try:
        return parse_sampling(fields, limits, logprobs=logprobs, logprobs_param="top_logprobs_num")
    except InvalidRequest as error:
        raise _in_own_words(error, parameters) from error


def _in_own_words(error: InvalidRequest, parameters: Mapping[str, Any]) -> InvalidRequest:
    """A refusal that names the field as this API spells it, and where it stands."""
    param = error.param or ""
    root = param.split(".")[0].split("[")[0]
    own = root if root in parameters else _OTHER_NAMES.get(root, root)
    if own not in parameters:
        return error
    path = f"sampling_params.{own}{param[len(root) :]}"
    return InvalidRequest(error.message.replace(f"'{param}'", f"'{path}'"), param=path)


READERS: dict[str, Reader] = {
    "model": string,
    "stream": boolean,
    "rid": read_request_id,
    "return_logprob": boolean,
    "logprob_start_len": within(integer, -1),
    "top_logprobs_num": within(integer, 0),
    "sampling_params": mapping,
    "data_parallel_rank": within(integer, 0),
}
