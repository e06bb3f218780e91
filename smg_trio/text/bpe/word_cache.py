"""Tokenizing by remembering what each pretoken became: words repeat, in every language and every prompt.

Finding a word costs a tenth of tokenizing it, and what the library does around it (a copy of the text with places of
every character, an object for the result) falls away. Exact: a text of which that is not known is left to the library.
"""

from __future__ import annotations

import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from smg_trio.text.bpe.added_tokens import AddedTokens
from smg_trio.text.bpe.pretokens import Pretokenizer, find_pretokenizer
from smg_trio.text.components import component_steps

if TYPE_CHECKING:
    import tokenizers

MAX_TEXT_CHARS: Final = 1 << 20
"""Longer texts are the library's."""
_LONG_TEXT_CHARS: Final = 8_192
"""Longer ones are done in parts. In a thread beside the main one, others have the interpreter between two parts."""
_PART_WORDS: Final = 512
"""0.1 ms for known words, 0.7 ms for new ones."""
_PAUSE_S: Final = 0.0002
"""Without it, a thread that calls into the kernel a hundred times per engine step would wait for a part each time."""
_WORDS: Final = 32_768
"""Remembered at once: 8 MB, at most 20. When they are too many, all are forgotten, and soon the usual ones are back."""
_KEPT_CHARS: Final = 32
_KEPT_IDS: Final = 8
"""Words of more hardly come twice."""
_MAX_PRETOKEN_CHARS: Final = 1_024
"""The model takes its time for longer ones, and would hold the interpreter."""
_TRIALS: Final = (
    " ",
    "The wind isn't  what it WAS in 1998;\n\n\tsee 'notes' (p. 12345), it's\r\n  gone...   ",
    "Über 3½ naïve 日本語のテキスト и слова ▁▁x ▁ 😀👍🏽 e\u0301 \u200d\u3000.\n \n",
    '{"a": [1, 2.5e-3, null], "b": "<x></x> http://y.z/?q=1&r=#"}  \n def f(x):\n\treturn x**2  # 100%',
)


class Unknown(Exception):
    """It is not known how the library tokenizes this text."""


class WordCache:
    """The pretokens of one tokenizer that were met. May be used from several threads.

    Attributes:
        pretokenizer: what cuts texts.
    """

    def __init__(self, backend: tokenizers.Tokenizer, pretokenizer: Pretokenizer) -> None:
        """`backend` must not change any more."""
        self._words = _Words(backend.model, pretokenizer)
        self.pretokenizer = pretokenizer
        self._added = AddedTokens(backend.get_added_tokens_decoder())
        self._around = _special_tokens_around(backend)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`. A long one is not for the thread of an event loop.

        Raises:
            Unknown: the text is too long, or holds what only the library knows.
            UnicodeEncodeError, TypeError: it holds a lone surrogate.
        """
        if not add_special_tokens:
            return self._bare(text)
        if self._around is None:
            raise Unknown
        before, after = self._around
        return [*before, *self._bare(text), *after]

    @property
    def adds_special_tokens(self) -> bool:
        """Whether it is known which ones stand around a text."""
        return self._around is not None

    def forget(self) -> None:
        """Start anew."""
        self._words.clear()

    def _bare(self, text: str) -> list[int]:
        odd = self._added.odd
        if len(text) > MAX_TEXT_CHARS or (odd is not None and odd.search(text)):
            raise Unknown
        ids: list[int] = []
        if text:
            self._add(text, ids, 0, True)
        return ids

    def _add(self, text: str, ids: list[int], stage: int, opens: bool) -> None:
        """Ids of a text in which the added tokens of earlier stages were found already.

        `opens`: nothing is before it, not even an added token.
        """
        stages = self._added.stages
        if stage < len(stages):
            is_token = False
            for piece in stages[stage].split(text):
                if is_token:
                    ids.append(stages[stage].id_of(piece))
                elif piece:
                    self._add(piece, ids, stage + 1, opens)
                is_token, opens = not is_token, False
            return
        if opens:
            text = self.pretokenizer.open(text)
        if not self.pretokenizer.knows(text):
            raise Unknown
        if len(text) <= _LONG_TEXT_CHARS:
            ids += chain.from_iterable(map(self._words.__getitem__, self.pretokenizer.cut(text)))
        else:
            for part in self.pretokenizer.cut_in_parts(text, _PART_WORDS):
                ids += chain.from_iterable(map(self._words.__getitem__, part))
                if threading.current_thread() is not threading.main_thread():
                    time.sleep(_PAUSE_S)  # noqa: TID251 - it holds up this thread alone, and the loop is in another one


class _Words(dict[str, tuple[int, ...]]):
    """Ids by pretoken; a new one is tokenized."""

    def __init__(self, model: Any, pretokenizer: Pretokenizer) -> None:
        super().__init__()
        self._tokenize = model.tokenize
        self._spell = pretokenizer.spell

    def __missing__(self, pretoken: str) -> tuple[int, ...]:
        if len(pretoken) > _MAX_PRETOKEN_CHARS:
            raise Unknown
        ids = tuple([token.id for token in self._tokenize(self._spell(pretoken))])
        if len(pretoken) <= _KEPT_CHARS and len(ids) <= _KEPT_IDS:
            if len(self) >= _WORDS:
                self.clear()
            self[pretoken] = ids
        return ids


def _special_tokens_around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """What stands before and behind every text with special tokens added; None if that depends on the text."""
    if any(
        step["type"] not in ("ByteLevel", "TemplateProcessing") for step in component_steps(backend, "post_processor")
    ):
        return None
    bare, whole = (backend.encode(" ", add_special_tokens=add).ids for add in (False, True))
    places = [place for place in range(len(whole)) if whole[place : place + len(bare)] == bare]
    return (whole[: places[0]], whole[places[0] + len(bare) :]) if len(places) == 1 else None


def _is_plain(backend: tokenizers.Tokenizer) -> bool:
    """Whether ids are the text's, once and whole, and special tokens are looked for."""
    if backend.truncation is not None or backend.padding is not None or backend.encode_special_tokens:
        return False
    return all(
        [part["Sequence"]["id"] for part in step["single"] if "Sequence" in part] == ["A"]
        for step in component_steps(backend, "post_processor")
        if step["type"] == "TemplateProcessing"
    )


def make_word_cache(backend: tokenizers.Tokenizer) -> WordCache | None:
    """A cache for a tokenizer that must not change any more; None if it is of a kind that is not known here."""
    pretokenizer = find_pretokenizer(backend) if _is_plain(backend) else None
    if pretokenizer is None:
        return None
    cache = WordCache(backend, pretokenizer)
    agreements = [_agrees(cache, backend, text) for text in _TRIALS]
    return cache if True in agreements and False not in agreements else None


def _agrees(cache: WordCache, backend: tokenizers.Tokenizer, text: str) -> bool | None:
    """Whether both say the same, None if only the library knows. Files may hold what is not foreseen here."""
    try:
        return all(
            cache.encode(text, add_special_tokens=add)
            == backend.encode_batch_fast([text], add_special_tokens=add)[0].ids
            for add in ((False, True) if cache.adds_special_tokens else (False,))
        )
    except Unknown:
        return None
