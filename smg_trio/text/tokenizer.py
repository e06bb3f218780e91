"""One model's tokenizer: text to ids, ids to text, and what single tokens are.

A thin, immutable face over `tokenizers.Tokenizer`. It never pads, truncates or changes after it was made:
changing a shared tokenizer while another thread encodes raises "Already borrowed" inside the library.

Costs: 1 to 3 ms per 1,000 tokens in the library; a fifth to a tenth of that where the `WordCache` knows how a text is
cut, which is nearly always. The library's `encode` of one text holds the GIL, its `encode_batch_fast` of a batch of one
does not, is a third cheaper and yields the same ids; so that is what encodes the rest here, and callers run texts
longer than `INLINE_ENCODE_CHARS` in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import tokenizers

from smg_trio.core.errors import InvalidRequest
from smg_trio.text.bpe.segments import cutting_pattern
from smg_trio.text.bpe.word_cache import Unknown, make_word_cache
from smg_trio.text.token_pieces import REPLACEMENT, find_pieces

INLINE_ENCODE_CHARS: Final = 4_000
"""Texts above this many characters are worth a thread (about 1,000 tokens)."""

_LONG_DECODE_IDS: Final = 4_000


_SHOWN_LIMIT: Final = 65_536
"""Tokens whose text is remembered: some 15 MB."""


class ShownTokens(dict[int, tuple[str, bytes, bool]]):
    """By id: a token's text when it is decoded alone, its bytes, and whether it ends within a character.

    The bytes are not the text's where that has U+FFFD. Remembered for all requests together, for log probabilities ask
    for many tokens, again and again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> tuple[str, bytes, bool]:
        if len(self) >= _SHOWN_LIMIT:
            self.clear()
        tokenizer = self._tokenizer
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        raw = tokenizer.token_bytes(token_id) if REPLACEMENT in text else text.encode("utf-8", "replace")
        shown = self[token_id] = text, raw, text.endswith(REPLACEMENT)
        return shown


class Tokenizer:
    """A loaded tokenizer.

    Attributes:
        vocab_size: highest id + 1, added tokens included.
        special_ids: ids that ``skip_special_tokens`` leaves out of text.
        special_tokens: named special tokens that exist, as a chat template sees them (``bos_token``, ...).
        bos_token, eos_token, pad_token, unk_token: their texts, None where absent.
        bos_token_id, eos_token_id, pad_token_id, unk_token_id: their ids, None where absent.
        pieces: per-id pieces where the decoder works token by token, else None.
        words: what tokenizes nearly all texts; None for tokenizers of a kind that only the library knows.
        shown_alone: what single tokens look like in lists of log probabilities.
        backend: the library's tokenizer; never call anything on it that changes it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        *,
        extra_special: Iterable[str] = (),
    ) -> None:
        """Takes over `backend`, which must not be used to build another Tokenizer or be changed later.

        Args:
            backend: truncation and padding are switched off in it; named special tokens that it does not
                treat as special are made so, as Hugging Face's loader does.
            special_tokens: ``bos_token`` and so on, by name.
            extra_special: further tokens that are special without having a name.
        """
        named = {name: text for name, text in (special_tokens or {}).items() if text}
        backend.no_truncation()
        backend.no_padding()
        _mark_special(backend, [*named.values(), *extra_special])
        added = backend.get_added_tokens_decoder()
        self.backend = backend
        self.special_tokens: Mapping[str, str] = named
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.added_tokens: Mapping[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.pieces = find_pieces(backend, self.special_ids)
        self._bytes: dict[int, bytes] = {}
        self.shown_alone = ShownTokens(self)
        self.words = make_word_cache(backend)
        self._name_special_tokens()

    def _name_special_tokens(self) -> None:
        get = self.special_tokens.get
        self.bos_token, self.bos_token_id = self._named(get("bos_token"))
        self.eos_token, self.eos_token_id = self._named(get("eos_token"))
        self.pad_token, self.pad_token_id = self._named(get("pad_token"))
        self.unk_token, self.unk_token_id = self._named(get("unk_token"))

    def _named(self, text: str | None) -> tuple[str | None, int | None]:
        return text, None if text is None else self.token_id(text)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`: int[T], T may be 0.

        Special tokens spelled out in `text` become their ids. Lone surrogates, which JSON can carry and
        UTF-8 cannot, become U+FFFD.
        """
        try:
            return self._encode(text, add_special_tokens)
        except (UnicodeEncodeError, TypeError):
            repaired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return self._encode(repaired, add_special_tokens)

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """As `encode`, and the characters of `text` that each token stands for: (start, end), alike for none."""
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return encoding.ids, encoding.offsets

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.words is not None:
            try:
                return self.words.encode(text, add_special_tokens=add_special_tokens)
            except Unknown:
                pass
        # The call for batches is the faster one for a single text too: it keeps no offsets.
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; ids outside the vocabulary give nothing."""
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        if len(known) > _LONG_DECODE_IDS:
            # The call for batches leaves other threads their turn.
            texts: list[str] = self.backend.decode_batch([known], skip_special_tokens=skip_special_tokens)
            return texts[0]
        text: str = self.backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    @cached_property
    def cutting_pattern(self) -> re.Pattern[str] | None:
        """Where texts may be cut before they are tokenized; see `text.bpe.segments`."""
        return cutting_pattern(self.backend)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for in running text; empty for an id outside the vocabulary."""
        if self.pieces is not None:
            return self.pieces.raw(token_id)
        found = self._bytes.get(token_id)
        if found is None:
            if not 0 <= token_id < self.vocab_size:
                return b""
            text = self.added_tokens.get(token_id) or self._text_after_itself(token_id)
            found = self._bytes[token_id] = text.encode("utf-8", "replace")
        return found

    def _text_after_itself(self, token_id: int) -> str:
        """What a token adds behind another token, so that a decoder's first-token rules do not apply."""
        decode = self.backend.decode
        once: str = decode([token_id], skip_special_tokens=False)
        twice: str = decode([token_id, token_id], skip_special_tokens=False)
        return twice[len(once) :] if twice.startswith(once) else once

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact vocabulary entry, or None."""
        token_id: int | None = self.backend.token_to_id(token)
        return token_id

    def encode_bad_word(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Token sequences that spell `word`: as it stands, and after a space where that is another token.

        The second form is kept only if it has as many tokens as the first and starts with another one, as
        vLLM 0.32 does (``sampling_params.py``).

        Raises:
            InvalidRequest: the word tokenizes to nothing.
        """
        bare = tuple(self.encode(word.lstrip()))
        if not bare:
            raise InvalidRequest("bad_words entries must tokenize to at least one token.", param="bad_words")
        spaced = tuple(self.encode(" " + word.lstrip()))
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            return bare, spaced
        return (bare,)


def _mark_special(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Makes named special tokens special where the tokenizer file does not say so itself.

    A name for a token that the vocabulary does not have adds nothing: the model has no row for it.
    """
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in dict.fromkeys(texts) if text not in special]
    known = [text for text in missing if backend.token_to_id(text) is not None]
    if known:
        backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in known])
