"""The model list."""

from __future__ import annotations

import json

from openai.types import Model

from smg_trio.api.openai.models import ModelCard, list_models, show_model


def test_models_are_listed_in_openais_shape_with_vllms_extras() -> None:
    base = ModelCard(model_id="base", created=5, max_model_len=2048, root="/models/base")
    lora = ModelCard(model_id="tuned", created=6, parent="base")
    listed = json.loads(list_models([base, lora]))
    assert listed["object"] == "list"
    for card in listed["data"]:
        Model.model_validate(card, strict=True)
    first, second = listed["data"]
    assert (first["id"], first["max_model_len"], first["root"]) == ("base", 2048, "/models/base")
    assert (second["parent"], second["root"], second["max_model_len"]) == ("base", "tuned", None)
    assert json.loads(show_model(base)) == first
    assert json.loads(list_models([])) == {"object": "list", "data": []}
