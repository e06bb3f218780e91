"""Large JSON bodies: counted before they are read, and read so that other threads get their turn.

The standard library's decoder is one C call: for as long as it takes, no other thread runs, and a body of 60 MB can
take 20 s and 2 GB. So a body is first counted (`is_heavy`, `check_counts`), and a heavy one is decoded in a thread by
`decode_heavy`, which gives the same decoder one window of the text after the other. Between two windows the
interpreter may switch threads.

What a body may hold is bounded by numbers of values, since a value of two bytes (``[]``) becomes an object of sixty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from smg_trio.core.errors import InvalidRequest

MAX_DEPTH: Final = 128
"""How deep arrays and objects of a body may nest; everything that walks a body later can recurse safely."""
MAX_VALUES: Final = 5_000_000
"""Values in a body, as far as commas and brackets tell: 1,024 prompts of 4,000 token ids are as many."""
MAX_CONTAINERS: Final = 500_000
"""Arrays and objects in a body, as far as brackets tell: 0.2 GB of memory, and 20 ms to free them."""
MAX_TEXTS: Final = 1_000_000
"""Strings in a body, members' names among them, as far as quotation marks tell."""

LIGHT_BYTES: Final = 1 << 20
"""A larger body is heavy whatever it holds: 1 MiB of text with escapes takes 7 ms."""
_COSTLY: Final = (b'"pattern', b"regex")
"""What stands for far more work than its length: 20 KB of regular expressions take 20 ms to check."""
LIGHT_VALUES: Final = 10_000
"""A body of more values is heavy: reading and checking so many takes 10 ms."""
_SURELY_LIGHT_BYTES: Final = 2 * LIGHT_VALUES
_COUNTED_AT_ONCE: Final = 1 << 20

NODE_WEIGHT: Final = 8
"""What a value costs beside its characters, as characters."""

_WINDOW: Final = 1 << 16
"""Characters given to the C decoder at once: at most 20,000 values, 5 ms."""
_UNITS: Final = re.compile(r'(?:[^"\\]|\\u[dD][89abAB]..\\u....|\\u....|\\[^u]){1,65536}+', re.DOTALL)
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]{1,262144}+')
_LONG_RUN: Final = 256
_SPACE: Final = re.compile(r"[ \t\n\r]{0,65536}")
_CUT_EXPONENT: Final = 3
_OPENINGS: Final = ("[", "{", '"')
_ENDS: Final = {"[": "],", "{": "},", '"': '",'}
"""How a member that begins so most likely ends, comma included; the members of an object begin with a text."""


class TooManyValues(InvalidRequest):
    """The body holds so many values that they alone would take too much memory."""

    code = "too_many_values"
    status = 413


def is_heavy(body: bytes) -> bool:
    """Whether reading `body` takes so long that it belongs into a thread. Costs one comparison for short bodies."""
    if len(body) <= _SURELY_LIGHT_BYTES:
        return False
    if len(body) > LIGHT_BYTES or body.count(b",") + body.count(b"[") + body.count(b"{") > LIGHT_VALUES:
        return True
    return any(word in body for word in _COSTLY)


def weight(value: Any, limit: int) -> int:
    """How heavy a JSON value is: its characters, and `NODE_WEIGHT` for each value in it. Stops beyond `limit`."""
    total, pending = 0, [value]
    while pending and total <= limit:
        node = pending.pop()
        total += NODE_WEIGHT
        if isinstance(node, str):
            total += len(node)
        elif isinstance(node, (list, tuple)):
            if NODE_WEIGHT * len(node) > limit:
                return limit + 1
            pending.extend(node)
        elif isinstance(node, (dict, Mapping)):  # asking for an abstract class takes longer
            if NODE_WEIGHT * len(node) > limit:
                return limit + 1
            total += sum(map(len, node))
            pending.extend(node.values())
    return total


def check_counts(body: bytes) -> None:
    """Refuse a body of too many values, at a glance: commas, brackets and quotation marks count, within text too.

    Raises:
        TooManyValues: of status 413.
    """
    values = containers = quotes = 0
    for start in range(0, len(body), _COUNTED_AT_ONCE):
        end = start + _COUNTED_AT_ONCE
        containers += body.count(b"[", start, end) + body.count(b"{", start, end)
        values += body.count(b",", start, end)
        quotes += body.count(b'"', start, end)
        if containers > MAX_CONTAINERS:
            raise TooManyValues(f"The request body holds more than {MAX_CONTAINERS} arrays and objects.")
        if values > MAX_VALUES:
            raise TooManyValues(f"The request body holds more than {MAX_VALUES} values.")
        if quotes > 2 * MAX_TEXTS:
            raise TooManyValues(f"The request body holds more than {MAX_TEXTS} strings.")


def contains(body: bytes, *words: bytes) -> bool:
    """Whether one of the words is in `body`; searched in pieces, so that other threads get their turn."""
    overlap = max(map(len, words)) - 1
    starts = range(0, len(body), _COUNTED_AT_ONCE)
    return any(body.find(word, at, at + _COUNTED_AT_ONCE + overlap) >= 0 for at in starts for word in words)


def decode_heavy(text: str, decoder: json.JSONDecoder, depth: int) -> Any:
    """What ``decoder.decode(text)`` returns, read window by window.

    Args:
        text: JSON text.
        decoder: a decoder without hooks but for constants.
        depth: levels of nesting after which it is refused.

    Raises:
        json.JSONDecodeError, ValueError, RecursionError: as `json.loads`; RecursionError at `depth`.
    """
    reader = _Reader(text, decoder, depth)
    value, end = reader.value(reader.skip_space(0), 0)
    end = reader.skip_space(end)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


class _Reader:
    """One text being read. Methods take the place where something begins and return what it is and its end."""

    __slots__ = ("_decoder", "_depth", "_text", "_window", "_window_at")

    def __init__(self, text: str, decoder: json.JSONDecoder, depth: int) -> None:
        self._text = text
        self._decoder = decoder
        self._depth = depth
        self._window_at = 0
        self._window = text[:_WINDOW]

    def skip_space(self, at: int) -> int:
        """The place of the next character that is no white space."""
        while True:
            end = cast("re.Match[str]", _SPACE.match(self._text, at)).end()
            if end - at < _WINDOW:
                return end
            at = end

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """Any value: in one go if it ends within a window, else one of its parts after the other."""
        found = self._scan_window(at)
        if found is None and at > self._window_at:
            self._window_at = at
            self._window = self._text[at : at + _WINDOW]
            found = self._scan_window(at)
        if found is not None:
            return found
        first = self._text[at : at + 1]
        if first == '"':
            return self._string(at)
        if first not in ("[", "{"):
            # What begins a window and is no container ends in it, or is nothing.
            raise ValueError("a number is too long")
        if depth >= self._depth:
            raise RecursionError("nested too deeply")
        return self._array(at + 1, depth + 1) if first == "[" else self._object(at + 1, depth + 1)

    def _scan_window(self, at: int) -> tuple[Any, int] | None:
        """The value, if it ends well before the present window does: a number cut behind ``1e+`` seems to end there."""
        offset, window = at - self._window_at, self._window
        last = self._window_at + len(window) == len(self._text)
        try:
            value, end = self._decoder.raw_decode(window, offset)
        except json.JSONDecodeError as error:
            if last or (not offset and window[:1] not in _OPENINGS):
                raise json.JSONDecodeError(error.msg, self._text, self._window_at + error.pos) from None
            return None
        return (value, self._window_at + end) if last or end + _CUT_EXPONENT <= len(window) else None

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self.skip_space(at)
        if self._text.startswith("]", at):
            return values, at + 1
        tried = 0
        while True:
            if at >= tried:
                at, tried = self._take_run(at, "[]", values.extend)
            value, at = self.value(at, depth)
            values.append(value)
            at, ended = self._separator(at, "]")
            if ended:
                return values, at

    def _take_run(self, at: int, brackets: str, take: Callable[[Any], object]) -> tuple[int, int]:
        """Takes as many members of an array or object as a window holds, in one go.

        The window is cut behind a comma that looks like one between members. If it is another one, inside a text or a
        deeper bracket, then what stands before it with a closing bracket behind it is no JSON, and nothing is taken.

        Returns:
            The place of the next member, and the place before which another attempt would only cost time.
        """
        end = at + _WINDOW
        if end >= len(self._text):
            return at, len(self._text)
        for mark in (_ENDS.get(self._text[at], ","), ","):
            cut = self._text.rfind(mark, at, end) + len(mark)
            if cut <= at + len(mark):
                continue
            try:
                take(self._decoder.decode(f"{brackets[0]}{self._text[at : cut - 1]}{brackets[1]}"))
            except json.JSONDecodeError:
                continue
            at = self.skip_space(cut)
            return at, at
        return at, end

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        at = self.skip_space(at)
        if self._text.startswith("}", at):
            return values, at + 1
        tried = 0
        while True:
            if at >= tried:
                at, tried = self._take_run(at, "{}", values.update)
            if not self._text.startswith('"', at):
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self._text, at)
            key, at = self.value(at, depth)
            at = self.skip_space(at)
            if not self._text.startswith(":", at):
                raise json.JSONDecodeError("Expecting ':' delimiter", self._text, at)
            values[key], at = self.value(self.skip_space(at + 1), depth)
            at, ended = self._separator(at, "}")
            if ended:
                return values, at

    def _separator(self, at: int, closing: str) -> tuple[int, bool]:
        """Behind a value: the place of the next one, or that behind the closing bracket."""
        at = self.skip_space(at)
        following = self._text[at : at + 1]
        if following == closing:
            return at + 1, True
        if following != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", self._text, at)
        return self.skip_space(at + 1), False

    def _string(self, at: int) -> tuple[str, int]:
        """A long text, cut where no escape is cut."""
        pieces: list[str] = []
        at += 1
        while True:
            plain = _PLAIN.match(self._text, at)
            if plain is not None and plain.end() - at >= _LONG_RUN:
                pieces.append(plain[0])
            elif units := _UNITS.match(self._text, at):
                plain = units
                pieces.append(self._unescaped(at, units.end()))
            else:
                break
            at = plain.end()
        if not self._text.startswith('"', at):
            raise json.JSONDecodeError("Unterminated string", self._text, at)
        return "".join(pieces), at + 1

    def _unescaped(self, at: int, end: int) -> str:
        try:
            text: str = self._decoder.decode(f'"{self._text[at:end]}"')
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, self._text, at + error.pos - 1) from None
        return text
