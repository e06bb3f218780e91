"""Inputs of pooling requests, and scores out of what was pooled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from smg_trio.api.openai.completions.request import CompletionRequest
from smg_trio.api.parameters.sampling import SamplingFields
from smg_trio.api.pooling import PairsRequest
from smg_trio.core.errors import EngineRejected, InvalidRequest, UnsupportedFeature
from smg_trio.core.requests import PoolingParams
from smg_trio.pipeline.models import ServedModel
from smg_trio.pipeline.pooling_inputs import (
    ScoringPlan,
    best_matches,
    encode_inputs,
    plan_scoring,
    resolve_pooling,
    scoring_task,
)
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.chat_template import ChatTemplate
from smg_trio.text.model_files import load_model_text
from smg_trio.text.pooling_files import PoolingTraits

TEXT = load_model_text(DEMO_MODEL)
ENCODE = TEXT.tokenizer.encode


def model(**text: Any) -> ServedModel:
    return ServedModel(model_id="m", text=replace(TEXT, **text), root="r", created=1)


def pairs(*pairs: tuple[str, str], **fields: Any) -> PairsRequest:
    return PairsRequest(model="m", pairs=pairs, template_kwargs=fields.pop("template_kwargs", {}), **fields)


def ids_of(plan: ScoringPlan) -> list[list[int]]:
    return [prompt.token_ids for prompt in plan.prompts]


@pytest.mark.parametrize(
    ("task", "asked", "normalizes", "sent"),
    [
        ("embed", None, True, True),
        ("embed", None, False, False),
        ("embed", False, True, False),
        ("token_embed", None, False, False),
        ("classify", None, False, True),
        ("classify", False, True, False),
    ],
)
def test_whether_to_activate_is_always_said(task: str, asked: bool | None, normalizes: bool, sent: bool) -> None:
    served = model(pooling=PoolingTraits(normalizes=normalizes))
    resolved = resolve_pooling(PoolingParams(task=task, use_activation=asked), served)
    assert resolved.use_activation is sent
    assert resolved.skip_reading_prefix_cache is (True if task == "token_embed" else None)


def test_classes_have_no_dimensions() -> None:
    assert resolve_pooling(PoolingParams(task="classify", dimensions=4), model()).dimensions is None
    with pytest.raises(InvalidRequest):
        resolve_pooling(PoolingParams(task="embed", dimensions=4), model())


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [1, 2, 3]),
        ({"truncate_prompt_tokens": 2}, [1, 2]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [2, 3]),
        ({"truncate_prompt_tokens": -1}, [1, 2, 3]),
    ],
)
def test_token_ids_are_cut_on_the_side_that_is_asked_for(fields: dict[str, Any], kept: list[int]) -> None:
    asked = CompletionRequest(model="", prompts=[[1, 2, 3]], sampling=SamplingFields(**fields))
    assert encode_inputs(asked, model(), 5) == [kept]


def test_the_task_of_scoring_follows_what_the_engine_supports() -> None:
    assert scoring_task({"classify", "embed", "token_embed"}, model()) == "embed"
    assert scoring_task({"classify", "token_classify"}, model()) == "classify"
    assert scoring_task({"token_embed"}, model()) == "token_embed"
    assert scoring_task({"generate"}, model()) is None
    with pytest.raises(UnsupportedFeature, match="JinaForRanking"):
        scoring_task({"embed"}, model(architectures=("JinaForRanking",)))


def test_each_different_query_is_embedded_once() -> None:
    plan = plan_scoring(pairs(("q", "a"), ("q", "b"), ("r", "c")), "embed", model(), 100)
    assert ids_of(plan) == [ENCODE(text) for text in ("q", "r", "a", "b", "c")]
    assert plan.pairs == [(0, 2), (0, 3), (1, 4)]
    assert plan.scores([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 1.0], [1.0, 1.0]]) == pytest.approx([1, 0, 0.5**0.5])


def test_a_cross_encoder_reads_both_texts_joined_or_as_a_pair() -> None:
    joined = plan_scoring(pairs(("q", "doc")), "classify", model(pooling=PoolingTraits(separates_pairs=False)), 100)
    assert ids_of(joined) == [ENCODE("qdoc")]
    paired = plan_scoring(pairs(("q", "doc")), "classify", model(), 100)
    assert ids_of(paired) == [ENCODE("q") + ENCODE("doc")]
    assert paired.scores([[0.25]]) == [0.25]
    with pytest.raises(UnsupportedFeature, match="2 classes"):
        paired.scores([[0.25, 0.75]])


def test_only_a_template_that_the_operator_named_is_used_for_pairs() -> None:
    source = "{{ instruction }}|{{ messages[0].role }}:{{ messages[0].content }}|{{ messages[1].content }}"
    template = ChatTemplate(source, {})
    asked = pairs(("q", "doc"), template_kwargs={"instruction": "Find"})
    named = plan_scoring(asked, "classify", model(chat_template=template, named_template=True), 100)
    assert ids_of(named) == [ENCODE("Find|query:q|doc")]
    own = plan_scoring(asked, "classify", model(chat_template=template), 100)
    assert ids_of(own) == [ENCODE("q") + ENCODE("doc")]


def test_queries_and_documents_have_limits_of_their_own() -> None:
    asked = pairs(("a b c d", "e f g h"), max_tokens_per_query=1, max_tokens_per_doc=2)
    plan = plan_scoring(asked, "embed", model(), 100)
    assert [len(ids) for ids in ids_of(plan)] == [1, 2]
    for name in ("max_tokens_per_query", "max_tokens_per_doc"):
        with pytest.raises(InvalidRequest) as refused:
            plan_scoring(pairs(("q", "d"), **{name: 100}), "embed", model(), 100)
        assert refused.value.param == name


def test_late_interaction_sums_the_best_match_of_each_query_token() -> None:
    assert best_matches([[1, 0], [0, 1]], [[1, 0], [0.5, 0.5], [0, 0.25]]) == 1.5
    plan = plan_scoring(pairs(("a b", "a b")), "token_embed", model(), 100)
    length = len(plan.prompts[0].token_ids)
    identity = [float(row == column) for row in range(length) for column in range(length)]
    assert plan.scores([identity, identity]) == [float(length)]
    with pytest.raises(EngineRejected):
        plan.scores([identity[:-1], identity])


def test_empty_texts_are_refused() -> None:
    for task in ("embed", "classify"):
        with pytest.raises(InvalidRequest):
            plan_scoring(pairs(("", "")), task, model(), 100)
    with pytest.raises(InvalidRequest):
        encode_inputs(CompletionRequest(model="", prompts=[""], sampling=SamplingFields()), model(), 10)
