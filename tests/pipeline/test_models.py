from __future__ import annotations

import pytest

from smg_trio.core.errors import ModelNotFound
from smg_trio.core.requests import LoraAdapter
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


def test_an_adapter_is_a_model_of_its_own_name_with_the_id_of_the_one_it_adapts() -> None:
    catalog = ModelCatalog()
    catalog.add(model("a", "b"))
    adapter = LoraAdapter(name="poet", adapter_id=7, path="/poet")
    catalog.add_adapter(catalog.find("b"), adapter, created=5)
    found = catalog.find("poet")
    assert (found.model_id, found.lora, found.root, found.created, found.aliases) == ("a", adapter, "/poet", 5, ())
    assert list(catalog.names()) == ["a", "b", "poet"]
    assert [one.model_id for one in catalog] == ["a"]
    assert catalog.find("").lora is None
    assert catalog.adapted("a") is None
    catalog.remove_adapter("poet")
    catalog.remove_adapter("poet")
    with pytest.raises(ModelNotFound):
        catalog.find("poet")


def test_a_single_model_stands_in_for_names_that_begin_so() -> None:
    catalog = ModelCatalog()
    catalog.add(model("a", "b"))
    assert catalog.find("claude-x", stands_in_for="claude-").model_id == "a"
    for name, start in (("claude-x", None), ("gpt", "claude-")):
        with pytest.raises(ModelNotFound):
            catalog.find(name, stands_in_for=start)
    catalog.add(model("claude-x"))
    assert catalog.find("claude-x", stands_in_for="claude-").model_id == "claude-x"
    with pytest.raises(ModelNotFound):
        catalog.find("claude-y", stands_in_for="claude-")
