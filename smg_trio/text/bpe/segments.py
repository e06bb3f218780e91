"""Where a text may be cut so that tokenizing the pieces one by one gives what tokenizing the whole gives. Pure.

A special token in a text is found before anything else is looked at, and what lies between two of them is normalized,
split and tokenized by itself. So a piece that begins with a special token tokenizes to the same ids wherever it
stands. Not every special token will do: one that takes spaces before it, one that must stand alone as a word, and one
that could be part of another added token's text say something about the piece before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

_NUMBERED = re.compile(r"\d+\W*$")
"""Reserved tokens come by the hundred (``<|reserved_special_token_17|>``, ``<unused3>``) and never in a prompt."""
_MOST_MARKS = 64


def cutting_pattern(backend: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """What matches the special tokens before which texts may be cut; None where there are none."""
    added = list(backend.get_added_tokens_decoder().values())
    texts = [token.content for token in added]
    marks = [
        token.content
        for token in added
        if token.special
        and not (token.normalized or token.lstrip or token.single_word)
        and token.content.strip()
        and not _NUMBERED.search(token.content)
    ]
    # A file with more has some naming scheme that the rule above does not know; then most are of no use.
    alone = [mark for mark in marks[:_MOST_MARKS] if _stands_alone(mark, texts)]
    return re.compile("|".join(map(re.escape, alone))) if alone else None


def _stands_alone(mark: str, texts: Iterable[str]) -> bool:
    """Whether no added token's text can begin before an occurrence of `mark`, or be longer at its place."""
    starts = tuple(mark[:length] for length in range(1, len(mark)))
    return not any(text.endswith(starts) or (mark in text and text != mark) for text in texts)


def cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    """The pieces of `text`: all but the first begin with what `pattern` matches; none is empty."""
    places = [match.start() for match in pattern.finditer(text)]
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True) if start < end]
