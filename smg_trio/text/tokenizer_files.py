"""Finds a model's tokenizer among its files and loads it, whatever its format. Blocking: 0.2 to 3 s.

The format is told by the file's name (`text.model_file_names`), special tokens by ``tokenizer_config.json``,
``special_tokens_map.json`` and ``added_tokens.json``, and by the file itself where those are silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from smg_trio.core.errors import ConfigError
from smg_trio.text.formats.built import BuiltTokenizer, UnsupportedFormat, text_setting
from smg_trio.text.formats.sentencepiece import load_sentencepiece
from smg_trio.text.formats.tekken import load_tekken
from smg_trio.text.formats.tiktoken import is_tiktoken, load_tiktoken
from smg_trio.text.formats.wordpiece import load_wordpiece
from smg_trio.text.model_directory import existing_directory, file_names, read_json
from smg_trio.text.model_file_names import TokenizerFiles, find_tokenizer_files, is_mistral_format
from smg_trio.text.tokenizer import Tokenizer

_OPTION: Final = "--tokenizer-path"
_FORMATS: Final = (
    "tokenizer.json, tekken.json, tiktoken.model, tokenizer.model, vocab.json with merges.txt, or vocab.txt"
)
_START_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class TokenizerLocation:
    """Where a tokenizer is.

    Attributes:
        directory: of its settings and its files.
        files: its format and files.
        in_mistral_format: the directory is laid out as Mistral publishes its models.
    """

    directory: Path
    files: TokenizerFiles
    in_mistral_format: bool = False

    @property
    def main_file(self) -> Path:
        """The file with the vocabulary."""
        return self.directory / self.files.names[0]

    def has_official_chat(self, *, without_template: bool) -> bool:
        """Whether conversations are encoded as Mistral's library does it."""
        is_official = self.files.format == "tekken" or self.files.names[0].startswith("tokenizer.model.v")
        return is_official and (self.in_mistral_format or without_template)


def locate_tokenizer(model_dir: Path, tokenizer_path: str | Path | None) -> TokenizerLocation:
    """Finds the tokenizer of a model, or the one named by the operator as a directory or a file.

    Raises:
        ConfigError: there is none.
    """
    if tokenizer_path is None:
        return _in_directory(model_dir)
    path = Path(tokenizer_path).expanduser()
    if not path.is_file():
        return _in_directory(existing_directory(path, _OPTION))
    if path.name in ("vocab.json", "merges.txt"):
        return _in_directory(path.parent)
    found = find_tokenizer_files([path.name]) or TokenizerFiles("tokenizers", (path.name,))
    return TokenizerLocation(path.parent, found)


def _in_directory(directory: Path) -> TokenizerLocation:
    names = file_names(directory)
    found = find_tokenizer_files(names)
    if found is not None:
        return TokenizerLocation(directory, found, is_mistral_format(names))
    problem = f"Directory '{directory}' does not contain a valid tokenizer file ({_FORMATS})."
    if any(name.endswith(".gguf") for name in names):
        problem += " A tokenizer inside a GGUF file is not read."
    raise ConfigError(_OPTION, problem, "Pass a directory that has one with --tokenizer-path.")


def load_tokenizer(location: TokenizerLocation, settings: Mapping[str, Any], model_type: str | None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        location: where it is.
        settings: content of the ``tokenizer_config.json`` beside it.
        model_type: of ``config.json``; some vocabularies are understood by it.

    Raises:
        ConfigError: it is broken, or its ids would be wrong here.
    """
    directory = location.directory
    try:
        built = _build(location, settings, model_type)
        _add_missing_tokens(built.backend, settings, read_json(directory / "added_tokens.json"))
    except UnsupportedFormat as error:
        raise ConfigError(_OPTION, str(error), error.remedy) from None
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises its base class only
        raise ConfigError(
            _OPTION,
            f"the tokenizer in '{directory}' cannot be loaded ({location.files.names[0]}: {error}).",
            "Check that the file is whole (not a Git LFS pointer) and made by a supported library version.",
        ) from None
    listed = _named_tokens(read_json(directory / "special_tokens_map.json")) | _named_tokens(settings)
    known = {name: text for name, text in built.named.items() if name not in settings}
    extra = _extra_special_tokens(settings)
    if location.files.format != "tokenizers":  # a tokenizer.json says itself which ones are special
        extra += _listed_as_special(settings)
    return Tokenizer(built.backend, known | listed, extra_special=extra)


def _build(location: TokenizerLocation, settings: Mapping[str, Any], model_type: str | None) -> BuiltTokenizer:
    file = location.main_file
    match location.files.format:
        case "tokenizers":
            return BuiltTokenizer(tokenizers.Tokenizer.from_file(str(file)))
        case "byte_level_bpe":
            return BuiltTokenizer(_byte_level_bpe(file, location.directory / "merges.txt"))
        case "tekken":
            return load_tekken(file)
        case "wordpiece":
            return load_wordpiece(file, settings)
        case "sentencepiece" if not is_tiktoken(_start_of(file)):
            return load_sentencepiece(file, settings)
        case _:
            return load_tiktoken(file, settings, model_type)


def _start_of(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_START_BYTES)


def _byte_level_bpe(vocab: Path, merges: Path) -> tokenizers.Tokenizer:
    """A GPT-2 style tokenizer from its two old files."""
    backend = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


# --- special tokens ------------------------------------------------------------------------------


def _add_missing_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], older: Mapping[str, Any]) -> None:
    """Adds tokens that only the files beside the tokenizer list, in id order, where they get the listed ids.

    `older` is the content of ``added_tokens.json``, from before ``added_tokens_decoder`` was in the settings.
    """
    listed: dict[int, Mapping[str, Any]] = {
        token_id: {"content": text, "normalized": True} for text, token_id in older.items() if type(token_id) is int
    }
    decoder = settings.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        if key.isdigit() and isinstance(entry, dict):
            listed[int(key)] = entry
    present = backend.get_added_tokens_decoder()
    for token_id in sorted(listed):
        entry = listed[token_id]
        if token_id in present or not isinstance(entry.get("content"), str):
            continue
        known_id = backend.token_to_id(entry["content"])
        if known_id == token_id or (known_id is None and backend.get_vocab_size() == token_id):
            backend.add_tokens([_added_token(entry)])


def _added_token(entry: Mapping[str, Any]) -> tokenizers.AddedToken:
    flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return tokenizers.AddedToken(entry["content"], **flags)


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    extra = settings.get("extra_special_tokens")
    entries = {**(extra if isinstance(extra, dict) else {}), **settings}
    texts = {name: text_setting(entries, name) for name in entries if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _extra_special_tokens(settings: Mapping[str, Any]) -> list[str]:
    lists = (settings.get(key) for key in ("additional_special_tokens", "extra_special_tokens"))
    entries = [{"token": entry} for listed in lists if isinstance(listed, list) for entry in listed]
    return [text for entry in entries if (text := text_setting(entry, "token")) is not None]


def _listed_as_special(settings: Mapping[str, Any]) -> list[str]:
    decoder = settings.get("added_tokens_decoder")
    entries = decoder.values() if isinstance(decoder, dict) else ()
    special = [entry for entry in entries if isinstance(entry, dict) and entry.get("special") is True]
    return [text for entry in special if (text := text_setting(entry, "content")) is not None]
