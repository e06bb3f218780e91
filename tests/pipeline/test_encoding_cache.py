"""The cache of tokenized pieces: never another answer than the tokenizer's, less work, bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.pipeline.encoding_cache import WORTH_CUTTING_CHARS, WORTH_KEEPING_CHARS, EncodingCache
from smg_trio.text.model_files import load_model_text
from smg_trio.text.tokenizer import Tokenizer

LONG = "the wind and the sea, " * 40


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    return load_model_text(Path(__file__).parents[2] / "smg_trio" / "testing" / "demo_model").tokenizer


def conversation(*turns: str) -> str:
    return "".join(f"<|im_start|>user\n{turn}<|im_end|>\n" for turn in turns)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.sampled_from([LONG, LONG + "é", "hi", "", LONG * 3, "<|im_start|>"]), max_size=6), max_size=5
    ),
    room=st.sampled_from([0, 3_000, 60_000, 10**9]),
)
def test_whatever_was_encoded_before_the_ids_are_the_tokenizers(prompts: Sequence[Sequence[str]], room: int) -> None:
    cache = EncodingCache(room)
    for turns in prompts:
        text = conversation(*turns)
        assert cache.encode(tokenizer(), text) == tokenizer().encode(text)


def test_a_growing_conversation_is_tokenized_piece_by_piece_only_once() -> None:
    cache = EncodingCache(10**9)
    turns = [f"{number} {LONG}" for number in range(6)]
    for count in range(3, 7):
        text = conversation(*turns[:count])
        assert cache.encode(tokenizer(), text) == tokenizer().encode(text)
    assert (cache.misses, cache.hits, cache.evictions) == (6, 3 + 4 + 5, 0)
    assert cache.reused_bytes > 12 * len(LONG)


def test_what_is_not_worth_it_is_neither_cut_nor_kept() -> None:
    cache = EncodingCache(10**9)
    short = conversation("a" * (WORTH_CUTTING_CHARS // 2))
    many_short = conversation(*["b" * (WORTH_KEEPING_CHARS // 2)] * 20)
    for text in (short, many_short):
        assert cache.encode(tokenizer(), text) == tokenizer().encode(text)
    assert (cache.hits, cache.misses) == (0, 0)


def test_the_least_recently_used_piece_gives_way() -> None:
    first, second, third, fourth = (conversation(f"{number}{LONG * 3}") for number in range(4))
    measure = EncodingCache(10**9)
    measure.encode(tokenizer(), first)
    cache = EncodingCache(int(3.5 * measure.used_bytes))
    for text in (first, second, third, first, fourth):
        cache.encode(tokenizer(), text)
    assert (cache.hits, cache.evictions) == (1, 1)
    cache.encode(tokenizer(), first)
    assert cache.hits == 2
    cache.encode(tokenizer(), second)
    assert (cache.hits, cache.evictions) == (2, 2)


def test_a_piece_larger_than_the_cache_is_not_kept() -> None:
    cache = EncodingCache(5_000)
    for _ in range(2):
        cache.encode(tokenizer(), conversation(LONG * 10))
    assert (cache.hits, cache.misses, cache.evictions) == (0, 2, 0)
