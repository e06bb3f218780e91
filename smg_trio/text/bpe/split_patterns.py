"""A tokenizer file's split patterns, written for Python's ``re``. Pure.

The files hold Oniguruma's dialect. What they use of it is little, and all of it is translated exactly or not at all:
properties become the characters that the library finds for them, so a translated pattern does the same as there for
every text in which `character_classes.UNKNOWN_CHARACTER` finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from smg_trio.text.bpe.character_classes import WHITE_SPACE, matching, members

_WORD: Final = re.compile(
    r"(?P<property>\\p\{(?P<name>\w+)\})"
    r"|(?P<space>\\s)|(?P<no_space>\\S)|\\(?P<control>[rntfv])|\\(?P<escaped>[^\w\s])"
    r"|(?P<open>\[\^?)|(?P<close>\])"
    # Of either case, texts that do not fold to anything beyond ASCII: contractions, which is what files have there.
    r"|(?P<any_case>\(\?i:(?![^)]*(?:ss|ff|fi|fl|st))(?:(?:'?[a-z]{1,2}|\[[a-z]+\])\|?)+\))"
    r"|(?P<group>\(\?(?::|!)|\))|(?P<or>\|)|(?P<repeat>[?*+]\+?|\{\d+\}(?![+?])|\{\d+,\d*\}(?!\+))"
    r"|(?P<literal>[^\\.^$(){}\[\]|?*+])|(?P<in_class>[.^$(){}|?*+])",
    re.DOTALL,
)
_INTERSECTION: Final = re.compile(r"(?<!\\)\[\^?(?:[^\[\]\\]|\\.)*&&\[\^?(?:[^\[\]\\&]|\\.)*\]\]", re.DOTALL)
"""A class of characters that are in another one too: ``[A&&[B]]``."""


class Splitter:
    """Cuts a text at every match of a pattern that matches no empty text: pieces are matches and what lies between."""

    def __init__(self, pattern: str) -> None:
        """Raises re.error."""
        self._matches = re.compile(pattern).finditer
        self.pieces: Callable[[str], list[str]] = re.compile(f"(?:{pattern})|(?:(?!{pattern})[\\s\\S])+").findall
        """All pieces of a text that is not long: one call into C."""

    def finds(self, text: str) -> bool:
        """Whether there is a match at all."""
        return next(self._matches(text), None) is not None

    def pieces_in_parts(self, text: str, size: int) -> Iterator[list[str]]:
        """The pieces of a text of any length, up to `size` matches at a time and what lies between them."""
        found, end = self._matches(text), 0
        while matches := list(islice(found, size)):
            pieces = [match[0] for match in matches]
            start, end = end, matches[-1].end()
            yield pieces if sum(map(len, pieces)) == end - start else list(_with_gaps(text, start, matches))
        if end < len(text):
            yield [text[end:]]


def _with_gaps(text: str, end: int, matches: Iterable[re.Match[str]]) -> Iterator[str]:
    for match in matches:
        if match.start() > end:
            yield text[end : match.start()]
        yield match[0]
        end = match.end()


def translate(pattern: str) -> Splitter | None:
    """What splits at a pattern; None if it uses anything that is not translated here, or could match nothing at all."""
    written = _write(pattern)
    if written is None:
        return None
    try:
        # Without lookaheads that ask for something, what can match nothing does so where there is nothing.
        return None if re.match(written, "") else Splitter(written)
    except re.error:
        return None


def _write(pattern: str) -> str | None:
    """The whole pattern; classes that intersect others, which Python has not, as the characters that they match."""
    parts: list[str] = []
    end = 0
    for found in _INTERSECTION.finditer(pattern):
        before, inside = _write_plain(pattern[end : found.start()]), matching(found[0])
        if before is None or inside is None:
            return None
        parts += (before, f"[{inside}]")
        end = found.end()
    rest = _write_plain(pattern[end:])
    return None if rest is None else "".join([*parts, rest])


def _write_plain(pattern: str) -> str | None:
    parts: list[str] = []
    place, in_class = 0, False
    while place < len(pattern):
        word = _WORD.match(pattern, place)
        written = None if word is None else (_in_class(word) if in_class else _outside(word))
        if word is None or written is None:
            return None
        parts.append(written)
        in_class = (in_class or word["open"] is not None) and word["close"] is None
        place = word.end()
    return None if in_class or "&&" in pattern else "".join(parts)


def _outside(word: re.Match[str]) -> str | None:
    kind = word.lastgroup
    if kind in ("open", "any_case", "group", "or", "repeat"):
        return word[0]
    if kind == "no_space":
        return f"[^{WHITE_SPACE}]"
    if kind in ("close", "in_class"):
        return None
    inner = _in_class(word)
    return f"[{inner}]" if inner is not None and kind in ("name", "property", "space") else inner


def _in_class(word: re.Match[str]) -> str | None:
    if word["property"]:
        return members(word["name"])
    if word["space"]:
        return WHITE_SPACE
    if word["control"]:
        return word[0]
    if word["escaped"]:
        return re.escape(word["escaped"])
    if word["close"] or word[0] == "-":
        return word[0]
    if word["open"] or word["no_space"] or word["any_case"] or word["group"] not in (None, ")"):
        return None
    return re.escape(word[0])
