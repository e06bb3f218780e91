"""What a builder of this package returns, and what several of them need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import processors


@dataclass(frozen=True, slots=True)
class BuiltTokenizer:
    """A tokenizer made of a model's files.

    Attributes:
        backend: with the added tokens and the post-processor that the format or the tokenizer class brings.
        named: special tokens by name (``bos_token``, ...) where the file itself says so;
            ``tokenizer_config.json`` may name others.
    """

    backend: tokenizers.Tokenizer
    named: Mapping[str, str] = field(default_factory=dict)


class UnsupportedFormat(ValueError):
    """A tokenizer that is understood well enough to know that its ids would be wrong here.

    Attributes:
        remedy: what the operator can do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def add_token(backend: tokenizers.Tokenizer, token: str, *, special: bool = True) -> None:
    """Makes a vocabulary entry an added token: found in texts as a whole; a special one is left out of decoded text."""
    entry = tokenizers.AddedToken(token, special=special, normalized=False)
    if special:
        backend.add_special_tokens([entry])
    else:
        backend.add_tokens([entry])


def surround(
    backend: tokenizers.Tokenizer, before: Iterable[str], after: Iterable[str], *, between: Iterable[str] | None = None
) -> None:
    """Sets which special tokens are added around a text, and around and between two.

    Args:
        backend: its vocabulary has the tokens.
        before, after: around one text, and around each of two.
        between: separates the second of two texts from the first one's `after`, instead of another `before`.

    Raises:
        ValueError: the vocabulary lacks one of them.
    """
    first, last = list(before), list(after)
    second = first if between is None else list(between)
    known: dict[str, int] = {}
    for token in (*first, *last, *second):
        token_id = backend.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the vocabulary has no {token}")
        known[token] = token_id
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *second, "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=list(known.items()),
    )


def text_setting(settings: Mapping[str, Any], name: str) -> str | None:
    """A token named in ``tokenizer_config.json``, written as text or as an object with ``content``."""
    entry = settings.get(name)
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) and text else None


def flag(settings: Mapping[str, Any], name: str, default: bool) -> bool:
    """A true or false setting; null and anything else mean the default."""
    value = settings.get(name)
    return value if isinstance(value, bool) else default
