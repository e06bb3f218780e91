"""Which files of a model's directory or repository text work needs, told from their names alone. Pure.

The loader and the downloader both ask here, so that what is fetched is what is read. Never weights, and never a
model's own code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

TokenizerFormat = Literal["tokenizers", "tekken", "tiktoken", "sentencepiece", "byte_level_bpe", "wordpiece"]

SETTINGS_FILES: Final = (
    "config.json",
    "generation_config.json",
    "params.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]_*/config.json",
)
"""Patterns of the small files that are needed beside a tokenizer; ``*`` does not cross a ``/``."""

_OFFICIAL_MISTRAL: Final = ("tekken.json", "tokenizer.model.v*")
_MISTRAL_MARKS: Final = ("params.json", "consolidated*.safetensors")
_BY_PREFERENCE: Final[tuple[tuple[TokenizerFormat, tuple[str, ...]], ...]] = (
    ("tokenizers", ("tokenizer.json",)),
    ("tekken", ("tekken.json",)),
    ("tiktoken", ("tiktoken.model",)),
    ("tiktoken", ("*.tiktoken",)),
    ("sentencepiece", ("tokenizer.model",)),
    ("sentencepiece", ("tokenizer.model.v*",)),
    ("sentencepiece", ("sentencepiece.bpe.model",)),
    ("sentencepiece", ("sentencepiece.model",)),
    ("sentencepiece", ("spiece.model",)),
    ("sentencepiece", ("spm.model",)),
    ("byte_level_bpe", ("vocab.json", "merges.txt")),
    ("wordpiece", ("vocab.txt",)),
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files that make a tokenizer.

    Attributes:
        format: how they are read. A file called ``tokenizer.model`` may hold a tiktoken vocabulary all the same;
            only its content tells.
        names: their names, the main one first.
    """

    format: TokenizerFormat
    names: tuple[str, ...]


def needed_files(names: Iterable[str]) -> tuple[str, ...]:
    """Of all file names in a repository or directory (``/`` between folders), those to have, in order of the alphabet.

    One tokenizer (the preferred one of several), the settings beside it, chat templates, and the configuration of
    the model, its processors and its pooling. What is missing in `names` is missing in the outcome.
    """
    present = set(names)
    tokenizer = find_tokenizer_files(present)
    settings = [name for name in present if any(_matches(name, pattern) for pattern in SETTINGS_FILES)]
    return tuple(sorted({*settings, *(tokenizer.names if tokenizer else ())}))


def find_tokenizer_files(names: Collection[str]) -> TokenizerFiles | None:
    """The tokenizer to load where a model has several, or None if it has none of a known kind.

    ``tokenizer.json`` is preferred, but for repositories in Mistral's own format: there the official tokenizer
    is, which its chat encoding needs (as vLLM 0.32 has it with ``--tokenizer-mode auto``).
    """
    if is_mistral_format(names):
        for pattern in _OFFICIAL_MISTRAL:
            if found := _last(names, pattern):
                return TokenizerFiles("tekken" if pattern == "tekken.json" else "sentencepiece", (found,))
    for kind, patterns in _BY_PREFERENCE:
        files = [_last(names, pattern) for pattern in patterns]
        if all(files):
            return TokenizerFiles(kind, tuple(name for name in files if name))
    return None


def is_mistral_format(names: Collection[str]) -> bool:
    """Whether a model is published as Mistral does: an official tokenizer beside ``params.json`` or its weights."""
    return all(any(_last(names, pattern) for pattern in group) for group in (_OFFICIAL_MISTRAL, _MISTRAL_MARKS))


def _last(names: Collection[str], pattern: str) -> str | None:
    """Of names that match, the one with the highest version: ``v7`` and ``v11`` are compared as numbers."""
    return max((name for name in names if _matches(name, pattern)), key=_version, default=None)


def _version(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)
