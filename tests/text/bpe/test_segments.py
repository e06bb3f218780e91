"""Cutting texts at special tokens changes no id."""

from __future__ import annotations

import re

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from smg_trio.text.bpe.segments import cut, cutting_pattern
from smg_trio.text.tokenizer import Tokenizer
from tests.text.conftest import LoadModel, load_demo

REAL = ["llama2", "mistral_v3", "phi3", "qwen3", "deepseek_v3"]


def pieced(tokenizer: Tokenizer, text: str) -> list[int]:
    assert tokenizer.cutting_pattern is not None
    return [token for piece in cut(text, tokenizer.cutting_pattern) for token in tokenizer.encode(piece)]


def texts(marks: list[str]) -> st.SearchStrategy[str]:
    word = st.sampled_from([" ", "\n", "  \n", "a", " the", "é", "😀", "<", "|>", "<s", "s>", "▁", "12", "\t"])
    return st.lists(st.sampled_from(marks) | word | st.text(max_size=4), max_size=12).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=texts(["<|im_start|>", "<|im_end|>", "<think>", "<tool_call>", "<|im_start|", "user\n"]))
def test_the_ids_of_the_pieces_are_the_ids_of_the_whole(text: str) -> None:
    tokenizer = load_demo().tokenizer
    assert pieced(tokenizer, text) == tokenizer.encode(text)


@pytest.mark.parametrize("name", REAL)
def test_so_they_are_with_real_vocabularies(name: str, real_model: LoadModel) -> None:
    tokenizer = real_model(name).tokenizer
    added = list(tokenizer.added_tokens.values())[:300]

    @settings(max_examples=150, deadline=None)
    @given(text=texts(added))
    def holds(text: str) -> None:
        assert pieced(tokenizer, text) == tokenizer.encode(text)

    holds()


def test_pieces_join_to_the_text_and_begin_with_a_mark() -> None:
    assert cut("a<x>b<x><y>", re.compile("<x>|<y>")) == ["a", "<x>b", "<x>", "<y>"]
    assert cut("<x>", re.compile("<x>")) == ["<x>"]
    assert cut("", re.compile("<x>")) == []


def words_with(*tokens: AddedToken) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(tokens))
    return backend


@pytest.mark.parametrize(
    ("tokens", "pattern"),
    [
        ([AddedToken("<a>", normalized=False)], "<a>"),
        ([AddedToken("<a>", normalized=False, rstrip=True)], "<a>"),
        ([AddedToken("<a>", normalized=False, lstrip=True)], None),
        ([AddedToken("<a>", normalized=False, single_word=True)], None),
        ([AddedToken("<a>", normalized=True)], None),
        # Where one may stand inside of another, or overlap with it, there may be another one than was looked for.
        ([AddedToken("<a>", normalized=False), AddedToken("x<a>", normalized=False)], "x<a>"),
        ([AddedToken("<a>", normalized=False), AddedToken("<a>x", normalized=False)], None),
        ([AddedToken("<a>", normalized=False), AddedToken("x<a", normalized=False)], "x<a"),
        ([AddedToken("aba", normalized=False)], None),
        ([AddedToken(f"<r{number}>", normalized=False) for number in range(500)], None),
        ([], None),
    ],
)
def test_only_tokens_that_say_nothing_of_what_stands_before_them_are_cut_at(
    tokens: list[AddedToken], pattern: str | None
) -> None:
    found = cutting_pattern(words_with(*tokens))
    assert (found and found.pattern) == pattern
