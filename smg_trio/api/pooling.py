"""Requests for pooled outputs instead of text: ``/v1/score``, ``/v1/rerank``, ``/classify`` in vLLM's shapes.

Embeddings (`openai.embeddings`) share the reader of inputs. An input is a completions prompt or a conversation; what
tokenizes these tokenizes inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from smg_trio.api.errors import load_json
from smg_trio.api.openai.answer import dump, encode_text
from smg_trio.api.openai.chat.request import ChatRequest, chat_request_from, read_request_id, refuse_media_options
from smg_trio.api.openai.completions.request import CompletionRequest, parse_prompts
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
from smg_trio.core.requests import PoolingParams

Scored = str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """A validated request; exactly one of ``completion`` (prompts) and ``chat`` (one conversation) is set.

    Attributes:
        pooling: what the engine is asked for; every prompt gets its own engine request.
    """

    model: str
    pooling: PoolingParams
    completion: CompletionRequest | None = None
    chat: ChatRequest | None = None
    request_id: str | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingAnswer:
    """What answers have in common; ``prompt_tokens`` counts all inputs together."""

    response_id: str
    model: str
    created: int
    prompt_tokens: int


def parse_classify_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> PoolingRequest:
    """Read a ``/classify`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    return pooling_request(load_json(body), limits, "classify")


def pooling_request(obj: Mapping[str, Any], limits: RequestLimits, task: str) -> PoolingRequest:
    """Read what all requests for pooled outputs of prompts share.

    Raises:
        InvalidRequest: naming the parameter.
        UnsupportedFeature: for media.
    """
    found = read_fields(obj, _READERS)
    if "normalize" in obj:
        raise refuse("normalize", "was removed; use 'use_activation' instead")
    pooling = PoolingParams(task=task, dimensions=found.get("dimensions"), use_activation=found.get("use_activation"))
    model, request_id = found.get("model", ""), found.get("request_id")
    if (obj.get("input") is None) == (obj.get("messages") is None):
        raise refuse("input", "exactly one of 'input' and 'messages' is required")
    if obj.get("messages") is not None:
        chat = chat_request_from({"add_generation_prompt": False, **obj}, limits)
        return PoolingRequest(model=model, pooling=pooling, chat=chat, request_id=request_id)
    refuse_media_options(obj)
    completion = CompletionRequest(
        model=model,
        prompts=parse_prompts(obj["input"], limits, "input"),
        sampling=parse_sampling(_settings(obj), limits, logprobs=None),
        add_special_tokens=found.get("add_special_tokens", True),
    )
    return PoolingRequest(model=model, pooling=pooling, completion=completion, request_id=request_id)


def _settings(obj: Mapping[str, Any]) -> dict[str, Any]:
    return {name: obj[name] for name in _SETTINGS if name in obj}


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
    found = read_fields(obj, _PAIR_READERS)
    settings = parse_sampling(_settings(obj), limits, logprobs=None)
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


def pooling_usage(prompt_tokens: int) -> dict[str, Any]:
    """The ``usage`` object of answers without generated tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def list_body(answer: PoolingAnswer, data: Sequence[Mapping[str, Any]]) -> bytes:
    """The frame of all these answers but rerank's; ``data`` gets its indices here."""
    value = {
        "id": answer.response_id,
        "object": "list",
        "created": answer.created,
        "model": answer.model,
        "data": [{"index": index, **entry} for index, entry in enumerate(data)],
        "usage": pooling_usage(answer.prompt_tokens),
    }
    return encode_text(dump(value))


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
_SETTINGS = ("truncate_prompt_tokens", "truncation_side", "priority", "cache_salt")
_READERS: dict[str, Reader] = {
    "model": string,
    "request_id": read_request_id,
    "dimensions": within(integer, 1),
    "use_activation": boolean,
    "add_special_tokens": boolean,
}
_PAIR_READERS: dict[str, Reader] = {
    "model": string,
    "request_id": read_request_id,
    "use_activation": boolean,
    "top_n": within(integer, 0),
    "max_tokens_per_query": within(integer, 0),
    "max_tokens_per_doc": within(integer, 0),
    "instruction": string,
    "chat_template_kwargs": mapping,
}
