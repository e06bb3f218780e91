from __future__ import annotations

import pytest

from smg_trio.core.errors import ModelNotFound
from smg_trio.pipeline.models import ModelCatalog, ServedModel
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.text.model_files import load_model_text

TEXT = load_model_text(DEMO_MODEL)


def model(name: str, *aliases: str) -> ServedModel:
    return ServedModel(model_id=name, aliases=aliases, text=TEXT, root="r", created=1)


def test_a_model_answers_to_its_id_and_its_aliases() -> None:
    catalog = ModelCatalog()
    catalog.add(model("a", "b", "c"))
    assert {catalog.find(name).model_id for name in "abc"} == {"a"}
    assert list(catalog.names()) == ["a", "b", "c"]


def test_no_name_means_the_only_model() -> None:
    catalog = ModelCatalog()
    with pytest.raises(ModelNotFound):
        catalog.find("")
    catalog.add(model("a", "b"))
    assert catalog.find("").model_id == "a"
    catalog.add(model("c"))
    with pytest.raises(ModelNotFound):
        catalog.find("")


def test_other_names_are_not_found() -> None:
    catalog = ModelCatalog()
    catalog.add(model("a"))
    with pytest.raises(ModelNotFound) as missing:
        catalog.find("A")
    assert missing.value.model == "A"
