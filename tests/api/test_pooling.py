"""Scores, ranks and classes in vLLM's shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smg_trio.api.openai.pooled_prompts import PoolingAnswer
from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.api.pooling import (
    PairsRequest,
    classify_body,
    cosine_similarity,
    parse_classify_request,
    parse_rerank_request,
    parse_score_request,
    rerank_body,
    score_body,
)
from smg_trio.core.errors import InvalidRequest
from smg_trio.core.requests import PoolingParams

ANSWER = PoolingAnswer(response_id="x-1", model="m", created=7, prompt_tokens=5)
USAGE = {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": None}


def score(**fields: Any) -> PairsRequest:
    return parse_score_request(json.dumps(fields).encode())


def rerank(**fields: Any) -> PairsRequest:
    return parse_rerank_request(json.dumps({"query": "q", "documents": ["a", "b", "c"], **fields}).encode())


def test_one_query_goes_with_all_documents() -> None:
    assert score(queries="q", documents=["a", "b"]).pairs == [("q", "a"), ("q", "b")]
    assert score(text_1=["p", "q"], text_2=["a", "b"]).pairs == [("p", "a"), ("q", "b")]
    assert score(data_1="q", data_2={"content": [{"type": "text", "text": "a"}]}).pairs == [("q", "a")]
    assert score(queries="q", items="a", model="m").model == "m"


def test_settings_of_pairs() -> None:
    request = rerank(
        top_n=2,
        truncate_prompt_tokens=-1,
        instruction="find",
        chat_template_kwargs={"a": 1},
        use_activation=False,
        max_tokens_per_doc=9,
        priority=1,
    )
    assert (request.top_n, request.truncate_prompt_tokens, request.max_tokens_per_doc, request.priority) == (
        2,
        -1,
        9,
        1,
    )
    assert request.template_kwargs == {"instruction": "find", "a": 1}
    assert request.use_activation is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "queries"),
        ({"queries": ["a", "b"], "documents": ["a"]}, "queries"),
        ({"queries": "a", "documents": []}, "documents"),
        ({"queries": "a", "documents": [3]}, "documents[0]"),
        ({"queries": "a", "documents": {"content": [{"type": "image_url"}]}}, "documents.content[0].type"),
        ({"queries": "a", "documents": "b", "priority": "x"}, "priority"),
    ],
)
def test_bad_pairs_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        score(**fields)
    assert caught.value.param == param


def test_a_rerank_needs_query_and_documents() -> None:
    for name in ("query", "documents"):
        with pytest.raises(InvalidRequest) as caught:
            rerank(**{name: None})
        assert caught.value.param == name


def test_scores_are_shown_in_order() -> None:
    assert json.loads(score_body(ANSWER, [0.5, 0.25])) == {
        "id": "x-1",
        "object": "list",
        "created": 7,
        "model": "m",
        "data": [{"index": 0, "object": "score", "score": 0.5}, {"index": 1, "object": "score", "score": 0.25}],
        "usage": USAGE,
    }


def test_ranks_are_shown_best_first() -> None:
    body = json.loads(rerank_body(ANSWER, rerank(top_n=2), [0.1, 0.9, 0.9]))
    assert body["results"] == [
        {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
        {"index": 2, "document": {"text": "c"}, "relevance_score": 0.9},
    ]
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert len(json.loads(rerank_body(ANSWER, rerank(), [0.1, 0.9, 0.5]))["results"]) == 3


def test_classes_have_their_likeliest_label() -> None:
    body = json.loads(classify_body(ANSWER, [[0.25, 0.75]], lambda index: f"LABEL_{index}"))
    assert body["data"] == [{"index": 0, "label": "LABEL_1", "probs": [0.25, 0.75], "num_classes": 2}]


def test_inputs_are_prompts_or_a_conversation() -> None:
    request = parse_classify_request(
        b'{"model":"m","input":["a","b"],"use_activation":true,"truncate_prompt_tokens":4}'
    )
    assert request.pooling == PoolingParams(task="classify", use_activation=True)
    assert request.completion is not None
    assert request.completion.prompts == ["a", "b"]
    assert request.completion.sampling.truncate_prompt_tokens == 4
    chat = parse_classify_request(b'{"messages":[{"role":"user","content":"hi"}]}', RequestLimits()).chat
    assert chat is not None
    assert not chat.add_generation_prompt
    with pytest.raises(InvalidRequest):
        parse_classify_request(b'{"input":"a","messages":[{"role":"user","content":"hi"}]}')
    with pytest.raises(InvalidRequest) as caught:
        parse_classify_request(b'{"input":"a","normalize":true}')
    assert caught.value.param == "normalize"


def test_likeness_of_embeddings() -> None:
    assert cosine_similarity([1.0, 0.0], [2.0, 0.0]) == 1.0
    assert cosine_similarity([1.0, 0.0], [0.0, 3.0]) == 0.0
    assert cosine_similarity([0.0], [1.0]) == 0.0
