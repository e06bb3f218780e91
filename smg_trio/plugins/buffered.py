"""Parsers of plain functions, for formats that can only be read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.events import ParserEvent


class BufferedParser:
    """Keeps the text until its end, then has a function read all of it."""

    __slots__ = ("_pieces", "_read", "needs_special_tokens")

    def __init__(self, read: Callable[[str], list[ParserEvent]], *, needs_special_tokens: bool = False) -> None:
        self._read = read
        self._pieces: list[str] = []
        self.needs_special_tokens = needs_special_tokens

    def feed(self, text: str) -> list[ParserEvent]:
        """See `Parser.feed`: keep the text."""
        self._pieces.append(text)
        return []

    def finish(self) -> list[ParserEvent]:
        """See `Parser.finish`: what the function makes of the whole text; nothing if there was none."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return self._read(text) if text else []


def buffered(read: Callable[[str], list[ParserEvent]], *, needs_special_tokens: bool = False) -> BufferedParser:
    """A parser that shows nothing before the answer's end, and then what `read` makes of its whole text.

    A streamed answer comes in one piece then, so read piece by piece where the format allows it.
    """
    return BufferedParser(read, needs_special_tokens=needs_special_tokens)
