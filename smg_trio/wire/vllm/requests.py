"""`GenerationRequest` to vLLM's ADD payload (``EngineCoreRequest``, positions of 0.27.1 to 0.33.0).

The array is cut after the last element that differs from its default: the first nine are required, the
rest grew from version to version. Sampling is a map by name in which defaults are left out. Fields that
only vLLM's own front end acts on (`n`, `stop`, `detokenize`, `output_kind`, …) are never sent.

Mirrors vLLM 0.32.0's `vllm/v1/engine/__init__.py` (``EngineCoreRequest``), `vllm/sampling_params.py` and
`vllm/pooling_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.tensors import TensorValue
from smg_trio.wire.grammar import choice_grammar, json_text
from smg_trio.wire.limits import clamped_bias
from smg_trio.wire.packing import Frame, pack
from smg_trio.wire.tensors import encode_tensor
from smg_trio.wire.vllm.media import features

if TYPE_CHECKING:
    from smg_trio.core.requests import GenerationRequest, LoraAdapter, PoolingParams, SamplingParams, StructuredOutput

DEFAULT_BACKEND: Final = "xgrammar"
"""The grammar backend where the worker has not settled on one; it compiles every kind as sent here."""

# Values of the elements 9..20 that the decoder assumes where they are cut off.
_TAIL_DEFAULTS: Final = [None, None, 0, 0, 0, None, False, None, None, None, False, None]
_REQUIRED_LENGTH: Final = 9

# Names that are the same in `SamplingParams` and on the wire, with the wire's default.
_PLAIN_FIELDS: Final[dict[str, Any]] = {
    "min_tokens": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "ignore_eos": False,
    "logprobs": None,
    "prompt_logprobs": None,
    "thinking_token_budget": None,
    "skip_reading_prefix_cache": None,
}


def encode_request(request: GenerationRequest, wave: int, client_index: int) -> list[Frame]:
    """The payload frame and its auxiliary tensor frames."""
    fields = _fields(request, wave, client_index)
    if not (request.extra or request.media) and (request.sampling is None or not request.sampling.extra_sampling):
        return [pack(fields)]
    auxiliary: list[Frame] = []

    def encode_special(value: Any) -> Any:
        if isinstance(value, TensorValue):
            return encode_tensor(value, auxiliary)
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"a request cannot hold a {type(value).__name__}")

    payload = pack(fields, default=encode_special)
    return [payload, *auxiliary]


def encode_sampling(sampling: SamplingParams) -> dict[str, Any]:
    """The sampling map, defaults left out; `max_tokens` is always stated."""
    wire: dict[str, Any] = {"max_tokens": sampling.max_tokens}
    for name, default in _PLAIN_FIELDS.items():
        value = getattr(sampling, name)
        if value != default:
            wire[name] = value
    _add_stops(wire, sampling)
    _add_token_sets(wire, sampling)
    if sampling.structured_output is not None:
        wire["structured_outputs"] = encode_structured_output(sampling.structured_output)
    if sampling.repetition_detection is not None:
        wire["repetition_detection"] = {
            "max_pattern_size": sampling.repetition_detection.max_pattern_size,
            "min_pattern_size": sampling.repetition_detection.min_pattern_size,
            "min_count": sampling.repetition_detection.min_count,
        }
    if sampling.extra_args:
        wire["extra_args"] = dict(sampling.extra_args)
    if sampling.extra_sampling:
        wire.update(sampling.extra_sampling)
    return wire


def encode_structured_output(constraint: StructuredOutput) -> dict[str, Any]:
    """The structured-output map: one constraint, its options, and the resolved backend."""
    backend = constraint.backend or DEFAULT_BACKEND
    wire: dict[str, Any] = {"_backend": backend}
    kind = constraint.kind
    if kind == "choice" and backend == DEFAULT_BACKEND:
        wire["grammar"] = choice_grammar(constraint.value)
    elif kind == "choice":
        wire["choice"] = list(constraint.value)
    elif kind in ("json", "structural_tag"):
        # As text, so that integers beyond 64 bits in a schema stay encodable.
        wire[kind] = json_text(constraint.value)
    else:
        wire[kind] = constraint.value
    for option in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(constraint, option):
            wire[option] = True
    if constraint.whitespace_pattern is not None:
        wire["whitespace_pattern"] = constraint.whitespace_pattern
    return wire


def _add_stops(wire: dict[str, Any], sampling: SamplingParams) -> None:
    if sampling.eos_token_id is not None:
        wire["_eos_token_id"] = sampling.eos_token_id
    if sampling.stop_token_ids:
        wire["stop_token_ids"] = sampling.stop_token_ids
    if sampling.all_stop_token_ids:
        wire["_all_stop_token_ids"] = sorted(sampling.all_stop_token_ids)


def _add_token_sets(wire: dict[str, Any], sampling: SamplingParams) -> None:
    if sampling.logit_bias:
        # Integer keys: the engine refuses string keys, and dies of it.
        wire["logit_bias"] = {token: clamped_bias(bias) for token, bias in sampling.logit_bias.items()}
    if sampling.allowed_token_ids is not None:
        wire["allowed_token_ids"] = sampling.allowed_token_ids
    if sampling.logprob_token_ids is not None:
        wire["logprob_token_ids"] = sampling.logprob_token_ids
    if sampling.bad_words_token_ids:
        wire["_bad_words_token_ids"] = sampling.bad_words_token_ids


def _fields(request: GenerationRequest, wave: int, client_index: int) -> list[Any]:
    extra = request.extra
    head = [
        request.request_id,
        _token_list(request),
        features(request),
        None if request.sampling is None else encode_sampling(request.sampling),
        None if request.pooling is None else _pooling(request.pooling),
        request.arrival_time,
        None if request.lora is None else _lora(request.lora),
        request.cache_salt,
        request.rank,
    ]
    tail = [
        extra.get("prompt_embeds"),
        extra.get("prompt_is_token_ids"),
        client_index,
        wave,
        request.priority,
        None if request.trace_headers is None else dict(request.trace_headers),
        False,
        request.external_request_id,
        request.reasoning_ended,
        extra.get("reasoning_parser_kwargs"),
        False,
        extra.get("session_id"),
    ]
    while tail and tail[-1] == _TAIL_DEFAULTS[len(tail) - 1]:
        tail.pop()
    return head + tail


def _token_list(request: GenerationRequest) -> Any:
    ids = request.prompt_token_ids
    if not ids:
        return None
    return ids if isinstance(ids, (list, tuple)) else list(ids)


_FINAL_ONLY: Final = 2
"""``RequestOutputKind.FINAL_ONLY``, the default of pooling."""


def _pooling(pooling: PoolingParams) -> list[Any]:
    # An array, unlike sampling: use_activation, dimensions, step_tag_id, returned_token_ids, task, requires_token_ids,
    # skip_reading_prefix_cache, late_interaction_params, extra_kwargs, output_kind, late_chunking_params (0.33).
    fields = [pooling.use_activation, pooling.dimensions, None, None, pooling.task]
    extra: dict[str, int] | None = None
    if pooling.second_text_start is not None:
        extra = {"compressed_token_type_ids": pooling.second_text_start}
    if pooling.late_chunking is not None:
        chunking = [pooling.late_chunking]
        return [*fields, False, pooling.skip_reading_prefix_cache, None, extra, _FINAL_ONLY, chunking]
    if extra is not None:
        return [*fields, False, pooling.skip_reading_prefix_cache, None, extra]
    if pooling.skip_reading_prefix_cache is not None:
        fields += [False, pooling.skip_reading_prefix_cache]
    return fields


def _lora(lora: LoraAdapter) -> list[Any]:
    # At most four elements: 0.27.1 and 0.32.0 disagree about the fifth.
    fields = [lora.name, lora.adapter_id, lora.path]
    if lora.base_model_name is not None:
        fields.append(lora.base_model_name)
    return fields
