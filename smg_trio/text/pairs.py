"""Texts for models that pool: cut to a number of tokens, and two texts as one prompt.

Cutting keeps the special tokens around a text, as Hugging Face's tokenizers do. Nothing here changes the tokenizer,
which is shared (see `text.tokenizer`): truncation is done on single encodings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smg_trio.core.errors import InvalidRequest

if TYPE_CHECKING:
    from smg_trio.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PairTokens:
    """Two texts as one prompt.

    Attributes:
        token_ids: int[T].
        second_start: position of the first token that belongs to the second text; T if none does.
    """

    token_ids: list[int]
    second_start: int


def encode_cut(tokenizer: Tokenizer, text: str, max_tokens: int | None, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text: int[T], T <= `max_tokens`, special tokens included; None is no cut.

    Raises:
        InvalidRequest: nothing of the text is left.
    """
    if max_tokens is None:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    backend = tokenizer.backend
    encoding = _encoding(tokenizer, text)
    room = max_tokens - (backend.num_special_tokens_to_add(False) if add_special_tokens else 0)
    _cut(encoding, room)
    ids: list[int] = backend.post_process(encoding, None, add_special_tokens).ids
    return ids


def encode_pair(tokenizer: Tokenizer, first: str, second: str, max_tokens: int | None = None) -> PairTokens:
    """The ids of two texts with what the model puts around and between them.

    If they are too long the longer one is cut first, then both alike (Hugging Face's ``longest_first``).

    Raises:
        InvalidRequest: nothing of the texts is left.
    """
    backend = tokenizer.backend
    if max_tokens is None:
        whole = backend.encode_batch([(first, second)], add_special_tokens=True)[0]
    else:
        one, other = _encoding(tokenizer, first), _encoding(tokenizer, second)
        shares = _shares(len(one), len(other), max_tokens - backend.num_special_tokens_to_add(True))
        _cut(one, shares[0])
        _cut(other, shares[1])
        whole = backend.post_process(one, other, True)
    ids: list[int] = whole.ids
    return PairTokens(ids, whole.type_ids.index(1) if 1 in whole.type_ids else len(ids))


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)


def _encoding(tokenizer: Tokenizer, text: str) -> Any:
    # The library's call for a single text would not let other threads run.
    return tokenizer.backend.encode_batch([text], add_special_tokens=False)[0]


def _cut(encoding: Any, length: int) -> None:
    if len(encoding) <= length:
        return
    if length < 1:
        raise InvalidRequest("truncate_prompt_tokens leaves an empty prompt.", param="truncate_prompt_tokens")
    encoding.truncate(length)


def cut_text(tokenizer: Tokenizer, text: str, max_tokens: int) -> str:
    """The beginning of a text that is at most `max_tokens` tokens long; 0 is no cut.

    The text is cut and not its ids, because what it is put into is tokenized as a whole (vLLM 0.32:
    ``pooling/scoring/utils.py``).
    """
    while max_tokens and text:
        encoding = _encoding(tokenizer, text)
        if len(encoding) <= max_tokens:
            break
        offsets = encoding.offsets
        text = text[: min(offsets[max_tokens - 1][1], offsets[max_tokens][0], len(text) - 1)]
    return text
