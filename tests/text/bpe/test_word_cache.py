"""Remembered words give the ids that the library gives, for every text and every tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from smg_trio.text.bpe import word_cache
from smg_trio.text.bpe.pretokens import Pretokenizer, find_pretokenizer
from smg_trio.text.bpe.split_patterns import Splitter
from smg_trio.text.bpe.word_cache import MAX_TEXT_CHARS, Unknown, WordCache, make_word_cache
from smg_trio.text.token_pieces import BYTE_ALPHABET
from tests.text.conftest import LoadModel, load_demo

REAL = [
    "deepseek_v3",
    "deepseek_v4",
    "gemma3",
    "gpt2",
    "gptoss",
    "llama2",
    "llama3_1",
    "mistral_tekken",
    "mistral_v1",
    "mistral_v3",
    "phi3",
    "qwen3",
]
WORDS = [
    " ",
    "  ",
    "\n",
    "\r\n",
    " \n ",
    "\t",
    "a",
    " the",
    "I'M",
    "'s",
    "é",
    "e\u0301",
    "日本",
    " 12345",
    "½",
    "²",
    "_",
]
WORDS += [
    "😀",
    "👍🏽",
    "\u200d",
    "\u3000",
    "\x1c",
    "\x85",
    "▁",
    "▁▁x",
    "><",
    "</",
    ">▁</",
    "<s",
    "s>",
    "|>",
    "--",
    "ſ",
    "ß",
]


def texts(added: Sequence[str] = ()) -> st.SearchStrategy[str]:
    parts = [st.sampled_from(WORDS), st.text(max_size=4), st.text(st.characters(max_codepoint=0x2FF), max_size=8)]
    if added:
        parts.append(st.sampled_from(added))
    return st.lists(st.one_of(parts), max_size=12).map("".join)


def same(cache: WordCache, backend: Tokenizer, text: str) -> bool:
    """Asserts that both give the same ids, if the cache gives any; whether it does."""
    known = True
    pretokenizer = cache.pretokenizer
    if text and pretokenizer.knows(text):
        assert [*chain.from_iterable(pretokenizer.cut_in_parts(text, 2))] == pretokenizer.cut(text)
    for add in (False, True):
        want = backend.encode_batch_fast([text], add_special_tokens=add)[0].ids
        try:
            assert cache.encode(text, add_special_tokens=add) == want, text
        except Unknown:
            known = False
    return known


def made(backend: Tokenizer) -> WordCache:
    cache = make_word_cache(backend)
    assert cache is not None
    return cache


# ---- real vocabularies ----------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(text=texts(["<|im_start|>", "<|im_end|>", "<think>", "<|im_start|", "user\n"]))
def test_the_bundled_vocabulary_gives_the_ids_of_the_library(text: str) -> None:
    tokenizer = load_demo().tokenizer
    assert tokenizer.words is not None
    same(tokenizer.words, tokenizer.backend, text)


@pytest.mark.parametrize("name", REAL)
def test_so_do_real_vocabularies(name: str, real_model: LoadModel) -> None:
    tokenizer = real_model(name).tokenizer
    cache = tokenizer.words
    assert cache is not None

    @settings(max_examples=200, deadline=None)
    @given(text=texts(list(tokenizer.added_tokens.values())[:300]))
    def holds(text: str) -> None:
        assert cache is not None
        same(cache, tokenizer.backend, text)

    holds()


@pytest.mark.parametrize("name", REAL)
def test_usual_texts_are_known(name: str, real_model: LoadModel) -> None:
    tokenizer = real_model(name).tokenizer
    text = "Ünder the §12 «bridge», she said: 'It's 3.14!' 😀🥳\n\n\tdef f(x): return {x: [1]}  # 日本語 и слова\r\n"
    assert tokenizer.words is not None
    assert same(tokenizer.words, tokenizer.backend, "".join(list(tokenizer.added_tokens.values())[:9]) + text)


def every_character(pretokenizer: Pretokenizer, backend: Tokenizer) -> None:
    """Each character that is known, in the company of a letter, a digit, a space and itself, is cut as there."""
    known = [char for code in range(0x20000) if not 0xD800 <= code < 0xE000 and pretokenizer.knows(char := chr(code))]
    assert len(known) > 60_000
    for start in range(0, len(known), 64):  # the library takes far longer for long texts
        text = "".join(f"a{char}a 1{char}1 {char}{char} ." for char in known[start : start + 64])
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        assert [pretokenizer.spell(piece) for piece in pretokenizer.cut(text)] == pieces


def test_every_character_is_of_the_class_that_the_library_puts_it_in() -> None:
    backend = load_demo().tokenizer.backend
    pretokenizer = find_pretokenizer(backend)
    assert pretokenizer is not None
    every_character(pretokenizer, backend)


@pytest.mark.parametrize("name", ["deepseek_v3", "gptoss", "llama3_1", "mistral_tekken"])
def test_so_it_is_in_the_patterns_of_real_models(name: str, real_model: LoadModel) -> None:
    backend = real_model(name).tokenizer.backend
    pretokenizer = find_pretokenizer(backend)
    assert pretokenizer is not None
    every_character(pretokenizer, backend)


# ---- tokenizers made here -------------------------------------------------------------------------------


def byte_level(*merges: tuple[str, str], **options: object) -> Tokenizer:
    vocabulary = [*BYTE_ALPHABET, *dict.fromkeys("".join(merge) for merge in merges)]
    backend = Tokenizer(models.BPE({entry: index for index, entry in enumerate(vocabulary)}, [*merges], **options))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def sentencepiece(*merges: tuple[str, str], prepend: bool = True, letters: str = "▁abcd\n></") -> Tokenizer:
    entries = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = dict.fromkeys([*entries, *letters, *("".join(merge) for merge in merges)])
    model = models.BPE({entry: index for index, entry in enumerate(vocabulary)}, [*merges], byte_fallback=True)
    backend = Tokenizer(model)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prepend else spaces
    return backend


AB = ("a", "b")
LETTERS = st.text("ab cd\n></▁é", max_size=16)

TOKENS: dict[str, list[AddedToken]] = {
    "one within another": [AddedToken("<a>", normalized=False), AddedToken("<a>b", normalized=False)],
    "one goes on where another ends": [AddedToken("<a", normalized=False), AddedToken("a>", normalized=False)],
    "a normalized one is found later": [AddedToken("<a>", normalized=True), AddedToken("a>b", normalized=False)],
    "space behind": [AddedToken("<a>", rstrip=True, normalized=False), AddedToken("b", normalized=False)],
    "space behind, and one that begins with it": [
        AddedToken("<a>", rstrip=True, normalized=False),
        AddedToken(" b", normalized=False),
    ],
    "space behind one that ends with it": [AddedToken("a ", rstrip=True, normalized=False)],
    "space before": [AddedToken("<a>", lstrip=True, normalized=False)],
    "a word": [AddedToken("ab", single_word=True, normalized=False)],
    "space behind, and a later one that ends with it": [
        AddedToken("<a>", rstrip=True, normalized=False),
        AddedToken("<a>\n\n", normalized=True),
    ],
    "very long ones": [AddedToken("<" + "a" * length + ">", normalized=False) for length in (1, 2, 500, 600)],
    "many runs of space": [AddedToken(" " * length, normalized=False) for length in range(1, 400)],
    "signs of patterns": [AddedToken(text, normalized=False) for text in ("a.", "[b]", "(", "a|b", "\n\n", "\\", "^")],
}


@pytest.mark.parametrize("tokens", TOKENS.values(), ids=list(TOKENS))
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_added_tokens_are_found_as_the_library_finds_them(
    make: Callable[..., Tokenizer], tokens: list[AddedToken]
) -> None:
    backend = make(AB)
    backend.add_tokens(tokens)
    cache = make_word_cache(backend)
    if cache is None:
        assert make is sentencepiece
        assert any(token.normalized for token in tokens)
        return
    seen = []
    parts = st.sampled_from([*(token.content for token in tokens), " ", "\x85", "\x1c", "a", "<", ">", "\n"])

    @settings(max_examples=150, deadline=None)
    @given(text=st.lists(parts, max_size=10).map("".join))
    def holds(text: str) -> None:
        seen.append(same(cache, backend, text))

    holds()
    assert any(seen)


@pytest.mark.parametrize(
    "merges",
    [
        [AB],
        [("▁", "a"), ("▁a", "b"), AB],
        [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "a")],
        [(">", "▁"), (">▁", "<"), ("b", "▁")],
        [("b", "\n"), ("\n", "\n"), AB],
        [("\n", "▁"), ("a", "\n▁")],
    ],
)
@pytest.mark.parametrize("prepend", [True, False])
def test_no_cut_goes_through_what_could_be_merged(merges: list[tuple[str, str]], prepend: bool) -> None:
    backend = sentencepiece(*merges, prepend=prepend)
    cache = made(backend)

    @settings(max_examples=150, deadline=None)
    @given(text=LETTERS)
    def holds(text: str) -> None:
        assert same(cache, backend, text)

    holds()


METASPACES = {
    "at the start": [pre_tokenizers.Metaspace(prepend_scheme="first", split=False)],
    "everywhere": [pre_tokenizers.Metaspace(prepend_scheme="always", split=False)],
    "at the start, whatever is there": [
        pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False),
        pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=False),
    ],
}


@pytest.mark.parametrize("steps", METASPACES.values(), ids=list(METASPACES))
@pytest.mark.parametrize("normalizes", [True, False])
def test_a_space_is_put_where_the_library_puts_it(steps: list[pre_tokenizers.PreTokenizer], normalizes: bool) -> None:
    backend = sentencepiece(("▁", "a"), ("▁a", "b"), AB, prepend=False)
    if not normalizes:
        backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.add_special_tokens([AddedToken("<a>", normalized=False)])
    cache = make_word_cache(backend)
    if cache is None:
        assert len(steps) == 2
        assert not normalizes
        return

    @settings(max_examples=150, deadline=None)
    @given(text=st.lists(st.sampled_from(["<a>", " ", "▁", "a", "b", "\n", "  "]), max_size=8).map("".join))
    def holds(text: str) -> None:
        assert same(cache, backend, text)

    holds()


@settings(max_examples=100, deadline=None)
@given(text=LETTERS)
def test_special_tokens_stand_around_the_text(text: str) -> None:
    for template in ("[A] $A", "$A [B]", "[A] [B] $A [B]", "$A"):
        backend = byte_level(AB)
        backend.add_special_tokens(["[A]", "[B]"])
        named = [(name, backend.token_to_id(name)) for name in ("[A]", "[B]")]
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
        assert same(made(backend), backend, text)


def test_special_tokens_that_are_put_there_in_other_ways_are_left_to_the_library() -> None:
    backend = byte_level(AB)
    backend.add_special_tokens(["[A]", "[B]"])
    backend.post_processor = processors.BertProcessing(("[B]", 257), ("[A]", 256))
    cache = made(backend)
    assert cache.encode("ab") == [256]
    with pytest.raises(Unknown):
        cache.encode("ab", add_special_tokens=True)


def changed(change: Callable[[Tokenizer], None], make: Callable[..., Tokenizer] = byte_level) -> Tokenizer:
    backend = make(AB)
    change(backend)
    return backend


def set_part(name: str, part: object) -> Callable[[Tokenizer], None]:
    return lambda backend: setattr(backend, name, part)


UNKNOWN_KINDS = {
    "words": Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
    "dropout": byte_level(AB, dropout=0.5),
    "a sign of what goes on": byte_level(AB, continuing_subword_prefix="a"),
    "a sign of the end": byte_level(AB, end_of_word_suffix="b"),
    "a space before the text": changed(set_part("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True))),
    "no splits": changed(set_part("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))),
    "lower case": changed(set_part("normalizer", normalizers.Lowercase())),
    "a step before that": changed(
        set_part("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]))
    ),
    "spaces that stay": changed(set_part("normalizer", None), sentencepiece),
    "other words": changed(set_part("normalizer", normalizers.Replace("a", "▁")), sentencepiece),
    "cut at spaces": changed(set_part("pre_tokenizer", pre_tokenizers.Metaspace()), sentencepiece),
    "bytes that are merged": sentencepiece(("<0xA9>", "▁")),
    "only the spaces": changed(
        set_part("pre_tokenizer", pre_tokenizers.Split(" ", "removed", invert=True)), sentencepiece
    ),
    "twice the text": changed(
        set_part("post_processor", processors.TemplateProcessing(single="$A $A", special_tokens=[]))
    ),
    "cut short": changed(lambda backend: backend.enable_truncation(200)),
    "special tokens spelled out": changed(set_part("encode_special_tokens", True)),
    "nothing that could be tried": changed(lambda backend: backend.add_tokens([AddedToken(" ", rstrip=True)])),
    "a byte is missing": Tokenizer(models.BPE({"a": 0, "<0x00>": 1}, [], byte_fallback=True)),
}


@pytest.mark.parametrize("backend", UNKNOWN_KINDS.values(), ids=list(UNKNOWN_KINDS))
def test_tokenizers_of_other_kinds_are_left_to_the_library(backend: Tokenizer) -> None:
    assert make_word_cache(backend) is None


def test_texts_are_composed_before_they_are_cut() -> None:
    backend = byte_level(AB)
    backend.normalizer = normalizers.NFC()
    cache = made(backend)
    assert same(cache, backend, "\u00e9ab")
    with pytest.raises(Unknown):
        cache.encode("e\u0301ab")


# ---- split patterns -------------------------------------------------------------------------------------


def split_by(*patterns: str) -> Tokenizer:
    backend = byte_level(AB)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    return backend


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{L}+",  # what lies between two matches is a piece
        r"[^\r\n\p{L}\p{N}]?+\p{L}++|\s*[\r\n]",
        r"\p{Lu}\p{Ll}*|\S",
        r"(?i:'d|ab|[bc])|[a-c\-\]/&^]+|\p{N}{2,3}(?!\s)",
        r"'(?i:[sdmt]|ll|ve|re)|a{2}b|\p{L}{1,2}?",
        r"[一-龥\u3040-ゟ]+".replace("\\u3040", "\u3040"),
        r"\p{Han}|\p{Greek}+",
        r"\s+(?!\S)|a(?:b|c){1,}",
    ],
)
def test_patterns_cut_as_the_library_does(pattern: str) -> None:
    backend = split_by(pattern)
    pretokenizer = find_pretokenizer(backend)
    assert pretokenizer is not None
    parts = st.sampled_from(
        ["a", "B", "ab", "AB", "'D", "c", "1", "23", "\n", " ", "\t", "-", "]", "^", "日本", "ß", "λ"]
    )

    @settings(max_examples=150, deadline=None)
    @given(text=st.lists(parts, min_size=1, max_size=12).map("".join))
    def holds(text: str) -> None:
        assert pretokenizer is not None
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        assert [pretokenizer.spell(piece) for piece in pretokenizer.cut(text)] == pieces

    holds()


@pytest.mark.parametrize(
    "pattern",
    [
        r"a*",
        r"(a)",
        r"\w+",
        r"\d",
        r"a.",
        r"^a",
        r"a$",
        r"[a&&b]",
        r"[[a]b]",
        r"\bab",
        r"a{1,2}+",
        r"[\Sa]",
        r"(?<=a)b",
    ],
)
def test_patterns_with_anything_else_are_left_to_the_library(pattern: str) -> None:
    assert make_word_cache(split_by(pattern)) is None


# ---- bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+|\p{L}"])
def test_long_texts_are_done_in_parts(pattern: str) -> None:
    backend = split_by(r"\p{L}+|\s", pattern)
    text = "ab cd1234 \n'x' é?! " * 2000
    assert same(made(backend), backend, text)
    pretokenizer = find_pretokenizer(backend)
    assert pretokenizer is not None
    parts = [len(part) for part in pretokenizer.cut_in_parts(text, 512)]
    assert len(parts) > 10
    assert max(parts) < 1024


def test_only_a_thread_beside_the_main_one_pauses_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[str] = []
    monkeypatch.setattr(word_cache.time, "sleep", lambda _: paused.append(threading.current_thread().name))
    cache, text = made(byte_level(AB)), "ab cd " * 2_000
    ids = cache.encode(text)
    assert not paused
    with ThreadPoolExecutor(1, thread_name_prefix="text") as executor:
        assert executor.submit(cache.encode, text).result() == ids
    assert len(paused) > 5
    assert set(paused) == {"text_0"}


def test_very_long_texts_and_long_words_are_left_to_the_library() -> None:
    cache = made(byte_level(AB))
    for text in ("a " * MAX_TEXT_CHARS, "a" * 2000):
        with pytest.raises(Unknown):
            cache.encode(text)


def test_words_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_WORDS", 10)
    backend = byte_level(AB)
    pretokenizer = find_pretokenizer(backend)
    assert pretokenizer is not None
    words = word_cache._Words(backend.model, pretokenizer)
    for number in range(25):
        assert words[f"a{number}"]
        assert len(words) <= 10
    for rare in ("x" * 1000, "é" * 20):
        assert words[rare]
        assert rare not in words


def test_lone_surrogates_raise_as_in_the_library() -> None:
    for backend in (byte_level(AB), sentencepiece(AB)):
        with pytest.raises((UnicodeEncodeError, TypeError, Unknown)):
            made(backend).encode("a\ud83d")


def test_a_tokenizer_that_turns_out_to_be_different_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Pretokenizer([Splitter(".")], str, lambda _: True)
    monkeypatch.setattr(word_cache, "find_pretokenizer", lambda _: wrong)
    assert make_word_cache(byte_level(("t", "h"))) is None
