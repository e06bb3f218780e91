from __future__ import annotations

import pytest

from smg_trio.core.errors import ContextLengthExceeded, InvalidRequest
from smg_trio.pipeline.models import ServedModel
from smg_trio.pipeline.token_budget import TokenBudget
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.chat_template import MAX_RENDERED_CHARS
from smg_trio.text.model_files import load_model_text


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return ServedModel(model_id="m", text=load_model_text(DEMO_MODEL), root=str(DEMO_MODEL), created=0)


def test_a_text_that_fits_passes_whatever_its_length(model: ServedModel) -> None:
    text = "word " * 100_000
    tokens = len(model.text.tokenizer.encode(text))
    TokenBudget(tokens, is_window=True).check(text, model, "prompt")
    TokenBudget(10).check("short texts are not even counted", model, "prompt")


@pytest.mark.parametrize("text", ["word " * 100_000, "x" * 500_000, "\U0001f600" * 300_000])
def test_a_text_of_far_too_many_tokens_is_refused(model: ServedModel, text: str) -> None:
    with pytest.raises(ContextLengthExceeded) as raised:
        TokenBudget(1_000, is_window=True).check(text, model, "prompt")
    assert raised.value.param == "prompt"
    with pytest.raises(InvalidRequest):
        TokenBudget(1_000).check(text, model, "input")


def test_a_text_of_too_many_characters_is_not_even_counted(model: ServedModel) -> None:
    with pytest.raises(InvalidRequest, match="too many"):
        TokenBudget(10**9).check("a" * (MAX_RENDERED_CHARS + 1), model, "prompt")
