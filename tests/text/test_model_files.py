"""Model directories: what is found, in which order, and how missing or broken files are reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.text.model_files import ModelText, load_model_text
from tests.conftest import DEMO_MODEL
from tests.text.conftest import LoadModel


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A copy of the demo model that a test may change."""
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))


def write(directory: Path, **files: Any) -> None:
    """Writes ``name_json=...`` / ``name_jinja=...`` files; None removes one."""
    for key, content in files.items():
        name, _, suffix = key.rpartition("_")
        path = directory / f"{name}.{suffix}"
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def source(model: ModelText) -> str | None:
    return model.chat_template.source if model.chat_template else None


def test_the_demo_model_has_everything(demo: ModelText) -> None:
    tokenizer = demo.tokenizer
    assert demo.chat_template is not None
    assert demo.eos_token_ids == (tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>"))
    assert (demo.vocab_size, demo.context_length) == (tokenizer.vocab_size, 8192)
    assert (demo.model_type, demo.architectures) == ("demo", ("DemoForCausalLM",))
    assert demo.default_sampling == {}


def test_templates_are_taken_in_the_order_of_precedence(model_dir: Path) -> None:
    config = json.loads((model_dir / "tokenizer_config.json").read_text())
    write(model_dir, tokenizer_config_json=config | {"chat_template": "config"}, chat_template_jinja=None)
    assert source(load_model_text(model_dir)) == "config"
    write(model_dir, other_jinja="other")
    assert source(load_model_text(model_dir)) == "other"
    write(model_dir, chat_template_jinja="main")
    assert source(load_model_text(model_dir)) == "main"
    write(model_dir, chat_template_json={"chat_template": "json"})
    assert source(load_model_text(model_dir)) == "json"
    write(model_dir, chosen_jinja="chosen", chosen_json={"chat_template": "chosen json"})
    assert source(load_model_text(model_dir, chat_template_path=model_dir / "chosen.jinja")) == "chosen"
    assert source(load_model_text(model_dir, chat_template_path=str(model_dir / "chosen.json"))) == "chosen json"
    assert source(load_model_text(model_dir, chat_template_path="{{ 'literal' }}")) == "{{ 'literal' }}"


def test_named_templates_are_chosen_by_whether_there_are_tools(model_dir: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    write(model_dir, tokenizer_config_json={"chat_template": named}, chat_template_jinja=None)
    model = load_model_text(model_dir)
    chosen = [model.template_for(tools=tools) for tools in (False, True)]
    assert [template and template.source for template in chosen] == ["plain", "with tools"]
    write(model_dir, tokenizer_config_json={"chat_template": {"only": "single"}})
    assert source(load_model_text(model_dir)) == "single"


def test_a_model_without_a_template_has_none(model_dir: Path) -> None:
    write(model_dir, chat_template_jinja=None)
    model = load_model_text(model_dir)
    assert model.chat_template is None
    assert model.template_for(tools=True) is None


def test_the_tokenizer_may_lie_elsewhere_as_directory_or_file(model_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "weights"
    bare.mkdir()
    write(bare, config_json={"vocab_size": 5000})
    for place in (model_dir, model_dir / "tokenizer.json"):
        model = load_model_text(bare, tokenizer_path=place)
        assert (model.tokenizer.eos_token, model.vocab_size) == ("<|im_end|>", 5000)
        assert model.chat_template is not None


def test_old_vocabulary_and_merges_files_make_the_same_tokenizer(model_dir: Path, demo: ModelText) -> None:
    bpe = json.loads((model_dir / "tokenizer.json").read_text("utf-8"))["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in bpe["merges"])
    write(model_dir, tokenizer_json=None, vocab_json=bpe["vocab"], merges_txt=merges, tokenizer_config_json=None)
    ids = load_model_text(model_dir).tokenizer.encode("What is the weather, é 😀?")
    assert ids == demo.tokenizer.encode("What is the weather, é 😀?")


def test_tokens_listed_only_in_the_config_are_added_where_their_ids_fit(model_dir: Path, demo: ModelText) -> None:
    end = demo.tokenizer.vocab_size
    listed = {
        str(end): {"content": "<extra>", "special": True},
        str(end + 9): {"content": "<gap>", "special": True},
        "0": {"content": "<taken>", "special": True},
    }
    write(model_dir, tokenizer_config_json={"added_tokens_decoder": listed, "eos_token": {"content": "<extra>"}})
    tokenizer = load_model_text(model_dir).tokenizer
    assert (tokenizer.token_id("<extra>"), tokenizer.eos_token_id) == (end, end)
    assert tokenizer.token_id("<gap>") is None
    assert tokenizer.token_id("<taken>") is None
    assert end in tokenizer.special_ids


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 1402, 9]}, {"eos_token_id": 5}, (1402, 7, 9)),
        ({"eos_token_id": 7}, {}, (1402, 7)),
        ({}, {"eos_token_id": 5}, (1402,)),
        (None, {"eos_token_id": 5}, (1402, 5)),
        (None, {"text_config": {"eos_token_id": [5, 6]}}, (1402, 5, 6)),
        (None, {}, (1402,)),
    ],
)
def test_the_tokenizers_eos_is_primary_and_the_generation_config_adds_more(
    model_dir: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    write(model_dir, generation_config_json=generation, config_json=config)
    assert load_model_text(model_dir).eos_token_ids == expected


def test_sampling_defaults_come_from_the_chosen_generation_config(model_dir: Path, tmp_path: Path) -> None:
    write(
        model_dir,
        generation_config_json={"temperature": 0.6, "top_k": 20, "do_sample": True, "min_p": None, "eos_token_id": 3},
    )
    assert load_model_text(model_dir).default_sampling == {"temperature": 0.6, "top_k": 20}
    neutral = load_model_text(model_dir, generation_config="vllm")
    assert (neutral.default_sampling, neutral.eos_token_ids) == ({}, (1402, 3))
    write(tmp_path, generation_config_json={"max_new_tokens": 5})
    assert load_model_text(model_dir, generation_config=str(tmp_path)).default_sampling == {"max_new_tokens": 5}


def test_limits_may_be_nested_or_absent(model_dir: Path) -> None:
    write(model_dir, config_json={"text_config": {"vocab_size": 9, "max_position_embeddings": 77}})
    model = load_model_text(model_dir)
    assert (model.vocab_size, model.context_length) == (9, 77)
    write(model_dir, config_json=None)
    model = load_model_text(model_dir)
    assert (model.vocab_size, model.context_length, model.model_type, model.architectures) == (None, None, None, ())


@pytest.mark.parametrize(
    ("change", "option", "problem"),
    [
        ({"tokenizer_json": None}, "--tokenizer-path", "does not contain a valid tokenizer file (tokenizer.json"),
        ({"tokenizer_json": "version https://git-lfs"}, "--tokenizer-path", "cannot be loaded"),
        ({"config_json": "{"}, "--model-path", "is not valid JSON"),
        ({"generation_config_json": "[]"}, "--model-path", "does not hold a JSON object"),
        ({"chat_template_jinja": "{% if %}"}, "--chat-template", "does not compile"),
        ({"chat_template_json": {}}, "--model-path", "has no `chat_template`"),
    ],
)
def test_missing_and_broken_files_name_the_option_and_the_remedy(
    model_dir: Path, change: dict[str, Any], option: str, problem: str
) -> None:
    write(model_dir, **change)
    with pytest.raises(ConfigError) as caught:
        load_model_text(model_dir)
    assert caught.value.option == option
    assert problem in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"model_path": "org/some-model"}, "--model-path"),
        ({"tokenizer_path": "org/some-model"}, "--tokenizer-path"),
        ({"chat_template_path": "nowhere.jinja"}, "--chat-template"),
        ({"generation_config": "nowhere"}, "--generation-config"),
    ],
)
def test_names_that_are_no_local_paths_are_config_errors(arguments: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model_text(**({"model_path": str(DEMO_MODEL)} | arguments))  # type: ignore[arg-type]
    assert caught.value.option == option


def test_a_file_that_is_not_text_is_a_config_error(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_model_text(model_dir)


@pytest.mark.parametrize(
    ("name", "eos", "sampling"),
    [
        ("llama3_1", (128009, 128001, 128008), {"temperature": 0.6, "top_p": 0.9}),
        ("qwen3", (151645, 151643), {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ("llama2", (2,), {"temperature": 0.6, "top_p": 0.9}),
    ],
)
def test_real_models_have_their_known_ends_and_defaults(
    name: str, eos: tuple[int, ...], sampling: dict[str, float], real_model: LoadModel
) -> None:
    model = real_model(name)
    assert (model.eos_token_ids, model.default_sampling) == (eos, sampling)
