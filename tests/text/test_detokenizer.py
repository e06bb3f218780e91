"""Detokenizer: chunk invariance, nothing lost, nothing early; byte-exact on the detokenizing corpora."""

from __future__ import annotations

import json
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from smg_trio.text.detokenizer import HELD_LIMIT, Detokenizer
from smg_trio.text.model_files import ModelText
from smg_trio.text.tokenizer import Tokenizer
from tests.text.conftest import CORPUS, LoadModel, load_demo

BYTE_LEVEL = ["deepseek_v3", "deepseek_v4", "gpt2", "gptoss", "llama3_1", "mistral_tekken", "qwen3"]
BYTE_FALLBACK = ["gemma3", "llama2", "mistral_v1", "mistral_v3", "phi3"]
FFFD = "\ufffd"
modest = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = ["Hello world", " 👩🏽‍🚀 ok", "é東京は晴れ", "  two  spaces", "a\n\n\tb", "<think>x</think>", "안녕 세계", "�x"]


def fallback_tokenizer(*words: str, strip: bool = True) -> Tokenizer:
    """A sentencepiece-like tokenizer: ids 0..255 are the bytes, then ``<s>``, then `words`."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["<s>", *words]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


def metaspace_tokenizer() -> Tokenizer:
    """A decoder that has no per-token pieces."""
    tokens = ["<s>", "▁Hello", "▁world", "!", "▁", "<tool>", "<end>"]
    backend = Backend(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="!"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    backend.add_tokens(["<tool>", "<end>"])
    return Tokenizer(backend)


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int], **options: bool) -> tuple[list[str], str]:
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    return [detokenizer.push([token_id]) for token_id in ids], detokenizer.flush()


def corpus_cases(name: str) -> list[tuple[str, dict[str, Any], bool, dict[str, Any]]]:
    corpus = json.loads((CORPUS / f"{name}.json").read_text("utf-8"))
    modes = {"both": (True, False), "skip_special_tokens": (True,), "keep_special_tokens": (False,)}
    return [
        (label, case, skip, case[mode])
        for label, case in corpus["cases"].items()
        for mode, skips in modes.items()
        if mode in case
        for skip in skips
    ]


@pytest.mark.parametrize("name", BYTE_LEVEL + BYTE_FALLBACK)
def test_the_corpus_of_a_real_tokenizer_streams_piece_by_piece_as_recorded(name: str, real_model: LoadModel) -> None:
    tokenizer = real_model(name).tokenizer
    cases = corpus_cases(name)
    assert len(cases) > 100
    for label, case, skip, expected in cases:
        pieces, rest = stream(tokenizer, case["ids"], case.get("prompt_ids", []), skip_special_tokens=skip)
        assert pieces == expected["pieces"], label
        if expected["flush"] is None:  # the reference has already sent what the whole answer reads otherwise
            assert set(rest) == {FFFD}, label
        else:
            assert "".join(pieces) + rest == expected["decoded"], label


@pytest.mark.parametrize("name", ["llama3_1", "qwen3", "gpt2", "llama2", "mistral_v3"])
@modest
@given(data=st.data())
def test_random_ids_of_a_real_vocabulary_stream_as_the_librarys_own_stream_does(
    name: str, real_model: LoadModel, data: st.DataObject
) -> None:
    tokenizer = real_model(name).tokenizer
    backend = tokenizer.backend
    texts = st.sampled_from(TEXTS).map(tokenizer.encode)
    some_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=6)
    ids = data.draw(st.lists(texts | some_ids, max_size=4).map(lambda parts: [*chain.from_iterable(parts)]))
    prompt = data.draw(st.sampled_from(["Hi", "x y:", "\n"]).map(tokenizer.encode))
    skip = data.draw(st.booleans())
    reference = DecodeStream(ids=prompt, skip_special_tokens=skip)
    try:
        expected = [reference.step(backend, token_id) or "" for token_id in ids]
    except Exception:  # noqa: BLE001 - "Invalid prefix": the library cannot stream this sequence
        return
    pieces, rest = stream(tokenizer, ids, prompt, skip_special_tokens=skip)
    if tokenizer.pieces is not None and tokenizer.pieces.kind == "byte_level":
        assert pieces == expected
    whole = backend.decode(prompt + ids, skip_special_tokens=skip)
    before = backend.decode(prompt, skip_special_tokens=skip)
    if (before + "".join(expected)).rstrip(FFFD) == whole.rstrip(FFFD):
        assert (before + "".join(pieces) + rest).rstrip(FFFD) == whole.rstrip(FFFD)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 1500), max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=6),
    skip=st.booleans(),
    prompt=st.sampled_from([[], [65, 66], [1402]]),
)
def test_any_cutting_into_pushes_gives_the_decoded_answer(
    ids: list[int], cuts: list[int], skip: bool, prompt: list[int]
) -> None:
    tokenizer = load_demo().tokenizer
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    borders = [0, *sorted(cuts), len(ids)]
    pieces = [detokenizer.push(ids[start:end]) for start, end in pairwise(borders)]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 256, 257, 258, 259]), max_size=12))
def test_a_byte_fallback_stream_never_loses_a_word_or_shows_half_a_character(ids: list[int]) -> None:
    tokenizer = fallback_tokenizer("▁hi", "x", "�")
    pieces, rest = stream(tokenizer, ids, [258])
    text = "".join(pieces) + rest
    assert text.count("hi") == ids.count(257)
    assert text.count("x") == ids.count(258)
    assert all(not piece.endswith(FFFD) for piece in pieces)
    if FFFD not in tokenizer.decode(ids):
        assert "x" + text == tokenizer.decode([258, *ids])


def test_an_emoji_of_four_byte_tokens_comes_out_whole() -> None:
    tokenizer = fallback_tokenizer("▁ok")
    assert stream(tokenizer, [0xF0, 0x9F, 0x98, 0x80, 257], []) == (["", "", "", "😀", " ok"], "")


def test_an_invalid_byte_becomes_one_replacement_character_and_the_stream_goes_on() -> None:
    tokenizer = fallback_tokenizer("a", "b")
    assert stream(tokenizer, [257, 0xFF, 258], []) == (["a", "", f"{FFFD}b"], "")


def test_bytes_behind_a_released_character_that_turn_out_broken_are_not_lost() -> None:
    tokenizer = fallback_tokenizer("a", "b")
    assert stream(tokenizer, [0xC3, 0xA9, 0xFF, 258, 257], [257]) == (["", "é", "", f"{FFFD}b", "a"], "")


def test_an_answer_ending_inside_a_character_flushes_what_the_whole_answer_has() -> None:
    tokenizer = fallback_tokenizer("x")
    pieces, rest = stream(tokenizer, [257, 0xE4, 0xB8], [])
    assert (pieces, rest) == (["x", "", ""], FFFD * 2)
    assert tokenizer.decode([257, 0xE4, 0xB8]) == "x" + FFFD * 2


@pytest.mark.parametrize(("prompt", "first"), [([257], " hi"), ([], "hi"), ([256], "hi")])
def test_the_first_word_keeps_its_space_behind_a_visible_prompt_only(prompt: list[int], first: str) -> None:
    tokenizer = fallback_tokenizer("▁hi")
    assert stream(tokenizer, [257, 257], prompt)[0] == [first, " hi"]


def test_a_prompt_ending_inside_a_character_is_not_repeated_and_the_character_is_completed() -> None:
    fallback = fallback_tokenizer("▁hi")
    assert stream(fallback, [0x98, 0x80, 257], [257, 0xF0, 0x9F])[0] == ["", "😀", " hi"]
    demo = load_demo().tokenizer
    ids = demo.encode("ok 😀")
    assert "".join(stream(demo, ids[-1:], ids[:-1])[0]) == "😀"


def test_a_byte_token_followed_by_the_end_token_is_flushed() -> None:
    demo = load_demo().tokenizer
    half = demo.encode("😀")[:1]
    assert demo.eos_token_id is not None
    assert stream(demo, [*half, demo.eos_token_id], [])[1] == FFFD


def test_the_terminating_token_is_hidden_on_request_and_only_then() -> None:
    demo = load_demo().tokenizer
    ids = [*demo.encode("Hi"), demo.eos_token_id or 0]
    hidden = Detokenizer(demo, (), skip_special_tokens=False)
    assert hidden.push(ids, hide_last=True) + hidden.flush() == "Hi"
    shown = Detokenizer(demo, (), skip_special_tokens=False)
    assert shown.push(ids) + shown.flush() == "Hi<|im_end|>"
    assert Detokenizer(demo, ()).push([], hide_last=True) == ""


def test_special_tokens_in_the_middle_show_when_they_are_not_skipped() -> None:
    demo = load_demo().tokenizer
    ids = demo.encode("a<|im_end|>b<think>c")
    assert "".join(stream(demo, ids, [], skip_special_tokens=False)[0]) == "a<|im_end|>b<think>c"
    assert "".join(stream(demo, ids, [])[0]) == "ab<think>c"


@pytest.mark.parametrize("bad", [-1, 2**31, 2**40, 10**6])
def test_ids_outside_the_vocabulary_give_nothing_and_disturb_nothing(bad: int) -> None:
    for tokenizer in (load_demo().tokenizer, fallback_tokenizer("▁hi"), metaspace_tokenizer()):
        before, _ = stream(tokenizer, [1, 2, 3], [])
        after, _ = stream(tokenizer, [1, bad, 2, bad, 3], [bad])
        assert "".join(after) == "".join(before)


def test_endless_invalid_bytes_are_released_in_bounded_portions() -> None:
    for tokenizer in (load_demo().tokenizer, fallback_tokenizer("x")):
        # 0xFF is id 255 of the bytes here; in the byte-level alphabet it is the character ÿ.
        bad = tokenizer.token_id("ÿ") or 0xFF
        pieces, rest = stream(tokenizer, [bad] * 1000, [])
        assert "".join(pieces) + rest == FFFD * 1000
        assert max(map(len, pieces)) <= HELD_LIMIT + 1


class TestOtherDecoders:
    """Decoders without per-token pieces go through the library's stream."""

    def test_words_and_spaces_come_as_the_decoder_puts_them(self) -> None:
        tokenizer = metaspace_tokenizer()
        assert tokenizer.pieces is None
        assert stream(tokenizer, [1, 2, 3], []) == (["Hello", " world", "!"], "")
        assert stream(tokenizer, [2, 3], [1]) == ([" world", "!"], "")

    def test_adjacent_added_tokens_can_be_joined_without_spaces(self) -> None:
        backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
        backend.decoder = decoders.WordPiece()
        backend.add_tokens(["<x>", "<y>"])
        tokenizer = Tokenizer(backend)
        options = {"skip_special_tokens": False}
        assert "".join(stream(tokenizer, [1, 2, 0], [], **options)[0]) == "<x> <y> a"
        joined = stream(tokenizer, [1, 2, 0], [], spaces_between_special_tokens=False, **options)
        assert "".join(joined[0]) == "<x><y> a"

    @settings(max_examples=150, deadline=None)
    @given(ids=st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0xFF, 257, 258]), max_size=12))
    def test_no_word_is_lost_where_the_librarys_stream_gives_up(self, ids: list[int]) -> None:
        plain = fallback_tokenizer("▁hi", "x")
        plain.pieces = None  # forces the library's stream
        pieces, rest = stream(plain, ids, [258])
        text = "".join(pieces) + rest
        assert (text.count("hi"), text.count("x")) == (ids.count(257), ids.count(258))


def test_prompts_are_primed_in_constant_time(demo: ModelText) -> None:
    """Only the end of a prompt matters, so a long one is neither decoded nor copied."""

    class Counting(list[int]):
        seen = 0

        def __getitem__(self, index: Any) -> Any:
            part = super().__getitem__(index)
            Counting.seen += len(part) if isinstance(index, slice) else 1
            return part

    Detokenizer(demo.tokenizer, Counting(range(1000)))
    assert Counting.seen <= HELD_LIMIT
