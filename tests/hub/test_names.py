"""What is a name on the hub, and what is a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import ConfigError
from smg_trio.hub.names import HubName, is_revision, parse_hub_name, without_revision

NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": HubName("meta-llama/Llama-3.1-8B-Instruct"),
    "gpt2": HubName("gpt2"),
    "org/model@v1.0": HubName("org/model", "v1.0"),
    "org/model@refs/pr/3": HubName("org/model", "refs/pr/3"),
    "org/model@" + "0" * 40: HubName("org/model", "0" * 40),
    "org/model-GGUF:Q4_K_M": HubName("org/model-GGUF"),
    "org/model:Q8_0@main": HubName("org/model"),
    "o/m_.x-1": HubName("o/m_.x-1"),
}
NO_NAMES = [
    "", "/models/m", "./m", "../m", "~/m", "a/b/c", "a//b", "org/", "/m", "org/model/", "org/mo del", "org/mo--del",
    "org/mo..del", "org/model.git", "-a/b", "a/b-", "a/.b", "s3://bucket/m", "hf://org/m", "C:\\m", "org/m\n", "org/ä",
    "a/" + "b" * 96, "x" * 10_000, "org/model@", "org/m@a b",
]  # fmt: skip


@pytest.mark.parametrize("text", NAMES)
def test_names(text: str) -> None:
    assert parse_hub_name(text) == NAMES[text]


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_is_none(text: str) -> None:
    assert parse_hub_name(text) is None
    assert without_revision(text) == text


def test_a_revision_of_its_own() -> None:
    assert parse_hub_name("org/model", "v1") == HubName("org/model", "v1")
    assert parse_hub_name("org/model@v1", "v1") == HubName("org/model", "v1")
    with pytest.raises(ConfigError, match="names another revision than --revision v2") as caught:
        parse_hub_name("org/model@v1", "v2", option="labels.model_path")
    assert caught.value.option == "labels.model_path"


@pytest.mark.parametrize("revision", ["../x", "a..b", "/x", "x/", "a b", "~", "x" * 201, "a\\b", "a\n"])
def test_revisions_that_would_lead_elsewhere(revision: str) -> None:
    assert not is_revision(revision)
    with pytest.raises(ConfigError, match="is not a revision"):
        parse_hub_name("org/model", revision)


def test_a_name_without_its_revision() -> None:
    assert without_revision("org/model@v1") == "org/model"
    assert without_revision("org/model:Q4@v1") == "org/model:Q4"
    assert without_revision("org/model") == "org/model"
    assert without_revision("/models/m@v1") == "/models/m@v1"


@given(st.text(alphabet="abAB01-._/@:~ \\", max_size=30))
def test_a_name_stays_below_the_cache(text: str) -> None:
    try:
        name = parse_hub_name(text)
    except ConfigError:
        return
    if name is not None:
        assert ".." not in f"{name.repo}{name.revision}"
        assert not name.revision.startswith("/")
        assert parse_hub_name(str(name)) == name
        # The library agrees on what a repository is called.
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(name.repo)
