"""The text of an answer as a parser reads it: pushed in pieces, read by a script.

A *script* is a generator that reads straight ahead and yields where it needs more text. It consumes whatever
is certain, whichever way the text was cut, so what a parser has said depends on the text so far and on
nothing else. The functions here are the steps scripts are made of; each is called with ``yield from``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

from smg_trio.parsers.json_reader import ValueReader

if TYPE_CHECKING:
    from smg_trio.parsers.scanner import Scanner

T = TypeVar("T")
Steps = Generator[None, None, T]
Emit = Callable[[str], object]

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.:/\-]*")


class TextCursor:
    """Text that has come (``text[pos:]`` is unread) and whether more may come.

    `keep` starts a record of everything read from then on, so that a candidate that turns out to be no call
    can be given back (`kept`) or forgotten (`drop`).
    """

    __slots__ = ("_kept", "closed", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.closed = False
        self._kept: list[str] | None = None

    def push(self, piece: str) -> None:
        """More text has come."""
        self.text = self.text[self.pos :] + piece if self.pos < len(self.text) else piece
        self.pos = 0

    def keep(self, marker: str = "") -> None:
        """Starts the record with `marker`, which has been read already."""
        self._kept = [marker]

    def kept(self) -> str:
        """Ends the record and returns it."""
        text = "".join(self._kept or ())
        self._kept = None
        return text

    def drop(self) -> None:
        """Ends the record and forgets it."""
        self._kept = None

    def skip_to(self, end: int) -> None:
        """Everything before `end` has been read."""
        if self._kept is not None and end > self.pos:
            self._kept.append(self.text[self.pos : end])
        self.pos = end

    def take_to(self, end: int) -> str:
        """Reads up to `end` and returns it."""
        piece = self.text[self.pos : end]
        if self._kept is not None and piece:
            self._kept.append(piece)
        self.pos = end
        return piece


def peek(cursor: TextCursor) -> Steps[str]:
    """The next character, unread; "" at the end of the text."""
    while cursor.pos >= len(cursor.text):
        if cursor.closed:
            return ""
        yield
    return cursor.text[cursor.pos]


def skip_space(cursor: TextCursor) -> Steps[str]:
    """Reads white space; the character behind it, unread, or "" at the end of the text."""
    while True:
        run = _SPACE.match(cursor.text, cursor.pos)
        cursor.skip_to(run.end() if run else cursor.pos)
        if cursor.pos < len(cursor.text):
            return cursor.text[cursor.pos]
        if cursor.closed:
            return ""
        yield


def read_name(cursor: TextCursor) -> Steps[str]:
    """Reads the letters, digits and ``_.:/-`` that stand here; at most 200 of them."""
    pieces: list[str] = []
    room = 200
    while True:
        run = _NAME.match(cursor.text, cursor.pos, cursor.pos + room)
        end = run.end() if run else cursor.pos
        room -= end - cursor.pos
        pieces.append(cursor.take_to(end))
        if end < len(cursor.text) or cursor.closed or not room:
            return "".join(pieces)
        yield


def ahead(cursor: TextCursor, *literals: str) -> Steps[str]:
    """The longest of `literals` that stands here, unread; "" if none does."""
    longest = max(map(len, literals))
    while True:
        rest = cursor.text[cursor.pos : cursor.pos + longest]
        whole = cursor.closed or len(rest) == longest
        if whole or not any(len(rest) < len(item) and item.startswith(rest) for item in literals):
            return max((item for item in literals if rest.startswith(item)), key=len, default="")
        yield


def expect(cursor: TextCursor, *literals: str) -> Steps[str]:
    """Reads the longest of `literals` that stands here and returns it; "" (and nothing read) if none does."""
    found = yield from ahead(cursor, *literals)
    cursor.skip_to(cursor.pos + len(found))
    return found


def head_ahead(cursor: TextCursor, scanner: Scanner, limit: int) -> Steps[tuple[str, str | None]]:
    """The text up to the first marker of `scanner`, and the marker; neither is read.

    Without a marker within `limit` characters: what text there is within them, and None.
    """
    while True:
        text = cursor.text[cursor.pos : cursor.pos + limit]
        final = cursor.closed or len(text) == limit
        end, marker = scanner.scan(text, 0, final)
        if marker is not None:
            return text[:end], marker
        if final:
            return text, None
        yield


def read_head(cursor: TextCursor, scanner: Scanner, limit: int) -> Steps[tuple[str, str | None]]:
    """Like `head_ahead`, and reads both."""
    head, marker = yield from head_ahead(cursor, scanner, limit)
    cursor.skip_to(cursor.pos + len(head) + len(marker or ""))
    return head, marker


def read_until(cursor: TextCursor, scanner: Scanner, emit: Emit) -> Steps[str | None]:
    """Passes text to `emit` as it comes, up to the first marker of `scanner`, and reads the marker.

    Returns:
        The marker; None where the text ended first.
    """
    while True:
        end, marker = scanner.scan(cursor.text, cursor.pos, cursor.closed)
        if end > cursor.pos:
            emit(cursor.take_to(end))
        if marker is not None:
            cursor.skip_to(end + len(marker))
            return marker
        if cursor.closed:
            return None
        yield


def read_value(cursor: TextCursor, emit: Emit) -> Steps[bool]:
    """Reads one JSON value and passes its JSON text to `emit` as it comes.

    Returns:
        False where the text stopped making sense (what was passed on has been closed and is valid JSON) or
        ended (what was passed on is cut off as the text is).
    """
    reader = ValueReader()
    while True:
        cursor.skip_to(reader.read(cursor.text, cursor.pos))
        if piece := reader.take():
            emit(piece)
        if reader.done:
            return True
        if reader.failed:
            if tail := reader.repair():
                emit(tail)
            return False
        if cursor.closed:
            if tail := reader.flush():
                emit(tail)
            return reader.done
        yield
