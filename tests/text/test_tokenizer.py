"""Tokenizer: ids, single tokens, bad words; recorded pairs of real vocabularies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from smg_trio.core.errors import InvalidRequest
from smg_trio.text.model_files import ModelText
from smg_trio.text.tokenizer import INLINE_ENCODE_CHARS, Tokenizer
from tests.conftest import shared_path
from tests.text.conftest import LoadModel, load_demo
from tests.text.test_detokenizer import fallback_tokenizer, metaspace_tokenizer


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    tokenizer = load_demo().tokenizer
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_the_bytes_of_tokens_join_to_the_bytes_of_the_text(text: str) -> None:
    tokenizer = load_demo().tokenizer
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_long_texts_get_the_same_ids_as_short_ones(demo: ModelText) -> None:
    text = "the weather in Paris <think> 😀 " * (INLINE_ENCODE_CHARS // 10)
    assert len(text) > INLINE_ENCODE_CHARS
    assert demo.tokenizer.encode(text) == demo.tokenizer.backend.encode(text, add_special_tokens=False).ids


def test_lone_surrogates_become_replacement_characters(demo: ModelText) -> None:
    for text in ("a\ud83dz", "a\ud83dz" + " " * INLINE_ENCODE_CHARS):
        assert demo.tokenizer.encode(text) == demo.tokenizer.encode(text.replace("\ud83d", "\ufffd"))


def test_special_token_text_becomes_its_id_and_markers_survive_skipping(demo: ModelText) -> None:
    tokenizer = demo.tokenizer
    ids = tokenizer.encode("<|im_end|><think>")
    assert ids == [tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<think>")]
    assert tokenizer.decode(ids) == "<think>"
    assert tokenizer.special_ids == {tokenizer.token_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")}


def test_named_tokens_are_absent_where_null(demo: ModelText) -> None:
    tokenizer = demo.tokenizer
    assert (tokenizer.bos_token, tokenizer.bos_token_id, tokenizer.unk_token) == (None, None, None)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == tokenizer.token_id("<|im_end|>")
    assert "bos_token" not in tokenizer.special_tokens


def test_the_vocabulary_ends_behind_its_highest_id() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 70}, unk_token="a"))
    assert Tokenizer(backend).vocab_size == 71
    assert Tokenizer(Backend(models.BPE())).vocab_size == 0


def test_padding_and_truncation_of_the_file_are_switched_off() -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert Tokenizer(backend).encode("a a a a") == [0, 0, 0, 0]


def test_named_tokens_are_made_special_but_never_invented() -> None:
    backend = Backend(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
    tokenizer = Tokenizer(backend, {"eos_token": "<end>", "pad_token": "<nowhere>"}, extra_special=["a"])
    assert tokenizer.special_ids == {0, 1}
    assert (tokenizer.vocab_size, tokenizer.pad_token, tokenizer.pad_token_id) == (2, "<nowhere>", None)


def test_single_tokens_of_a_sentencepiece_vocabulary() -> None:
    tokenizer = fallback_tokenizer("▁hi", "x")
    assert [tokenizer.token_bytes(i) for i in (0xF0, 256, 257, 258)] == [b"\xf0", b"<s>", b" hi", b"x"]


def test_single_tokens_of_other_decoders_keep_their_space() -> None:
    tokenizer = metaspace_tokenizer()
    assert [tokenizer.token_bytes(i) for i in (1, 3, 5)] == [b" Hello", b"!", b"<tool>"]


@pytest.mark.parametrize("bad", [-1, 10**6, 2**40])
def test_ids_outside_the_vocabulary_stand_for_nothing(bad: int, demo: ModelText) -> None:
    for tokenizer in (demo.tokenizer, metaspace_tokenizer()):
        assert tokenizer.token_bytes(bad) == b""
        assert tokenizer.decode([bad]) == ""


def test_a_bad_word_is_spelled_with_and_without_a_space_in_front(demo: ModelText) -> None:
    tokenizer = demo.tokenizer
    bare, spaced = tokenizer.encode_bad_word(" weather")
    assert (tokenizer.decode(bare), tokenizer.decode(spaced)) == ("weather", " weather")
    assert tokenizer.encode_bad_word("<think>") == ((tokenizer.token_id("<think>"),),)
    with pytest.raises(InvalidRequest) as caught:
        tokenizer.encode_bad_word("  ")
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize("name", ["gpt2", "llama2", "llama3_1", "phi3", "qwen3"])
def test_real_vocabularies_encode_the_recorded_texts(name: str, real_model: LoadModel) -> None:
    fixtures = json.loads(shared_path("data", "detok", "llama_cpp_fixtures", f"{name}.json").read_text("utf-8"))
    tokenizer = real_model(name).tokenizer
    cases = fixtures["cases"] if isinstance(fixtures, dict) else fixtures
    assert len(cases) > 40
    for case in cases:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
