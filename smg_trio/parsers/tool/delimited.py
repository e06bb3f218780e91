"""Gemma's calls: ``call:NAME{key:<|"|>text<|"|>,number:4,nested:{…}}``, JSON but for its keys and quotes.

Covers Gemma 4 and FunctionGemma, which differ in their markers only.
"""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.json_reader import ValueReader, escape
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Emit, Steps, TextCursor, expect, read_name, skip_space


@dataclass(frozen=True, slots=True)
class DelimitedFormat:
    """One family: markers around a call, and what stands for a quote."""

    open: str
    close: str
    quote: str


class DelimitedParser(ToolParser):
    """Parser of a `DelimitedFormat`."""

    needs_special_tokens = True

    def __init__(self, style: DelimitedFormat, tools: ToolSchemas | None = None) -> None:
        self.style = style
        self._outside = scanner_for(style.open, style.close)
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return frozenset((self.style.open, self.style.close, self.style.quote))

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        while True:
            marker = yield from self.content_until(self._outside)
            if marker is None:
                return
            if marker == self.style.open:
                yield from self._read_call(marker)

    def _read_call(self, marker: str) -> Steps[None]:
        cursor = self.cursor
        cursor.keep(marker)
        yield from skip_space(cursor)
        name = ""
        if (yield from expect(cursor, "call:")):
            name = yield from read_name(cursor)
        if not name or (yield from skip_space(cursor)) != "{":
            self.give_back(self.markers)
            return
        self.begin_call(name)
        yield from read_delimited(cursor, self.arguments, self.style.quote)
        self.end_call()
        yield from skip_space(cursor)
        yield from expect(cursor, self.style.close)


def read_delimited(cursor: TextCursor, emit: Emit, quote: str) -> Steps[bool]:
    """`cursor.read_value` for values whose strings stand between two `quote`; inside them every sign is text."""
    scanner = scanner_for(quote)
    reader = ValueReader()
    inside = False
    while True:
        end, marker = scanner.scan(cursor.text, cursor.pos, cursor.closed)
        piece = cursor.text[cursor.pos : end]
        if inside:
            reader.read(escape(piece), 0)
            cursor.skip_to(end)
        else:
            cursor.skip_to(cursor.pos + reader.read(piece, 0))
        if marker and cursor.pos == end and not reader.done and not reader.failed:
            reader.read('"', 0)
            inside = not inside
            cursor.skip_to(end + len(marker))
        if text := reader.take():
            emit(text)
        if reader.done:
            return True
        if reader.failed:
            if tail := reader.repair():
                emit(tail)
            return False
        if marker:
            continue
        if cursor.closed:
            if tail := reader.flush():
                emit(tail)
            return reader.done
        yield


GEMMA4 = DelimitedFormat("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTIONGEMMA = DelimitedFormat("<start_function_call>", "<end_function_call>", "<escape>")
