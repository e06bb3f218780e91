"""Harmony, the channels of gpt-oss: reasoning, preambles, answer and calls as messages with headers.

A message is ``<|start|>assistant to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>json<|message|>BODY``
ended by ``<|end|>``, ``<|call|>`` or ``<|return|>``; the prompt ends in the first ``<|start|>assistant``. The
recipient may stand before or behind the channel. ``analysis`` is reasoning, ``final`` and ``commentary``
without a recipient are content, whatever goes to ``functions.NAME`` is a call, whatever goes to another
recipient is reasoning. A header that makes no sense is content without its markers.
"""

from __future__ import annotations

import re
from typing import ClassVar

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.json_reader import quoted
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Emit, Steps, ahead, read_head, read_until, skip_space

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>", "<|channel|>", "<|constrain|>")
_MARKERS = (*_ENDS, *_HEADS, "<|message|>")
_ANY = scanner_for(*_MARKERS)
_HEAD_END = scanner_for("<|message|>", *_ENDS)
_BODY_END = scanner_for(*_ENDS, "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_HEAD_LIMIT = 300


class HarmonyParser(ToolParser):
    """Parser of a whole Harmony answer.

    Args:
        calls: False leaves calls in the content, as they were written.
    """

    needs_special_tokens = True
    reads_reasoning: ClassVar[bool] = True

    def __init__(self, tools: ToolSchemas | None = None, *, calls: bool = True) -> None:
        self._parse_calls = calls
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return _ANY.markers

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        marker = yield from self._read_loose_head()
        while True:
            if marker is None:
                marker = yield from self.content_until(_ANY)
            if marker is None:
                return
            if marker in _HEADS:
                self.cursor.keep(marker)
                marker = yield from self._read_message()
            elif marker in _ENDS:
                marker = yield from self._read_loose_head()
            else:
                marker = yield from self._read_body(self.content)

    def _read_loose_head(self) -> Steps[str | None]:
        """A message may begin with its recipient, where the role was in the prompt; else nothing is read."""
        self.cursor.keep()
        yield from skip_space(self.cursor)
        if (yield from ahead(self.cursor, "to=")):
            return (yield from self._read_message())
        self.content(self.cursor.kept())
        return None

    def _read_message(self) -> Steps[str | None]:
        """Header, from what was kept on, and body. Returns the marker that ended the body, None if none."""
        first = self.cursor.kept()
        rest, found = yield from read_head(self.cursor, _HEAD_END, _HEAD_LIMIT)
        head = first + rest
        if found != "<|message|>":
            self.content(_unmarked(head))
            return found
        recipient = _RECIPIENT.search(head)
        channel = _CHANNEL.search(head)
        if recipient is None:
            analysis = channel is not None and channel[1] == "analysis"
            return (yield from self._read_body(self.reasoning if analysis else self.content))
        to = recipient[1]
        name = to.removeprefix("functions.")
        if name == to and name not in self.tools:
            return (yield from self._read_body(self.reasoning))
        if not self._parse_calls:
            return (yield from self._copy_call(head))
        return (yield from self._read_call(name))

    def _read_body(self, emit: Emit) -> Steps[str | None]:
        return (yield from read_until(self.cursor, _BODY_END, emit))

    def _copy_call(self, head: str) -> Steps[str | None]:
        self.content(head + "<|message|>")
        marker = yield from self._read_body(self.content)
        self.content(marker if marker in _ENDS else "")
        return marker

    def _read_call(self, name: str) -> Steps[str | None]:
        self.begin_call(name)
        char = yield from skip_space(self.cursor)
        if char == "{":
            yield from self.stream_arguments()
            yield from skip_space(self.cursor)
            return (yield from self._read_body(self.content))
        held: list[str] = []
        marker = yield from self._read_body(held.append)
        if held or marker:
            self.arguments(quoted("".join(held)) if held else "{}")
        self.end_call()
        return marker


def _unmarked(head: str) -> str:
    """What of a header that leads to no message may be text."""
    head = _CHANNEL.sub("", head).replace("<|start|>assistant", "")
    for marker in _MARKERS:
        head = head.replace(marker, "")
    return head
