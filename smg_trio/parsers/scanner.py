"""Finding literal markers in text that arrives in pieces.

The scanner holds back only what may still become a marker: a suffix of the text that is a true prefix of
one of the markers. It keeps no text itself, so a parser switches between marker sets by switching scanners.
Cost: one C search per call where no marker begins in the text; linear in the text whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol


class Scanner(Protocol):
    """What scripts look for the next marker with."""

    def scan(self, text: str, pos: int, final: bool) -> tuple[int, str | None]:
        """See `MarkerScanner.scan`."""


class MarkerScanner:
    """Finds the earliest of a fixed set of literal markers; of two at one place the longer."""

    __slots__ = ("_first", "_longest", "_prefixes", "_search", "markers")

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(marker for marker in markers if marker)
        ordered = sorted(self.markers, key=lambda marker: (-len(marker), marker))
        self._search = re.compile("|".join(map(re.escape, ordered)) or r"(?!)").search
        heads = sorted({marker[0] for marker in ordered})
        self._first = re.compile("[" + "".join(map(re.escape, heads)) + "]" if heads else r"(?!)").search
        self._prefixes = frozenset(marker[:size] for marker in ordered for size in range(1, len(marker)))
        self._longest = len(ordered[0]) if ordered else 0

    def scan(self, text: str, pos: int, final: bool) -> tuple[int, str | None]:
        """Looks for a marker in ``text[pos:]``.

        Args:
            final: no more text will come, so nothing is held back.

        Returns:
            ``(end, marker)``. ``text[pos:end]`` is plain text for good. If `marker` is not None it stands
            at `end`; otherwise ``text[end:]`` (perhaps empty) is held: it may become a marker.
        """
        head = self._first(text, pos)
        if head is None:
            return len(text), None
        start = head.start()
        found = self._search(text, start)
        hold = -1 if final else self.hold(text, start)
        if found is not None and (hold < 0 or found.start() < hold):
            return found.start(), found.group()
        return (len(text) if hold < 0 else hold), None

    def hold(self, text: str, start: int) -> int:
        """Where the longest suffix of ``text[start:]`` that is a true prefix of a marker begins, or -1."""
        head = self._first(text, max(start, len(text) - self._longest + 1))
        while head is not None:
            at = head.start()
            if text[at:] in self._prefixes:
                return at
            head = self._first(text, at + 1)
        return -1


@lru_cache(maxsize=512)
def scanner_for(*markers: str) -> MarkerScanner:
    """The scanner for these markers; scanners hold no state, so parsers of one format share theirs."""
    return MarkerScanner(markers)


class HeadScanner:
    """Finds literal markers, and brackets where what follows them may begin a call.

    A format whose calls have no markers would otherwise have to try every bracket of an answer.

    Args:
        markers: literals, as for `MarkerScanner`.
        head: matches a bracket together with enough behind it that a call is likely; at most `limit` characters.
        begun: matches all that may become a head with more text, up to the end of the text.
        openers: the brackets. At most two of them stand in one head.
        limit: characters that a head takes at most.
    """

    __slots__ = ("_begun", "_limit", "_literals", "_openers", "_search", "markers")

    def __init__(self, markers: Iterable[str], head: str, begun: str, openers: str, limit: int) -> None:
        self._literals = literals = scanner_for(*markers)
        self.markers = literals.markers
        ordered = sorted(literals.markers, key=lambda marker: (-len(marker), marker))
        self._search = re.compile("|".join([f"(?P<bracket>{head})", *map(re.escape, ordered)])).search
        self._begun = re.compile(begun).match
        self._openers = openers
        self._limit = limit

    def scan(self, text: str, pos: int, final: bool) -> tuple[int, str | None]:
        """See `MarkerScanner.scan`; of a head the marker is the bracket alone."""
        found = self._search(text, pos)
        hold = -1 if final else self._hold(text, pos)
        if found is not None and (hold < 0 or found.start() < hold):
            start = found.start()
            return start, text[start] if found.lastgroup else found.group()
        return (len(text) if hold < 0 else hold), None

    def _hold(self, text: str, pos: int) -> int:
        """Where the text begins that may become a marker or a head, or -1."""
        hold = self._literals.hold(text, pos)
        start = max(pos, len(text) - self._limit)
        last = self._last_opener(text, start, len(text))
        if last < 0:
            return hold
        for at in (self._last_opener(text, start, last), last):
            if at >= 0 and self._begun(text, at):
                return at if hold < 0 else min(at, hold)
        return hold

    def _last_opener(self, text: str, start: int, end: int) -> int:
        return max([text.rfind(opener, start, end) for opener in self._openers])


@lru_cache(maxsize=64)
def head_scanner_for(markers: tuple[str, ...], head: str, begun: str, openers: str, limit: int) -> HeadScanner:
    """The head scanner for these; see `scanner_for`."""
    return HeadScanner(markers, head, begun, openers, limit)
