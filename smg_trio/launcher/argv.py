"""Flags in a list of command-line words that another program will parse. Pure.

A flag is matched as ``--name value`` and ``--name=value``; engines read ``_`` in a name like ``-``, so it is matched
like that too. As with `argparse`, the last one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise


def has_flag(words: Sequence[str], names: Collection[str]) -> bool:
    """Whether one of these flags is among the words."""
    return any(_name(word) in names for word in words)


def flag_value(words: Sequence[str], names: Collection[str]) -> str | None:
    """The value of these flags (synonyms of each other); None if absent or without a value."""
    value = None
    for word, following in pairwise([*words, "-"]):
        if _name(word) in names:
            _, separator, attached = word.partition("=")
            value = attached if separator else None if following.startswith("-") else following
    return value


def drop_flags(words: Sequence[str], names: Collection[str]) -> list[str]:
    """The words without these flags and their values.

    A word after ``--name`` is its value unless it begins with ``-``.
    """
    kept: list[str] = []
    value_follows = False
    for word in words:
        if value_follows and not word.startswith("-"):
            value_follows = False
            continue
        dropped = _name(word) in names
        value_follows = dropped and "=" not in word
        if not dropped:
            kept.append(word)
    return kept


def _name(word: str) -> str:
    if not word.startswith("-"):
        return ""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name
