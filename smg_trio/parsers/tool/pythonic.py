"""Calls as a list of Python calls with keyword arguments: ``[f(a=1, b="x"), g()]``.

Covers Llama 4 and other pythonic models, LFM2 and OLMo 3 (one call per line, no brackets). The arguments
are turned into JSON as they come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smg_trio.parsers.base import MOST_ATTEMPTS, ToolParser, ToolSchemas
from smg_trio.parsers.json_reader import quoted
from smg_trio.parsers.scanner import HeadScanner, Scanner, head_scanner_for, scanner_for
from smg_trio.parsers.text_cursor import Steps, expect, peek, read_name, read_value, skip_space


@dataclass(frozen=True, slots=True)
class PythonicFormat:
    """One family.

    Attributes:
        open, close: markers around the list.
        bare: a list without markers is a list of calls too.
        special: the markers are special tokens.
    """

    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    bare: bool = False
    special: bool = False


def _bare_scanner(markers: tuple[str, ...]) -> HeadScanner:
    """Finds lists whose first item begins like a call."""
    return head_scanner_for(
        markers,
        head=r"\[\s{0,64}[^\W\d][\w.:/\-]{0,199}\(",
        begun=r"\[\s{0,64}(?:[^\W\d][\w.:/\-]{0,199})?\Z",
        openers="[",
        limit=300,
    )


class PythonicParser(ToolParser):
    """Parser of a `PythonicFormat`."""

    def __init__(self, style: PythonicFormat, tools: ToolSchemas | None = None) -> None:
        self.style = style
        self.needs_special_tokens = style.special
        self.has_markers = not style.bare
        both = (*style.open, *style.close)
        self._idle: Scanner = scanner_for(*both if style.special else style.open)
        self._owed: Scanner = scanner_for(*both)
        if style.bare:
            self._idle = _bare_scanner(both if style.special else style.open)
            self._owed = _bare_scanner(both)
        self._attempts = 0
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return frozenset((*self.style.open, *self.style.close))

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        while True:
            marker = yield from self.content_until(self._owed if self.calls else self._idle)
            if marker is None:
                return
            if marker in self.style.close:
                continue
            self.cursor.keep(marker)
            if marker != "[" and (yield from skip_space(self.cursor)) == "[":
                self.cursor.skip_to(self.cursor.pos + 1)
            calls = self.calls
            yield from self._read_calls()
            self._attempts += calls == self.calls
            if self._attempts > MOST_ATTEMPTS:
                self._idle = self._owed = scanner_for(*self.style.open, *self.style.close)

    def _read_calls(self) -> Steps[None]:
        markers = (*self.style.open, *self.style.close)
        while (yield from self._read_call()):
            self.cursor.keep()
            char = yield from skip_space(self.cursor)
            if char == "]":
                self.cursor.skip_to(self.cursor.pos + 1)
                yield from skip_space(self.cursor)
            if self.style.close and (yield from expect(self.cursor, *self.style.close)):
                self.cursor.drop()
                return
            if char == "]":
                self.content(self.cursor.kept().replace("]", ""))
                return
            if char == ",":
                self.cursor.skip_to(self.cursor.pos + 1)
        self.give_back(markers)

    def _read_call(self) -> Steps[bool]:
        """One ``name(key=value, …)``. False: it is none, nothing was said."""
        cursor = self.cursor
        yield from skip_space(cursor)
        name = yield from read_name(cursor)
        if not name or not (yield from expect(cursor, "(")):
            return False
        yield from skip_space(cursor)
        if (yield from expect(cursor, ")")):
            self.begin_call(name)
            self.arguments("{}")
            self.end_call()
            return True
        key = yield from self._read_key()
        if not key:
            return False
        self.begin_call(name)
        self.arguments("{" + quoted(key) + ": ")
        yield from self._read_arguments()
        self.end_call()
        return True

    def _read_key(self) -> Steps[str]:
        """``key=``; "" if it is not there."""
        yield from skip_space(self.cursor)
        key = yield from read_name(self.cursor)
        yield from skip_space(self.cursor)
        return key if key and (yield from expect(self.cursor, "=")) else ""

    def _read_arguments(self) -> Steps[None]:
        """Values and further keys, up to the closing parenthesis; the first key has been read."""
        cursor = self.cursor
        while True:
            char = yield from skip_space(cursor)
            if not char:
                return
            sound = yield from read_value(cursor, self.arguments)
            char = yield from skip_space(cursor)
            key = ""
            cursor.keep()
            if sound and char == ",":
                cursor.skip_to(cursor.pos + 1)
                key = yield from self._read_key()
            if key:
                cursor.drop()
                self.arguments(", " + quoted(key) + ": ")
                continue
            if (yield from peek(cursor)):
                self.arguments("}")
                yield from self._end_arguments()
            return

    def _end_arguments(self) -> Steps[None]:
        """The closing parenthesis. What was kept in front of it and was no further argument is content."""
        self.end_call()
        rest = self.cursor.kept()
        closed = yield from expect(self.cursor, ")")
        if not closed or rest.strip(", \n"):
            self.content(rest)


PYTHONIC = PythonicFormat(("<|python_start|>",), ("<|python_end|>",), bare=True)
LLAMA4 = replace(PYTHONIC, special=True)
LFM2 = PythonicFormat(("<|tool_call_start|>",), ("<|tool_call_end|>",), special=True)
OLMO3 = PythonicFormat(("<function_calls>",), ("</function_calls>",))
