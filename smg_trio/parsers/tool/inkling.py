"""Inkling's typed blocks: ``<|message_model|>NAME<|content_KIND|>BODY<|end_message|>``."""

from __future__ import annotations

from typing import ClassVar

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.call_object import CallKeys, read_call
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Steps, expect, peek, read_name, read_until, skip_space

_BLOCK = "<|message_model|>"
_END = "<|end_message|>"
_TEXT = "<|content_text|>"
_REASONING = "<|content_thinking|>"
_CALL = "<|content_invoke_tool_json|>"
_ALL = (_BLOCK, _END, _TEXT, _REASONING, _CALL)
_OUTSIDE = scanner_for(*_ALL)
_INSIDE_REASONING = scanner_for(_END, _BLOCK)
_KEYS = CallKeys(arguments=frozenset({"args", "arguments", "parameters"}))


class InklingParser(ToolParser):
    """Parser of a whole Inkling answer. ``calls=False`` leaves calls in the content, as they were written."""

    needs_special_tokens = True
    reads_reasoning: ClassVar[bool] = True

    def __init__(self, tools: ToolSchemas | None = None, *, calls: bool = True) -> None:
        self._parse_calls = calls
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return _OUTSIDE.markers

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        yield from peek(self.cursor)
        marker: str | None = _REASONING if self.starts_in_reasoning else ""
        while marker is not None:
            if marker == _BLOCK:
                marker = yield from self._read_kind()
                continue
            if marker == _REASONING:
                self.cursor.drop()
                marker = yield from read_until(self.cursor, _INSIDE_REASONING, self.reasoning)
                continue
            if marker == _CALL:
                yield from self._read_call()
            self.cursor.drop()
            marker = yield from self.content_until(_OUTSIDE)

    def _read_kind(self) -> Steps[str | None]:
        """What a block is: the marker behind its name; "" where there is none."""
        self.cursor.keep(_BLOCK)
        yield from read_name(self.cursor)
        kind = yield from expect(self.cursor, _TEXT, _REASONING, _CALL)
        if not kind:
            self.give_back(_ALL)
        return kind

    def _read_call(self) -> Steps[None]:
        if not self._parse_calls:
            self.content(self.cursor.kept() or _CALL)
            if (yield from read_until(self.cursor, scanner_for(_END), self.content)):
                self.content(_END)
            return
        if (yield from skip_space(self.cursor)) != "{":
            self.give_back(_ALL)
            return
        self.cursor.skip_to(self.cursor.pos + 1)
        if not (yield from read_call(self, _KEYS)):
            self.give_back(_ALL)
        yield from skip_space(self.cursor)
        yield from expect(self.cursor, _END)
