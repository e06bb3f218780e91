"""Two texts as one prompt, and texts cut to a number of tokens, as Hugging Face's tokenizers do it."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from smg_trio.core.errors import InvalidRequest
from smg_trio.text.pairs import cut_text, encode_cut, encode_pair
from smg_trio.text.tokenizer import Tokenizer

WORDS = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4, "c": 5}
texts = st.lists(st.sampled_from("abc"), max_size=12).map(" ".join)


def backend() -> tokenizers.Tokenizer:
    """A BERT-like tokenizer."""
    made = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return made


TOKENIZER = Tokenizer(backend())


@settings(max_examples=150, deadline=None)
@given(first=texts, second=texts, limit=st.integers(5, 30))
def test_pairs_are_cut_as_the_library_itself_cuts_them(first: str, second: str, limit: int) -> None:
    reference = backend()
    reference.enable_truncation(limit)
    expected = reference.encode(first, second)
    found = encode_pair(TOKENIZER, first, second, limit) if _cuttable(first, second, limit) else None
    if found is not None:
        assert found.token_ids == expected.ids
        assert found.second_start == expected.type_ids.index(1)


def _cuttable(first: str, second: str, limit: int) -> bool:
    """Whether something of both texts is left."""
    return len(first.split()) + len(second.split()) <= limit - 3 or (bool(first) and bool(second))


@settings(max_examples=100, deadline=None)
@given(text=texts, limit=st.integers(3, 20))
def test_single_texts_keep_their_special_tokens_when_they_are_cut(text: str, limit: int) -> None:
    reference = backend()
    reference.enable_truncation(limit)
    assert encode_cut(TOKENIZER, text, limit, add_special_tokens=True) == reference.encode(text).ids


def test_without_a_limit_nothing_is_cut() -> None:
    assert encode_cut(TOKENIZER, "a b c", None, add_special_tokens=False) == [3, 4, 5]
    assert encode_pair(TOKENIZER, "a", "b").token_ids == [0, 3, 1, 4, 1]
    assert encode_pair(TOKENIZER, "a", "b").second_start == 3


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_limit_that_leaves_nothing_is_refused(limit: int) -> None:
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        encode_cut(TOKENIZER, "a b", limit, add_special_tokens=True)
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        encode_pair(TOKENIZER, "a b", "c", limit)


@given(text=texts, limit=st.integers(1, 8))
def test_a_text_that_is_cut_is_its_own_beginning(text: str, limit: int) -> None:
    found = cut_text(TOKENIZER, text, limit)
    assert text.startswith(found)
    assert TOKENIZER.encode(found) == TOKENIZER.encode(text)[:limit]
    assert cut_text(TOKENIZER, text, 0) == text
