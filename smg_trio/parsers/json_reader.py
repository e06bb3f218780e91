"""One JSON value, read and put right while it arrives in pieces.

`ValueReader` walks over the text of a JSON value and puts out JSON text as soon as it is certain. What is
valid JSON comes out as it was written (white space and non-ASCII included). What models write instead of
JSON comes out as JSON: Python literals (``'x'``, ``True``, ``None``, tuples), trailing commas, unquoted keys,
raw control characters and unknown escapes inside strings. Strings are never held back, scalars until they
end, a comma until the next item begins; hence `repair` can close a value that broke off at any point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import ClassVar, Final

# States. Values may begin in the first three, keys in the next two (the order is used).
_VALUE, _ITEM, _FIRST_ITEM, _KEY, _FIRST_KEY = range(5)
_COLON, _AFTER, _STRING, _ESCAPE, _SCALAR, _DONE, _FAILED = range(5, 12)
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR_RUN = re.compile(r"[A-Za-z0-9_+.\-]*")
_STRING_STOP: Final = {quote: re.compile(r'["\\\x00-\x1f' + quote + "]") for quote in "\"'"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_CLOSER: Final = {"{": "}", "[": "]", "(": ")"}
_WORDS: Final = {
    **{word: word for word in ("true", "false", "null")},
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
}
_ESCAPES: Final = {
    **{char: "\\" + char for char in '"\\/bfnrt'},
    "'": "'",
    "a": "\\u0007",
    "v": "\\u000b",
    "0": "\\u0000",
    "\n": "",
}
_HEX_ESCAPES: Final = {"u": 4, "x": 2, "U": 8}
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


def escape(text: str) -> str:
    """`text` as the inside of a JSON string, non-ASCII kept."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quoted(text: str) -> str:
    """`text` as a JSON string, non-ASCII kept."""
    return json.dumps(text, ensure_ascii=False)


def scalar_to_json(text: str) -> str | None:
    """JSON text of a scalar in JSON or Python spelling; None if it is neither, or no JSON number could say it.

    A JSON number stays as it is written, however large.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _JSON_NUMBER.fullmatch(text):
        return text
    try:
        return str(int(text, 0))
    except ValueError:
        return _float_to_json(text)


def _float_to_json(text: str) -> str | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return json.dumps(number) if isfinite(number) else None


class ValueReader:
    """Reads one value; feed it with `read`, collect with `take`."""

    __slots__ = ("_broken", "_escape", "_is_key", "_out", "_pending", "_quote", "_scalar", "_stack", "_state")

    def __init__(self) -> None:
        self._state = _VALUE
        self._broken = _VALUE
        self._stack: list[str] = []
        self._out: list[str] = []
        self._pending: list[str] = []
        self._scalar: list[str] = []
        self._escape = ""
        self._quote = '"'
        self._is_key = False

    @property
    def done(self) -> bool:
        """The value is complete and the position returned by `read` is right behind it.

        A scalar at the top ends only at a delimiter or at `flush`.
        """
        return self._state == _DONE

    @property
    def failed(self) -> bool:
        """The next character cannot belong to any value."""
        return self._state == _FAILED

    def take(self) -> str:
        """The JSON text that became certain since the last call."""
        out = "".join(self._out)
        self._out.clear()
        return out

    def read(self, text: str, pos: int) -> int:
        """Reads ``text[pos:]`` as far as the value goes; returns the position of the first character unread."""
        size = len(text)
        while pos < size:
            state = self._state
            if state == _STRING:
                pos = self._read_string(text, pos)
            elif state == _ESCAPE:
                pos = self._read_escape(text, pos)
            elif state == _SCALAR:
                pos = self._read_scalar(text, pos)
            elif state >= _DONE:
                break
            else:
                pos = self._read_structure(text, pos)
        return pos

    def flush(self) -> str:
        """The text has ended: what was held of an unfinished value, as far as it can be shown.

        A scalar at the top is complete with it (``done``). Anything else stays cut where it was cut.
        """
        if self._state == _SCALAR:
            if self._stack:
                self._out.append("".join(self._scalar))
            else:
                self._end_scalar()
        return self.take()

    def repair(self) -> str:
        """JSON text that closes the value where it stopped making sense (or where the caller stopped)."""
        state = self._broken if self._state == _FAILED else self._state
        if state in (_STRING, _ESCAPE):
            self._out.append('":null' if self._is_key else '"')
        elif state == _SCALAR:
            self._end_scalar()
            state = self._state
        if state == _COLON:
            self._out.append(":null")
        elif state == _VALUE:
            self._out.append("null")
        self._out.extend("}" if opener == "{" else "]" for opener in reversed(self._stack))
        self._stack.clear()
        self._state = _DONE
        return self.take()

    def _read_structure(self, text: str, pos: int) -> int:
        space = _SPACE.match(text, pos)
        end = space.end() if space else pos
        if end > pos:
            (self._pending or self._out).append(text[pos:end])
            if end == len(text):
                return end
        char = text[end]
        handler = self._STRUCTURE.get(char, ValueReader._begin_scalar)
        return end + 1 if handler(self, char) else end

    def _fail(self) -> bool:
        self._broken = self._state
        self._state = _FAILED
        return False

    def _begin_item(self) -> bool:
        """A key or value begins: puts out a comma that was held. False where none may begin."""
        state = self._state
        if state > _FIRST_KEY:
            return False
        self._is_key = state >= _KEY
        if self._pending:
            self._out.extend(self._pending)
            self._pending.clear()
        return True

    def _open(self, char: str) -> bool:
        if self._state in (_KEY, _FIRST_KEY) or not self._begin_item():
            return self._fail()
        self._stack.append(char)
        self._out.append("[" if char == "(" else char)
        self._state = _FIRST_KEY if char == "{" else _FIRST_ITEM
        return True

    def _close(self, char: str) -> bool:
        state = self._state
        may_close = state in (_AFTER, _FIRST_ITEM, _FIRST_KEY) or (bool(self._pending) and state in (_ITEM, _KEY))
        if not may_close or not self._stack or _CLOSER[self._stack[-1]] != char:
            return self._fail()
        self._pending.clear()
        self._out.append("]" if char == ")" else char)
        self._stack.pop()
        self._end_value()
        return True

    def _comma(self, char: str) -> bool:
        if self._state != _AFTER:
            return self._fail()
        self._pending.append(char)
        self._state = _KEY if self._stack[-1] == "{" else _ITEM
        return True

    def _colon(self, char: str) -> bool:
        if self._state != _COLON:
            return self._fail()
        self._out.append(char)
        self._state = _VALUE
        return True

    def _begin_string(self, char: str) -> bool:
        if not self._begin_item():
            return self._fail()
        self._out.append('"')
        self._quote = char
        self._state = _STRING
        return True

    def _begin_scalar(self, char: str) -> bool:
        if not _SCALAR_RUN.fullmatch(char) or not self._begin_item():
            return self._fail()
        self._state = _SCALAR
        return False

    def _end_value(self) -> None:
        if self._is_key:
            self._state = _COLON
        else:
            self._state = _AFTER if self._stack else _DONE

    def _read_string(self, text: str, pos: int) -> int:
        stop = _STRING_STOP[self._quote].search(text, pos)
        if stop is None:
            self._out.append(text[pos:])
            return len(text)
        end = stop.start()
        char = text[end]
        if end > pos:
            self._out.append(text[pos:end])
        if char == self._quote:
            self._out.append('"')
            self._end_value()
        elif char == "\\":
            self._escape = ""
            self._state = _ESCAPE
        else:
            self._out.append(escape(char))
        return end + 1

    def _read_escape(self, text: str, pos: int) -> int:
        """One character of an escape; `_escape` holds what came of it so far, without the backslash."""
        char = text[pos]
        held = self._escape
        if not held:
            if char in _HEX_ESCAPES:
                self._escape = char
                return pos + 1
            self._state = _STRING
            self._out.append(_ESCAPES.get(char) or ("" if char == "\n" else "\\\\"))
            return pos + 1 if char in _ESCAPES else pos
        if char not in _HEX_DIGITS:
            self._out.append("\\\\" + held)
            self._state = _STRING
            return pos
        self._escape = held = held + char
        if len(held) == 1 + _HEX_ESCAPES[held[0]]:
            self._out.append(_hex_escape(held))
            self._state = _STRING
        return pos + 1

    def _read_scalar(self, text: str, pos: int) -> int:
        run = _SCALAR_RUN.match(text, pos)
        end = run.end() if run else pos
        if end > pos:
            self._scalar.append(text[pos:end])
        if end < len(text):
            self._end_scalar()
        return end

    def _end_scalar(self) -> None:
        text = "".join(self._scalar)
        self._scalar.clear()
        scalar = None if self._is_key else scalar_to_json(text)
        self._out.append(quoted(text) if scalar is None else scalar)
        self._end_value()

    _STRUCTURE: ClassVar[Mapping[str, Callable[[ValueReader, str], bool]]] = {
        "{": _open,
        "[": _open,
        "(": _open,
        "}": _close,
        "]": _close,
        ")": _close,
        ",": _comma,
        ":": _colon,
        '"': _begin_string,
        "'": _begin_string,
    }


def _hex_escape(held: str) -> str:
    """JSON spelling of the escape `held`, e.g. ``u00e5`` or ``x1b``."""
    if held[0] == "u":
        return "\\" + held
    code = int(held[1:], 16)
    # As \\u escapes, so that a lone surrogate never becomes a character that no encoding can write.
    return json.dumps(chr(code))[1:-1] if code < 0x110000 else "\\\\" + held
