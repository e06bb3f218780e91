"""Requests for pooled outputs instead of text: ``/v1/score``, ``/v1/rerank``, ``/classify`` in vLLM's shapes.

Requests for pooled outputs of prompts, not pairs, are read by `openai.pooled_prompts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from smg_trio.api.errors import load_json
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.chat.request import read_request_id
from smg_trio.api.openai.pooled_prompts import (
    PoolingAnswer,
    PoolingRequest,
    list_body,
    pooling_request,
    pooling_settings,
)
from smg_trio.api.parameters.fields import (
    Reader,
    array,
    array_of,
    boolean,
    describe,
    integer,
    mapping,
    read_fields,
    refuse,
    string,
    within,
)
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.parameters.sampling import parse_sampling

Scored = str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsRequest:
    """Pairs of texts to be scored, for ``/v1/score`` and ``/v1/rerank``.

    Attributes:
        pairs: (query, document) in the order in which scores are shown.
        top_n: how many of the best are shown (rerank); 0 is all.
        max_tokens_per_query, max_tokens_per_doc: what longer ones are cut to; 0 is no cut.
        template_kwargs: for a model's scoring template, ``instruction`` among them.
        truncate_prompt_tokens: of the whole pair; None is no cut, -1 as many as fit.
    """

    model: str
    pairs: Sequence[tuple[Scored, Scored]]
    use_activation: bool | None = None
    top_n: int = 0
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    template_kwargs: Mapping[str, Any]
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None


def parse_classify_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> PoolingRequest:
    """Read a ``/classify`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    return pooling_request(load_json(body), limits, "classify")


def parse_score_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> PairsRequest:
    """Read a ``/v1/score`` body: one query for all documents, or one each.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    for first, second in _SCORE_NAMES:
        if obj.get(first) is not None and obj.get(second) is not None:
            return _pairs_request(obj, _pairs(obj, first, second, limits), limits)
    raise refuse("queries", "'queries' and 'documents' are required")


def parse_rerank_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> PairsRequest:
    """Read a ``/v1/rerank`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    for name in ("query", "documents"):
        if obj.get(name) is None:
            raise refuse(name, "is required")
    query = _scored(obj["query"], "query")
    return _pairs_request(obj, [(query, text) for text in _texts(obj["documents"], "documents", limits)], limits)


def _pairs(obj: Mapping[str, Any], first: str, second: str, limits: RequestLimits) -> list[tuple[Scored, Scored]]:
    queries, documents = _texts(obj[first], first, limits), _texts(obj[second], second, limits)
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise refuse(first, f"must hold one text, or as many as '{second}' ({len(documents)})")
    return list(zip(queries, documents, strict=True))


def _pairs_request(obj: Mapping[str, Any], pairs: list[tuple[Scored, Scored]], limits: RequestLimits) -> PairsRequest:
    found = read_fields(obj, PAIR_READERS)
    settings = parse_sampling(pooling_settings(obj), limits, logprobs=None)
    instruction = found.pop("instruction", None)
    kwargs = found.pop("chat_template_kwargs", {})
    if instruction is not None:
        kwargs = {"instruction": instruction, **kwargs}
    return PairsRequest(
        model=found.pop("model", ""),
        pairs=pairs,
        template_kwargs=kwargs,
        truncate_prompt_tokens=settings.truncate_prompt_tokens,
        priority=settings.priority,
        cache_salt=settings.cache_salt,
        **found,
    )


def _texts(value: Any, param: str, limits: RequestLimits) -> list[Scored]:
    if not isinstance(value, list):
        return [_scored(value, param)]
    if not value:
        raise refuse(param, "must not be an empty array")
    return array_of(_scored, maximum=limits.max_prompts)(value, param)


def _scored(value: Any, param: str) -> Scored:
    """A text, or vLLM's ``{"content": [parts]}`` as far as its parts are text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise refuse(param, f"expected a string, got {describe(value)}")
    texts = []
    for index, part in enumerate(array(value.get("content"), f"{param}.content")):
        path = f"{param}.content[{index}]"
        if mapping(part, path).get("type") != "text":
            raise refuse(f"{path}.type", f"must be 'text', got {describe(part.get('type'))}")
        texts.append(string(part.get("text"), f"{path}.text"))
    return "\n".join(texts)


def score_body(answer: PoolingAnswer, scores: Sequence[float]) -> bytes:
    """The answer of ``/v1/score``: one score per pair."""
    return list_body(answer, [{"object": "score", "score": score} for score in scores])


def classify_body(answer: PoolingAnswer, probs: Sequence[Sequence[float]], label_of: Callable[[int], str]) -> bytes:
    """The answer of ``/classify``.

    Args:
        answer: its frame.
        probs: float[classes] per input.
        label_of: the model's name of a class.
    """
    data = []
    for row in probs:
        best = max(range(len(row)), key=row.__getitem__)
        data.append({"label": label_of(best), "probs": list(row), "num_classes": len(row)})
    return list_body(answer, data)


def rerank_body(answer: PoolingAnswer, request: PairsRequest, scores: Sequence[float]) -> bytes:
    """The answer of ``/v1/rerank``: the best first, equal scores in the order of the documents."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    shown = order[: request.top_n or len(order)]
    results = [
        {"index": index, "document": {"text": request.pairs[index][1]}, "relevance_score": scores[index]}
        for index in shown
    ]
    usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
    return encode_text(dump({"id": answer.response_id, "model": answer.model, "usage": usage, "results": results}))


def cosine_similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """How alike two embeddings float[D] are, -1..1: the score of a model that only embeds. 0 if one is null."""
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    norms = sqrt(sum(a * a for a in first)) * sqrt(sum(b * b for b in second))
    return max(-1.0, min(1.0, dot / norms)) if norms else 0.0


_SCORE_NAMES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
PAIR_READERS: dict[str, Reader] = {
    "model": string,
    "request_id": read_request_id,
    "use_activation": boolean,
    "top_n": within(integer, 0),
    "max_tokens_per_query": within(integer, 0),
    "max_tokens_per_doc": within(integer, 0),
    "instruction": string,
    "chat_template_kwargs": mapping,
}
