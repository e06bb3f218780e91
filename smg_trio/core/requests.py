"""The narrow waist, downwards: what is asked of an engine. Token ids in; nothing here knows text.

`GenerationRequest` is what `pipeline.prepare` makes and `worker` sends. It holds only what an engine
core acts on: stop strings, `n`, detokenizing and the like stay above the waist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smg_trio.core.records import record

if TYPE_CHECKING:
    from smg_trio.core.media import MediaFeature

StructuredKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """One constraint on the generated text.

    Attributes:
        kind: which of the engine's constraint kinds.
        value: ``json``: schema as dict or JSON text; ``regex``, ``grammar`` (EBNF or Lark),
            ``structural_tag`` (JSON text): str; ``choice``: sequence of str; ``json_object``: True.
        disable_any_whitespace, disable_additional_properties, whitespace_pattern: vLLM's options.
        backend: grammar backend by name, or None for "the one this worker has settled on".
    """

    kind: StructuredKind
    value: Any
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetection:
    """vLLM's stop-on-repetition: patterns of min..max tokens that occur `min_count` times in a row."""

    max_pattern_size: int
    min_pattern_size: int = 0
    min_count: int = 0


@record
class SamplingParams:
    """Sampling of one sequence, in engine terms; defaults are the engines' own.

    Attributes:
        max_tokens: int >= 1, already resolved (context length minus prompt where the client is silent).
        top_k: 0 means off.
        seed: None means unseeded.
        eos_token_id: ends with finish ``stop`` and no stop reason; None where EOS is ignored.
        stop_token_ids: further ids that end the sequence (extra EOS ids, then the client's).
        all_stop_token_ids: every id that `min_tokens` masks and grammars end on, EOS included even
            when it is ignored.
        logprobs, prompt_logprobs: number of top candidates beside the sampled token; -1 the whole
            vocabulary; None off.
        logit_bias: token id -> bias.
        bad_words_token_ids: token sequences never to be produced.
        extra_args: passed through (``kv_transfer_params`` travels in it on vLLM).
        extra_sampling: rarely used sampling fields of one engine protocol, by their wire name; which ones
            exist and what they may hold is the protocol's to check.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    all_stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] | None = None
    structured_output: StructuredOutput | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: Mapping[str, Any] | None = None
    extra_sampling: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """What is pooled instead of generated (embeddings, scores, classes).

    Attributes:
        use_activation: an engine takes None for False, so that the code that knows the model decides.
        skip_reading_prefix_cache: what is pooled per token must be computed for every token.
        second_text_start: position of the first token of the second of two texts, for models that embed which of
            the two a token belongs to; None for all others.
        late_chunking: tokens per chunk, where the vectors of a chunk's tokens are wanted as their mean (task
            ``token_embed``).
    """

    task: str
    dimensions: int | None = None
    use_activation: bool | None = None
    skip_reading_prefix_cache: bool | None = None
    second_text_start: int | None = None
    late_chunking: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """A LoRA adapter the engine has loaded or shall load; ``adapter_id`` >= 1, ``path`` not empty."""

    name: str
    adapter_id: int
    path: str
    base_model_name: str | None = None


@record
class GenerationRequest:
    """One sequence asked of one engine.

    Attributes:
        request_id: unique among everything in flight at the worker (a duplicate kills vLLM's engine).
        prompt_token_ids: int[T], T >= 1; placeholders of media are expanded.
        media: in the order of their places in the prompt. `worker` sends the one form that the chosen engine wants.
        sampling: exactly one of `sampling` and `pooling` is set.
        arrival_time: wall-clock seconds since the epoch; only priority scheduling reads it.
        priority: lower is sooner; only with the engine's priority scheduling.
        rank: a pinned data-parallel rank, or None to let the worker choose.
        stream: whether outputs are wanted as they come. The wire always asks the engine for each
            token, so that stop strings can end a request immediately; this is a hint for statistics.
        extra: prepared request fields of one engine protocol, by their wire name (vLLM: `prompt_embeds`
            as TensorValue, `session_id`, …).
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    media: tuple[MediaFeature, ...] = ()
    sampling: SamplingParams | None = None
    pooling: PoolingParams | None = None
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    lora: LoraAdapter | None = None
    trace_headers: Mapping[str, str] | None = None
    rank: int | None = None
    reasoning_ended: bool | None = None
    stream: bool = True
    external_request_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
