"""The list of models in Anthropic's shape."""

from __future__ import annotations

import json

from anthropic.types import ModelInfo

from smg_trio.api.anthropic.models import list_models, show_model
from smg_trio.api.openai.models import ModelCard


def test_a_list_is_one_page() -> None:
    cards = [ModelCard(model_id=name, created=0, max_model_len=2048) for name in ("a", "b")]
    page = json.loads(list_models(cards))
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "a", "b")
    assert [ModelInfo.model_validate(model).id for model in page["data"]] == ["a", "b"]
    assert json.loads(list_models([]))["first_id"] is None


def test_a_model_says_when_it_was_made_and_how_much_it_takes() -> None:
    value = json.loads(show_model(ModelCard(model_id="a", created=86400, max_model_len=2048)))
    assert value["created_at"] == "1970-01-02T00:00:00Z"
    assert value["max_input_tokens"] == 2048
