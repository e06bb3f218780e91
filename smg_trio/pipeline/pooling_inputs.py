"""What is embedded, scored or classified → prompts for pooling requests, and pooled values → scores. Pure.

Rules are those of vLLM 0.32's API server (``entrypoints/pooling/``, ``pooling_params.py``). How two texts are scored
depends on what the engine was started for: a classifier reads both at once (cross-encoder); an embedding model reads
each alone, and the score is the cosine of the two embeddings; a model with an embedding per token is scored by the
best match of each of the query's tokens (late interaction).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import TYPE_CHECKING, Final

from smg_trio.api.pooling import PairsRequest, cosine_similarity
from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.core.requests import PoolingParams
from smg_trio.pipeline.late_chunking import rows_of
from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.pairs import cut_text, encode_cut, encode_pair

if TYPE_CHECKING:
    from smg_trio.api.openai.completions.request import CompletionRequest
    from smg_trio.api.parameters.sampling import SamplingFields
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.pipeline.prepared_media import PreparedMedia

CROSS_ENCODER: Final = "classify"
BI_ENCODER: Final = "embed"
LATE_INTERACTION: Final = "token_embed"
_SCORING_TASKS: Final = (BI_ENCODER, CROSS_ENCODER, LATE_INTERACTION)
_OWN_SCORING: Final = frozenset({"JinaForRanking"})
"""Architectures that are scored in a way of their own, all documents in one prompt."""


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """One pooling request: int[T], what is wanted of it, and the media in it."""

    token_ids: list[int]
    pooling: PoolingParams
    media: PreparedMedia | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringPlan:
    """Pairs of texts as pooling requests.

    Attributes:
        task: what the engine is asked for.
        prompts: one per pair for a cross-encoder, else each different query, then the documents.
        pairs: (index of the query, index of the document) in ``prompts``, for each score; empty for a cross-encoder.
    """

    task: str
    prompts: list[PoolingPrompt]
    pairs: list[tuple[int, int]]

    def scores(self, pooled: Sequence[Sequence[float]]) -> list[float]:
        """The scores, from what each prompt gave. Raises UnsupportedFeature for a model of several classes."""
        if self.task == CROSS_ENCODER:
            return [_only_class(values) for values in pooled]
        if self.task == BI_ENCODER:
            return [cosine_similarity(pooled[query], pooled[document]) for query, document in self.pairs]
        rows = [rows_of(values, len(one.token_ids)) for values, one in zip(pooled, self.prompts, strict=True)]
        return [best_matches(rows[query], rows[document]) for query, document in self.pairs]


def resolve_pooling(pooling: PoolingParams, model: ServedModel) -> PoolingParams:
    """What the client wants, with the model's defaults, which an engine does not fill in.

    Raises InvalidRequest for dimensions that the model cannot have.
    """
    traits = model.text.pooling
    embeds = pooling.task in (BI_ENCODER, LATE_INTERACTION)
    if embeds and pooling.dimensions is not None:
        traits.check_dimensions(pooling.dimensions, model.model_id)
    use_activation = pooling.use_activation
    return replace(
        pooling,
        dimensions=pooling.dimensions if embeds else None,
        use_activation=(traits.normalizes if embeds else True) if use_activation is None else use_activation,
        skip_reading_prefix_cache=True if pooling.task.startswith("token_") else None,
    )


def encode_inputs(request: CompletionRequest, model: ServedModel, max_model_len: int) -> list[list[int]]:
    """The ids of each input, cut if that is wanted. Raises InvalidRequest."""
    keep = _kept_tokens(request.sampling.truncate_prompt_tokens, max_model_len)
    inputs = []
    for one in request.prompts:
        if not isinstance(one, str):
            ids = cut_ids(one, request.sampling, max_model_len)
        elif request.sampling.truncation_side is not None:
            whole = model.text.tokenizer.encode(one, add_special_tokens=request.add_special_tokens)
            ids = cut_ids(whole, request.sampling, max_model_len)
        else:
            ids = encode_cut(model.text.tokenizer, one, keep, add_special_tokens=request.add_special_tokens)
        if not ids:
            raise InvalidRequest("An input is empty.", param="input")
        inputs.append(ids)
    return inputs


def cut_ids(token_ids: list[int], fields: SamplingFields, max_model_len: int) -> list[int]:
    """Keep the first `truncate_prompt_tokens` ids, or the last where that side is asked for."""
    keep = _kept_tokens(fields.truncate_prompt_tokens, max_model_len)
    if keep is None or len(token_ids) <= keep:
        return token_ids
    if keep == 0:
        raise InvalidRequest("truncate_prompt_tokens=0 leaves an empty prompt.", param="truncate_prompt_tokens")
    return token_ids[-keep:] if fields.truncation_side == "left" else token_ids[:keep]


def _kept_tokens(asked: int | None, max_model_len: int) -> int | None:
    if asked is not None and asked > max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens={asked} cannot be greater than max_model_len={max_model_len}.",
            param="truncate_prompt_tokens",
        )
    return max_model_len if asked == -1 else asked


def scoring_task(tasks: Collection[str], model: ServedModel) -> str | None:
    """What an engine that supports `tasks` is asked for to score pairs; None if it cannot score.

    Raises UnsupportedFeature for models that score in a way of their own.
    """
    if not _OWN_SCORING.isdisjoint(model.text.architectures):
        raise UnsupportedFeature(f"Scoring with {model.text.architectures[0]} models is not supported.", param="model")
    return next((task for task in _SCORING_TASKS if task in tasks), None)


def plan_scoring(request: PairsRequest, task: str, model: ServedModel, max_model_len: int) -> ScoringPlan:
    """Turn pairs into pooling requests for `task`. Raises InvalidRequest."""
    for name in ("max_tokens_per_query", "max_tokens_per_doc"):
        if getattr(request, name) >= max_model_len:
            message = f"{name} ({getattr(request, name)}) must be less than max_model_len ({max_model_len})."
            raise InvalidRequest(message, param=name)
    asked = PoolingParams(task=task, use_activation=request.use_activation)
    pooling = resolve_pooling(asked, model)
    keep = _kept_tokens(request.truncate_prompt_tokens, max_model_len)
    cut = _cut_pairs(request, model)
    if task == CROSS_ENCODER:
        prompts = [_pair_prompt(pair, request, pooling, model, keep) for pair in cut]
        return ScoringPlan(task=task, prompts=prompts, pairs=[])
    queries = {query: number for number, query in enumerate(dict.fromkeys(query for query, _ in cut))}
    texts = [*queries, *(document for _, document in cut)]
    prompts = [PoolingPrompt(_alone(text, model, keep), pooling) for text in texts]
    pairs = [(queries[query], len(queries) + index) for index, (query, _) in enumerate(cut)]
    return ScoringPlan(task=task, prompts=prompts, pairs=pairs)


def _cut_pairs(request: PairsRequest, model: ServedModel) -> list[tuple[str, str]]:
    tokenizer, of_query, of_doc = model.text.tokenizer, request.max_tokens_per_query, request.max_tokens_per_doc
    return [(cut_text(tokenizer, query, of_query), cut_text(tokenizer, doc, of_doc)) for query, doc in request.pairs]


def _alone(text: str, model: ServedModel, keep: int | None) -> list[int]:
    ids = encode_cut(model.text.tokenizer, text, keep, add_special_tokens=True)
    if not ids:
        raise InvalidRequest("A text is empty.", param="documents")
    return ids


def _pair_prompt(
    pair: tuple[str, str], request: PairsRequest, pooling: PoolingParams, model: ServedModel, keep: int | None
) -> PoolingPrompt:
    text = model.text
    if text.named_template and isinstance(text.chat_template, ChatTemplate):
        messages = [{"role": "query", "content": pair[0]}, {"role": "document", "content": pair[1]}]
        rendered = text.chat_template.render(
            messages, add_generation_prompt=False, kwargs=dict(request.template_kwargs)
        )
        return PoolingPrompt(_alone(rendered, model, keep), pooling)
    if not text.pooling.separates_pairs:
        return PoolingPrompt(_alone("".join(pair), model, keep), pooling)
    tokens = encode_pair(text.tokenizer, *pair, keep)
    if not tokens.token_ids:
        raise InvalidRequest("Query and document are empty.", param="documents")
    if text.pooling.tells_texts_apart:
        pooling = replace(pooling, second_text_start=tokens.second_start)
    return PoolingPrompt(tokens.token_ids, pooling)


def best_matches(query: Sequence[Sequence[float]], document: Sequence[Sequence[float]]) -> float:
    """MaxSim: each query token's best dot product with a document token, summed up (float[T, D] each)."""
    return float(sum(max(sum(map(mul, one, other)) for other in document) for one in query))


def _only_class(values: Sequence[float]) -> float:
    if len(values) != 1:
        raise UnsupportedFeature(f"The model has {len(values)} classes; scoring needs one with one.", param="model")
    return values[0]
