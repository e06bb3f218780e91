"""What is fetched of a repository and which of several tokenizers is loaded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.text.model_file_names import find_tokenizer_files, is_mistral_format, needed_files

LLAMA = [
    ".gitattributes", "LICENSE", "README.md", "config.json", "generation_config.json",
    "model-00001-of-00004.safetensors", "model.safetensors.index.json", "original/consolidated.00.pth",
    "original/params.json", "original/tokenizer.model", "special_tokens_map.json", "tokenizer.json",
    "tokenizer_config.json",
]  # fmt: skip
MISTRAL = [
    "SYSTEM_PROMPT.txt", "chat_template.json", "config.json", "consolidated.safetensors",
    "model-00001-of-00010.safetensors", "params.json", "preprocessor_config.json", "processor_config.json",
    "tekken.json", "tokenizer.json", "tokenizer_config.json",
]  # fmt: skip
KIMI = [
    "chat_template.jinja", "config.json", "configuration_deepseek.py", "model-1-of-61.safetensors", "tiktoken.model",
    "tokenization_kimi.py", "tokenizer_config.json",
]  # fmt: skip
SENTENCES = [
    "1_Pooling/config.json", "2_Normalize/.keep", "config.json", "config_sentence_transformers.json", "modules.json",
    "onnx/model.onnx", "onnx/tokenizer.json", "openvino/openvino_model.bin", "pytorch_model.bin",
    "sentence_bert_config.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt",
]  # fmt: skip


def test_one_tokenizer_and_the_small_files_beside_it() -> None:
    assert needed_files(LLAMA) == (
        "config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
    )  # fmt: skip
    assert needed_files(MISTRAL) == (
        "chat_template.json", "config.json", "params.json", "preprocessor_config.json", "processor_config.json",
        "tekken.json", "tokenizer_config.json",
    )  # fmt: skip
    assert needed_files(KIMI) == ("chat_template.jinja", "config.json", "tiktoken.model", "tokenizer_config.json")
    assert needed_files(SENTENCES) == (
        "1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "modules.json",
        "sentence_bert_config.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt",
    )  # fmt: skip


def test_chat_templates_by_name_are_needed() -> None:
    names = ["chat_template.jinja", "additional_chat_templates/tool_use.jinja", "additional_chat_templates/notes.txt"]
    assert needed_files(names) == ("additional_chat_templates/tool_use.jinja", "chat_template.jinja")


@pytest.mark.parametrize(
    ("names", "kind", "files"),
    [
        (["tokenizer.json", "tekken.json", "tokenizer.model", "vocab.json"], "tokenizers", ["tokenizer.json"]),
        (["tekken.json", "tokenizer.model", "config.json"], "tekken", ["tekken.json"]),
        (["qwen.tiktoken", "config.json"], "tiktoken", ["qwen.tiktoken"]),
        (["tiktoken.model", "tokenizer.model"], "tiktoken", ["tiktoken.model"]),
        (["tokenizer.model", "vocab.txt"], "sentencepiece", ["tokenizer.model"]),
        (["tokenizer.model.v3", "tokenizer.model.v11", "tokenizer.model.v7"], "sentencepiece", ["tokenizer.model.v11"]),
        (["sentencepiece.bpe.model"], "sentencepiece", ["sentencepiece.bpe.model"]),
        (["vocab.json", "merges.txt"], "byte_level_bpe", ["vocab.json", "merges.txt"]),
        (["vocab.txt", "vocab.json"], "wordpiece", ["vocab.txt"]),
        (["params.json", "tekken.json", "tokenizer.json"], "tekken", ["tekken.json"]),
        (["params.json", "tokenizer.model.v3", "tokenizer.json"], "sentencepiece", ["tokenizer.model.v3"]),
        (["params.json", "tokenizer.model", "tokenizer.json"], "tokenizers", ["tokenizer.json"]),
    ],
)  # fmt: skip
def test_the_preferred_of_several_tokenizers(names: list[str], kind: str, files: list[str]) -> None:
    found = find_tokenizer_files(names)
    assert found is not None
    assert (found.format, list(found.names)) == (kind, files)


def test_a_repository_without_a_tokenizer_has_none() -> None:
    assert find_tokenizer_files(["config.json", "model.gguf", "original/tokenizer.model", "vocab.json"]) is None
    assert needed_files(["config.json", "model.gguf", "vocab.json"]) == ("config.json",)


def test_mistrals_format_is_an_official_tokenizer_beside_params_or_its_weights() -> None:
    assert is_mistral_format(MISTRAL)
    assert is_mistral_format(["tekken.json", "consolidated-00001-of-00002.safetensors"])
    assert not is_mistral_format(["tekken.json", "config.json"])
    assert not is_mistral_format(["params.json", "tokenizer.model"])


NAMES = st.sampled_from(
    [
        *LLAMA,
        *MISTRAL,
        *KIMI,
        *SENTENCES,
        "a.gguf",
        "b.pt",
        "c.pth",
        "d.bin",
        "x/tokenizer.model.v3",
        "tokenizer.model.bin",
    ]
)


@given(st.lists(NAMES, unique=True))
def test_only_what_is_there_and_never_weights_or_code(names: list[str]) -> None:
    needed = needed_files(names)
    assert set(needed) <= set(names)
    assert not [
        name for name in needed if name.endswith((".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".py"))
    ]
    assert needed_files(needed) == needed
    assert find_tokenizer_files(needed) == find_tokenizer_files(names) or "consolidated.safetensors" in names
