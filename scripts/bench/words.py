"""What the benchmark's engine says, so that every process can know it: whole words, decided by the request's seed.

Each token is a word of its own with a leading space, so the text a client gets falls apart into tokens again, and
a lost, doubled or misplaced token shows, whichever way the gateway cut the text. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from smg_trio.testing.script import LengthScript
from smg_trio.testing.vision import NO_SIGHT, Sight

# A word with the space marker of byte-level BPE or of SentencePiece.
_WORD = re.compile("[Ġ▁]([a-z]{2,})")
_MOST_WORDS = 256


@dataclass(frozen=True, slots=True)
class _Seeded:
    """As much of an engine request as `LengthScript` looks at, the prompt left out."""

    seed: int
    allowed_token_ids: Sequence[int]
    prompt_token_ids: Sequence[int] = ()
    ending_ids: frozenset[int] = frozenset()
    masked_token_ids: frozenset[int] = frozenset()
    sight: Sight = NO_SIGHT


class Words:
    """The words of one model.

    Attributes:
        vocab_size: of the tokenizer.
    """

    def __init__(self, model: Path) -> None:
        """Reads ``tokenizer.json`` in `model`. Raises SystemExit if it holds too few whole words."""
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        vocabulary = tokenizer.get_vocab()
        found = sorted((number, match[1]) for text, number in vocabulary.items() if (match := _WORD.fullmatch(text)))
        # The tokens learnt last are the longest; the first ones are mere beginnings of words.
        self._text = dict(found[-_MOST_WORDS:])
        self._ids = list(self._text)
        if len(self._ids) < 50:
            raise SystemExit(f"{model}: the tokenizer has no whole words to speak in")
        self.vocab_size: int = tokenizer.get_vocab_size()

    def ids(self, seed: int) -> Sequence[Sequence[int]]:
        """The endless answer to a request with `seed`, one id per step (an iterator of one-element lists)."""
        return LengthScript().ticks(_Seeded(seed, self._ids))  # type: ignore[arg-type, return-value]

    def answer(self, seed: int, count: int) -> list[str]:
        """The first `count` words of that answer."""
        return [self._text[tick[0]] for tick in islice(self.ids(seed), count)]

    def prompt(self, seed: int, count: int) -> str:
        """A text of `count` words, about as many tokens, different for each seed from its beginning."""
        return " ".join(self.answer(~seed & 0xFFFFFFFF, count))
