"""Tokenizers of every format give the ids of the library that they come from.

The files and ids in tests/golden/tokenizers are made by scripts/make_test_tokenizers.py.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import ConfigError
from smg_trio.text.detokenizer import Detokenizer
from smg_trio.text.formats.sentencepiece_proto import PieceType, read_sentencepiece
from smg_trio.text.formats.tiktoken import is_tiktoken
from smg_trio.text.model_files import ModelText, load_model_text
from smg_trio.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers"
WITH_IDS = sorted(path.parent.name for path in GOLDEN.glob("*/ids.json"))
REMEMBERING = ["sentencepiece-bpe", "sentencepiece-bpe-symbols", "tekken-v3", "tekken-v7"]
REMEMBERING += ["tiktoken-glm", "tiktoken-hunyuan", "tiktoken-kimi", "tiktoken-qwen"]
LOSSLESS = [*REMEMBERING, "sentencepiece-bpe-no-prefix", "sentencepiece-unigram-bytes"]


@lru_cache(maxsize=32)
def load(name: str) -> ModelText:
    return load_model_text(GOLDEN / name)


def tokenizer_of(name: str) -> Tokenizer:
    return load(name).tokenizer


def golden(name: str) -> Iterator[tuple[str, list[int]]]:
    texts = json.loads((GOLDEN / "texts.json").read_text("utf-8"))
    ids = json.loads((GOLDEN / name / "ids.json").read_text("utf-8"))
    yield from zip(texts, ids, strict=True)


# ---- ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_IDS)
def test_ids_are_those_of_the_formats_own_library(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text, ids in golden(name):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.backend.encode(text, add_special_tokens=False).ids == ids, text


@pytest.mark.parametrize("name", REMEMBERING)
def test_words_are_remembered(name: str) -> None:
    words = tokenizer_of(name).words
    assert words is not None
    words.forget()
    text = "The gateway turns messages into a prompt. The prompt becomes token ids."
    assert (
        words.encode(text)
        == words.encode(text)
        == tokenizer_of(name).backend.encode(text, add_special_tokens=False).ids
    )


@pytest.mark.parametrize("name", WITH_IDS)
def test_offsets_point_into_the_text(name: str) -> None:
    text = "The gateway turns messages into a prompt."
    encoding = tokenizer_of(name).backend.encode(text, add_special_tokens=False)
    assert encoding.offsets[0][0] == 0
    assert encoding.offsets[-1][1] == len(text)
    assert all(before <= after for before, after in encoding.offsets)


@pytest.mark.parametrize("name", LOSSLESS)
def test_texts_come_back_whole_and_piece_by_piece(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text, ids in golden(name):
        expected = text.replace("▁", " ") if name.startswith("sentencepiece") else text
        if name in ("tiktoken-qwen", "tiktoken-hunyuan"):
            continue  # these compose characters first
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected
        stream = Detokenizer(tokenizer, [], skip_special_tokens=False)
        assert "".join(stream.push([token_id]) for token_id in ids) + stream.flush() == expected


# ---- special tokens ---------------------------------------------------------------------------------------

NAMES = {
    "sentencepiece-bpe": ("<s>", "</s>"),
    "tekken-v7": ("<s>", "</s>"),
    "tiktoken-kimi": ("[BOS]", "[EOS]"),
    "tiktoken-qwen": (None, "<|endoftext|>"),
    "tiktoken-hunyuan": ("<|startoftext|>", "<|eos|>"),
    "sentencepiece-unigram-bytes": ("<s>", "</s>"),
    "wordpiece-cased": (None, None),
}


@pytest.mark.parametrize(("name", "named"), NAMES.items())
def test_special_tokens_are_named_where_the_settings_are_silent(
    name: str, named: tuple[str | None, str | None]
) -> None:
    model = load(name)
    assert (model.tokenizer.bos_token, model.tokenizer.eos_token) == named
    assert model.eos_token_ids == (() if named[1] is None else (model.tokenizer.token_id(named[1]),))


AROUND = {
    "sentencepiece-bpe": (["<s>"], []),
    "sentencepiece-bpe-symbols": (["<s>"], ["</s>"]),
    "sentencepiece-bpe-normalizing": ([], []),
    "sentencepiece-unigram": ([], []),
    "sentencepiece-unigram-bytes": ([], ["</s>"]),
    "sentencepiece-fairseq": (["<s>"], ["</s>"]),
    "tekken-v7": (["<s>"], []),
    "tiktoken-glm": (["[gMASK]", "<sop>"], []),
    "tiktoken-kimi": ([], []),
    "wordpiece-uncased": (["[CLS]"], ["[SEP]"]),
}


@pytest.mark.parametrize(("name", "around"), AROUND.items())
def test_special_tokens_around_a_text(name: str, around: tuple[list[str], list[str]]) -> None:
    tokenizer = tokenizer_of(name)
    before, after = ([tokenizer.token_id(token) for token in tokens] for tokens in around)
    for text in ("hello", ""):
        assert tokenizer.encode(text, add_special_tokens=True) == [*before, *tokenizer.encode(text), *after]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("sentencepiece-fairseq", ["<s>", 0, "</s>", "</s>", 1, "</s>"]),
        ("sentencepiece-bpe", ["<s>", 0, "<s>", 1]),
        ("wordpiece-uncased", ["[CLS]", 0, "[SEP]", 1, "[SEP]"]),
        ("sentencepiece-unigram-bytes", [0, "</s>", 1, "</s>"]),
    ],
)
def test_special_tokens_around_two_texts(name: str, pattern: list[str | int]) -> None:
    tokenizer = tokenizer_of(name)
    texts = [tokenizer.encode("one"), tokenizer.encode("two")]
    parts = [[tokenizer.token_id(part)] if isinstance(part, str) else texts[part] for part in pattern]
    assert tokenizer.backend.encode("one", "two").ids == [token_id for part in parts for token_id in part]
    if name.startswith("wordpiece"):
        assert tokenizer.backend.encode("one", "two").type_ids[-2:] == [1, 1]


def test_control_tokens_are_found_in_texts_and_left_out_of_decoded_ones() -> None:
    for name in ("sentencepiece-bpe", "tekken-v7"):
        tokenizer = tokenizer_of(name)
        ids = tokenizer.encode("[INST]hello[/INST]")
        assert [ids[0], ids[-1]] == [tokenizer.token_id("[INST]"), tokenizer.token_id("[/INST]")]
        assert tokenizer.decode(ids) == "hello"
        assert tokenizer.special_ids >= {ids[0], ids[-1]}


def test_a_kimi_vocabulary_has_named_reserved_and_visible_tokens() -> None:
    tokenizer = tokenizer_of("tiktoken-kimi")
    assert [tokenizer.token_id(token) for token in ("[BOS]", "<|im_end|>", "<|reserved_token_903|>")] == [900, 902, 903]
    assert tokenizer.vocab_size == 900 + 256
    ids = tokenizer.encode("<|tool_call_begin|>x<|im_end|>")
    assert ids[0] == 907
    assert tokenizer.decode(ids) == "<|tool_call_begin|>x"


def test_tekken_reserves_ids_for_tokens_without_a_name() -> None:
    tokenizer = tokenizer_of("tekken-v3")
    assert [tokenizer.token_id(token) for token in ("<unk>", "[TOOL_CONTENT]", "<SPECIAL_39>")] == [0, 19, 39]
    assert tokenizer.token_id("<SPECIAL_40>") is None
    assert load("tekken-v3").vocab_size == tokenizer.vocab_size == 835  # five entries of the file are not the model's


def test_tokens_listed_in_the_older_file_are_added(tmp_path: Path) -> None:
    model = copy_of("sentencepiece-bpe", tmp_path)
    (model / "added_tokens.json").write_text(json.dumps({"<extra>": 700, "<far>": 900}))
    tokenizer = load_model_text(model).tokenizer
    assert (tokenizer.token_id("<extra>"), tokenizer.token_id("<far>")) == (700, None)
    assert tokenizer.encode("<extra>") == [700]


def test_settings_say_that_a_piece_of_the_vocabulary_is_special(tmp_path: Path) -> None:
    model = copy_of("sentencepiece-bpe-no-prefix", tmp_path)
    place = tokenizer_of("sentencepiece-bpe-no-prefix").token_id("[REF]")
    assert tokenizer_of("sentencepiece-bpe-no-prefix").decode([place or 0]) == "[REF]"
    listed = {str(place): {"content": "[REF]", "special": True}}
    (model / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    tokenizer = load_model_text(model).tokenizer
    assert (tokenizer.encode("a[REF]")[-1], tokenizer.decode([place or 0])) == (place, "")


def test_settings_say_whether_texts_after_control_tokens_begin_with_a_space(tmp_path: Path) -> None:
    model = copy_of("sentencepiece-bpe", tmp_path)
    bare = tokenizer_of("sentencepiece-bpe").encode
    assert bare("a</s>a") == [*bare("a"), 2, *bare("a")]
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "legacy": False}))
    tokenizer = load_model_text(model).tokenizer
    assert tokenizer.words is not None
    inside = tokenizer.encode("a</s>a")
    assert [tokenizer.backend.id_to_token(token_id) for token_id in inside] == ["▁a", "</s>", "a"]
    for text, ids in golden("sentencepiece-bpe"):
        assert tokenizer.encode(text) == ids, text


# ---- config -----------------------------------------------------------------------------------------------


def test_a_model_in_mistrals_format_is_described_by_its_params() -> None:
    model = load("tekken-v7")
    assert (model.context_length, model.model_type, model.architectures) == (4096, "mistral", ("MistralForCausalLM",))
    assert load("mistral-v3").architectures == ("MixtralForCausalLM",)


# ---- what is refused --------------------------------------------------------------------------------------


def copy_of(name: str, directory: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, directory / name))


def complaint(model: Path, **arguments: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_model_text(model, **arguments)
    assert caught.value.option == "--tokenizer-path"
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        (
            "tiktoken-kimi",
            {"tokenizer_class": "NewTokenizer"},
            "tokenizer_class `NewTokenizer` with model_type `None` is not known",
        ),
        ("tiktoken-glm", {}, "tiktoken vocabulary, but how it cuts texts"),
        (
            "sentencepiece-unigram",
            {"tokenizer_class": "AlbertTokenizer"},
            "SentencePiece model of the class `AlbertTokenizer`",
        ),
        (
            "wordpiece-cased",
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "vocabulary of the class `BertJapaneseTokenizer`",
        ),
        ("wordpiece-cased", {"cls_token": "<cls>"}, "the vocabulary has no <cls>"),
    ],
)
def test_what_a_models_own_code_would_do_is_never_guessed(
    name: str, settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    model = copy_of(name, tmp_path)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    assert problem in complaint(model).problem


def test_a_tiktoken_vocabulary_may_be_understood_by_the_model_type(tmp_path: Path) -> None:
    model = copy_of("tiktoken-qwen", tmp_path)
    (model / "tokenizer_config.json").unlink()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen"}))
    assert load_model_text(model).tokenizer.encode("1998 漢字") == tokenizer_of("tiktoken-qwen").encode("1998 漢字")


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x0a\xff\xff\xff\x7f", b"{}"]
)
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sentencepiece-bpe", "tokenizer.model"),
        ("tekken-v7", "tekken.json"),
        ("tiktoken-kimi", "tiktoken.model"),
        ("wordpiece-cased", "vocab.txt"),
    ],
)
def test_broken_files_are_complaints_that_name_them(name: str, file: str, content: bytes, tmp_path: Path) -> None:
    model = copy_of(name, tmp_path)
    (model / file).write_bytes(content)
    assert file in complaint(model).problem


def test_a_model_cut_off_anywhere_is_a_complaint(tmp_path: Path) -> None:
    model = copy_of("sentencepiece-bpe", tmp_path)
    whole = (model / "tokenizer.model").read_bytes()
    for size in (1, 2, 10, 5000, len(whole) - 1):
        (model / "tokenizer.model").write_bytes(whole[:size])
        complaint(model)


def test_a_directory_with_weights_alone_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    error = complaint(tmp_path)
    assert "tokenizer.json, tekken.json, tiktoken.model" in error.problem
    assert "inside a GGUF file is not read" in error.problem


def test_a_tokenizer_may_be_named_as_a_file_of_any_format(tmp_path: Path) -> None:
    for name, file in (("sentencepiece-bpe", "tokenizer.model"), ("tekken-v7", "tekken.json")):
        model = load_model_text(tmp_path, tokenizer_path=GOLDEN / name / file)
        assert model.tokenizer.encode("hello") == tokenizer_of(name).encode("hello")


# ---- readers ----------------------------------------------------------------------------------------------


def test_a_sentencepiece_file_is_read_as_it_was_written() -> None:
    model = read_sentencepiece((GOLDEN / "sentencepiece-bpe-symbols" / "tokenizer.model").read_bytes())
    assert (model.is_bpe, model.byte_fallback, model.add_dummy_prefix) == (True, True, True)
    assert (model.remove_extra_whitespaces, model.charsmap, len(model.pieces)) == (False, b"", 700)
    assert [piece.type for piece in model.pieces[:3]] == [PieceType.UNKNOWN, PieceType.CONTROL, PieceType.CONTROL]
    assert {piece.text for piece in model.pieces if piece.type is PieceType.USER_DEFINED} == {"[REF]", "<tool>", "\n\n"}
    normalizing = read_sentencepiece((GOLDEN / "sentencepiece-bpe-normalizing" / "tokenizer.model").read_bytes())
    assert (normalizing.remove_extra_whitespaces, normalizing.byte_fallback) == (True, False)
    assert normalizing.charsmap


@given(st.binary(max_size=200))
def test_bytes_that_are_no_sentencepiece_file_are_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert read_sentencepiece(data).pieces


@given(st.binary(max_size=60))
def test_a_tiktoken_file_is_told_by_its_first_line(data: bytes) -> None:
    is_tiktoken(data)
    assert is_tiktoken(b"aGVsbG8= 12\n" + data)
    assert not is_tiktoken(b"\n\x0e\n\x05<unk>\x15" + data)
