"""Muse: the answer as messages to recipients, calls as markup in messages to tools.

A message is ``<|start|>assistant to=RECIPIENT<|message|>BODY`` ended by ``<|eom|>`` or, the last one, ``<|eot|>``; the
prompt ends in the first ``<|start|>assistant``. What goes to ``self``, or has no recipient, is reasoning; what goes to
``user`` or ``commentary`` is content; ``developer`` is not shown. Everything else goes to tools and holds
``<atem:function_calls>`` around ``<atem:invoke name="…">`` elements. Only there is such markup a call; in text without
any frame it is one as well. The model sometimes leaves a message without ending it, by the next one's recipient.

Source: vLLM 0.33, ``tool_parsers/muse_tool_parser.py`` and ``reasoning/muse_reasoning_parser.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from smg_trio.parsers.scanner import MarkerScanner, scanner_for
from smg_trio.parsers.text_cursor import Emit, Steps, peek, read_head, read_until
from smg_trio.parsers.tool.xml_block import XmlFormat, XmlParser

if TYPE_CHECKING:
    from smg_trio.parsers.base import ToolSchemas

ATEM: Final = XmlFormat(
    call_open="<atem:invoke ",
    call_close="</atem:invoke>",
    head_end=">",
    param_open="<atem:parameter ",
    param_close="</atem:parameter>",
    block_open=("<atem:function_calls>",),
    block_close=("</atem:function_calls>",),
    special=True,
)
THINK_OPEN: Final = "to=self<|message|>"
ANSWER_OPEN: Final = "to=user<|message|>"
_START: Final = "<|start|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|eom|>", "<|eot|>")
_FRAME: Final = (_START, _MESSAGE, *_ENDS)
_HEAD_END: Final = scanner_for(_MESSAGE, *_ENDS)
_HEAD_LIMIT: Final = 300
_RECIPIENT: Final = re.compile(r"\bto=([\w.\-]+)")


class FrameScanner:
    """Finds literals, and a recipient in front of ``<|message|>`` as part of that marker."""

    _NAME_LIMIT: Final = 200
    _BEGUN: Final = re.compile(r"[^\S\n]?(?:t|to|to=[\w.\-]{0,200}(?:<\|?[a-z]{0,7}\|?)?)?\Z")

    def __init__(self, *literals: str) -> None:
        self._literals: MarkerScanner = scanner_for(*literals)
        self.markers = self._literals.markers
        ordered = sorted(self.markers, key=lambda marker: (-len(marker), marker))
        head = rf"[^\S\n]?to=[\w.\-]{{1,{self._NAME_LIMIT}}}{re.escape(_MESSAGE)}"
        self._search = re.compile("|".join([head, *map(re.escape, ordered)])).search

    def scan(self, text: str, pos: int, final: bool) -> tuple[int, str | None]:
        """See `MarkerScanner.scan`."""
        found = self._search(text, pos)
        hold = -1 if final else self._hold(text, pos)
        if found is not None and (hold < 0 or found.start() < hold):
            return found.start(), found.group()
        return (len(text) if hold < 0 else hold), None

    def _hold(self, text: str, pos: int) -> int:
        """Where the text begins that may become a marker, or -1."""
        hold = self._literals.hold(text, pos)
        start = max(pos, len(text) - self._NAME_LIMIT - len(_MESSAGE) - 4)
        at = text.rfind("to=", start)
        if at > start and text[at - 1] in " \t\r":
            at -= 1
        if at < 0:
            at = max(start, len(text) - 3)
        head = next((place for place in range(at, len(text)) if self._BEGUN.match(text, place)), -1)
        if head < 0 or head == len(text):
            return hold
        return head if hold < 0 else min(head, hold)


_BODY_END: Final = FrameScanner(*_FRAME)
_UNFRAMED: Final = FrameScanner(*_FRAME, *ATEM.markers)
_IN_TOOL: Final = FrameScanner(*_FRAME, *ATEM.markers)


class MuseParser(XmlParser):
    """Parser of a whole Muse answer. ``calls=False`` leaves calls in the content, as they were written."""

    reads_reasoning: ClassVar[bool] = True

    def __init__(self, tools: ToolSchemas | None = None, *, calls: bool = True) -> None:
        self._parse_calls = calls
        super().__init__(ATEM, tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return super().markers | {*_FRAME}

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        yield from peek(self.cursor)
        marker: str | None = THINK_OPEN if self.starts_in_reasoning else ""
        framed = False
        while marker is not None:
            if marker == _START:
                marker = yield from self._read_header()
            elif marker.endswith(_MESSAGE):
                framed = True
                marker = yield from self._read_body(_recipient(marker))
            else:
                if marker in ATEM.markers:
                    yield from self.read_marked(marker)
                outside = _BODY_END if framed or not self._parse_calls else _UNFRAMED
                marker = yield from read_until(self.cursor, outside, self.content)

    def _read_header(self) -> Steps[str | None]:
        """The rest of a header, as the marker that begins its message; what leads to none is left out."""
        head, marker = yield from read_head(self.cursor, _HEAD_END, _HEAD_LIMIT)
        if marker != _MESSAGE:
            self.content(_RECIPIENT.sub("", head.removeprefix("assistant")))
            return marker or ""
        found = _RECIPIENT.search(head)
        return f"to={found[1]}{_MESSAGE}" if found else _MESSAGE

    def _read_body(self, recipient: str) -> Steps[str | None]:
        """A message behind its header; returns the marker that ended it, None with the text."""
        if recipient in ("", "self"):
            return (yield from read_until(self.cursor, _BODY_END, self.reasoning))
        if recipient in ("user", "commentary"):
            return (yield from read_until(self.cursor, _BODY_END, self.content))
        if recipient == "developer":
            return (yield from read_until(self.cursor, _BODY_END, _nobody))
        if not self._parse_calls:
            return (yield from read_until(self.cursor, _BODY_END, self.content))
        return (yield from self._read_calls_of(self._not_blank))

    def _read_calls_of(self, emit: Emit) -> Steps[str | None]:
        """The calls in a message to a tool; text beside them goes to `emit`."""
        while True:
            marker = yield from read_until(self.cursor, _IN_TOOL, emit)
            if marker is None or marker not in ATEM.markers:
                return marker
            yield from self.read_marked(marker)

    def _not_blank(self, text: str) -> None:
        if not text.isspace():
            self.content(text)

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """A tool declared as ``NAME`` is known to the model as ``NAME.NAME``."""
        head, _, tail = name.partition(".")
        super().begin_call(head if head == tail and name not in self.tools and head in self.tools else name, call_id)


def _recipient(marker: str) -> str:
    found = _RECIPIENT.search(marker)
    return found[1] if found else ""


def _nobody(text: str) -> None:
    del text
