"""Finding literal markers in text that arrives in pieces.

The scanner holds back only what may still become a marker: a suffix of the text that is a true prefix of
one of the markers. It keeps no text itself, so a parser switches between marker sets by switching scanners.
Cost: one C search per call where no marker begins in the text; linear in the text whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


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
        hold = -1 if final else self._hold(text, start)
        if found is not None and (hold < 0 or found.start() < hold):
            return found.start(), found.group()
        return (len(text) if hold < 0 else hold), None

    def _hold(self, text: str, start: int) -> int:
        """Where the longest suffix of ``text[start:]`` that is a true prefix of a marker begins, or -1."""
        head = self._first(text, max(start, len(text) - self._longest + 1))
        while head is not None:
            at = head.start()
            if text[at:] in self._prefixes:
                return at
            head = self._first(text, at + 1)
        return -1
