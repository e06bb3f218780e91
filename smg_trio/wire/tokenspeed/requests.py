"""`GenerationRequest` to TokenSpeed's ADD payload (``TokenizedGenerateReqInput``, 11-element form).

Sampling goes out in the normalised form: what the engine's constructor would rewrite is rewritten
here, and the last element says so. Greedy is "temperature 1, top_k 1" there, "off" is a `top_k` of
2**30, and with greedy 0.1.1 pins the seed to 0.

Mirrors TokenSpeed 0.1.1's `tokenspeed/runtime/engine/io_struct.py` and
`tokenspeed/runtime/sampling/sampling_params.py` (``SamplingParams.normalize``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smg_trio.wire.grammar import ANY_OBJECT_SCHEMA, choice_grammar, json_text
from smg_trio.wire.limits import clamped_bias
from smg_trio.wire.packing import pack

if TYPE_CHECKING:
    from smg_trio.core.requests import GenerationRequest, SamplingParams, StructuredOutput

TAG: Final = "TokenizedGenerateReqInput"
_GREEDY_BELOW: Final = 1e-6
_TOP_K_OFF: Final = 1 << 30


def encode_request(request: GenerationRequest) -> bytes:
    """The payload frame of a checked generation request.

    `stream` is always true: without it the engine answers every 50 tokens only, and a stop string
    could not end a request in time. A pinned rank is left out: routing is by identity.
    """
    sampling = request.sampling
    if sampling is None:
        raise ValueError("a TokenSpeed request needs sampling parameters")
    ids = request.prompt_token_ids
    return pack(
        [
            TAG,
            request.request_id,
            None,
            None,
            ids if isinstance(ids, (list, tuple)) else list(ids),
            encode_sampling(sampling),
            sampling.logprobs is not None,
            -1,
            0,
            None,
            True,
        ]
    )


def encode_sampling(sampling: SamplingParams) -> list[Any]:
    """The 29 positional sampling fields, normalised."""
    temperature, top_k, seed = _normalised(sampling)
    schema, regex, ebnf, tag = _constraint(sampling.structured_output)
    bias = sampling.logit_bias
    budget = sampling.thinking_token_budget
    return [
        sampling.max_tokens,
        None,  # stop strings: the engine has no tokenizer
        sorted({*sampling.stop_token_ids}) or None,
        temperature,
        float(sampling.top_p),
        top_k,
        float(sampling.min_p),
        float(sampling.frequency_penalty),
        float(sampling.presence_penalty),
        float(sampling.repetition_penalty),
        sampling.min_tokens,
        schema,
        regex,
        ebnf,
        tag,
        sampling.ignore_eos,
        True,  # skip_special_tokens, spaces between them, no_stop_trim: text is made by the gateway
        True,
        False,
        None if budget == -1 else budget,
        None,  # custom_params
        None,  # stream_interval: the engine's own
        # String keys, the opposite of vLLM.
        {str(token): clamped_bias(value) for token, value in bias.items()} if bias else None,
        seed,
        None,  # logprobs: return_logprob of the request decides
        1,  # n
        [],  # stop_strs
        0,  # stop_str_max_len
        True,  # is_normalized
    ]


def _normalised(sampling: SamplingParams) -> tuple[float, int, int | None]:
    seed = None if sampling.seed == -1 else sampling.seed
    if sampling.temperature < _GREEDY_BELOW:
        return 1.0, 1, 0
    if sampling.top_k == 1:
        return float(sampling.temperature), 1, 0
    return float(sampling.temperature), sampling.top_k if sampling.top_k > 0 else _TOP_K_OFF, seed


def _constraint(
    constraint: StructuredOutput | None,
) -> tuple[str | None, str | None, str | None, str | None]:
    """The json_schema, regex, ebnf and structural_tag slots; at most one is set."""
    if constraint is None:
        return None, None, None, None
    match constraint.kind:
        case "json":
            return json_text(constraint.value), None, None, None
        case "json_object":
            return ANY_OBJECT_SCHEMA, None, None, None
        case "regex":
            return None, constraint.value, None, None
        case "choice":
            return None, None, choice_grammar(constraint.value), None
        case "grammar":
            return None, None, constraint.value, None
        case "structural_tag":
            return None, None, None, json_text(constraint.value)
