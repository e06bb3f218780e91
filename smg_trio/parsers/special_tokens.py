"""Leaving the texts of special tokens out of what is shown.

A parser whose markers are special tokens has the detokenizer leave all of them in the text. Those that are no part of
its format would then reach the client; here they are taken out again, as the detokenizer would have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache

from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.suffixes import without_suffixes


class SpecialTokenFilter:
    """Takes a fixed set of literals out of a stream of text; holds back only what may become one of them."""

    __slots__ = ("_held", "_scanner")

    def __init__(self, literals: frozenset[str]) -> None:
        self._scanner = scanner_for(*sorted(literals))
        self._held = ""

    def feed(self, text: str) -> str:
        """What of the text so far may be shown and was not returned before."""
        scanner = self._scanner
        if self._held:
            text = self._held + text
        shown: list[str] = []
        pos = 0
        while True:
            end, marker = scanner.scan(text, pos, False)
            if marker is None and not shown and end == len(text) and pos == 0:
                self._held = ""
                return text
            shown.append(text[pos:end])
            if marker is None:
                self._held = text[end:]
                return "".join(shown)
            pos = end + len(marker)

    def flush(self) -> str:
        """What was held back: it did not become one of the literals. One of them may itself begin a longer one."""
        scanner, text = self._scanner, self._held
        self._held = ""
        shown: list[str] = []
        while text:
            end, marker = scanner.scan(text, 0, True)
            shown.append(text[:end])
            text = text[end + len(marker or "") :]
        return "".join(shown)


@lru_cache(maxsize=64)
def _split(special_tokens: frozenset[str], markers: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    joined = "\0".join(markers)
    inside = frozenset(token for token in special_tokens if without_suffixes(token) in joined)
    return special_tokens - inside, inside


def split_special_tokens(special_tokens: Set[str], markers: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Special tokens that mean nothing to a format with these `markers`, and those that are (part of) one."""
    return _split(frozenset(token for token in special_tokens if token), frozenset(markers))
