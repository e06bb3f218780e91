"""What a model directory says about pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smg_trio.core.errors import InvalidRequest
from smg_trio.text.pooling_files import PoolingTraits, read_pooling_traits

POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize"}
DENSE = {"type": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("modules", "normalizes"),
    [
        (None, True),
        ([POOLING, NORMALIZE], True),
        ([POOLING], False),
        ([NORMALIZE], True),
        ("broken", True),
        ([1], True),
    ],
)
def test_only_a_sentence_model_without_a_normalizing_module_does_not_normalize(
    tmp_path: Path, modules: Any, normalizes: bool
) -> None:
    if modules is not None:
        (tmp_path / "modules.json").write_text("{" if modules == "broken" else json.dumps(modules))
    assert read_pooling_traits(tmp_path, {}).normalizes is normalizes


def test_a_model_that_says_nothing_has_the_defaults(tmp_path: Path) -> None:
    assert read_pooling_traits(tmp_path, {}) == PoolingTraits()


def test_configuration_is_read_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    config = {
        "id2label": {"0": "no", "1": "yes", "x": "?", "2": 3},
        "use_sep_token": False,
        "type_vocab_size": 2,
        "hidden_size": 64,
        "matryoshka_dimensions": [8, 16],
    }
    traits = read_pooling_traits(tmp_path, config)
    assert [traits.label(number) for number in range(3)] == ["no", "yes", "LABEL_2"]
    assert not traits.separates_pairs
    assert traits.tells_texts_apart
    assert (traits.embedding_size, traits.matryoshka) == (64, (8, 16))
    (tmp_path / "modules.json").write_text(json.dumps([POOLING, DENSE]))
    assert read_pooling_traits(tmp_path, config).embedding_size is None


@pytest.mark.parametrize(
    ("traits", "dimensions", "problem"),
    [
        (PoolingTraits(), 8, "does not support Matryoshka"),
        (PoolingTraits(matryoshka=True, embedding_size=16), 17, "1..16"),
        (PoolingTraits(matryoshka=(4, 8)), 5, "4, 8"),
        (PoolingTraits(matryoshka=True, embedding_size=16), 16, None),
        (PoolingTraits(matryoshka=True), 10_000, None),
        (PoolingTraits(matryoshka=(4, 8)), 8, None),
    ],
)
def test_dimensions_must_be_what_the_model_can_have(
    traits: PoolingTraits, dimensions: int, problem: str | None
) -> None:
    if problem is None:
        traits.check_dimensions(dimensions, "m")
        return
    with pytest.raises(InvalidRequest, match=problem) as refused:
        traits.check_dimensions(dimensions, "m")
    assert refused.value.param == "dimensions"
