"""Calls whose name stands in the markup and whose arguments are a JSON object behind it.

Covers DeepSeek V3 and V3.1, Kimi K2, Functionary and PLaMo 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Steps, expect, read_name, skip_space


@dataclass(frozen=True, slots=True)
class NamedCallFormat:
    """One family.

    Attributes:
        open, close: markers around one call.
        name_end: markers between the name and the arguments.
        section_open, section_close: markers around all calls; may be missing in the text.
        kind_end: what ends a word in front of the name (``function`` in DeepSeek V3); "" for none.
        fence: a Markdown fence (with its language) that may stand around the arguments; "" for none.
        special: the markers are special tokens.
    """

    open: tuple[str, ...]
    name_end: tuple[str, ...]
    close: tuple[str, ...]
    section_open: tuple[str, ...] = ()
    section_close: tuple[str, ...] = ()
    kind_end: str = ""
    fence: str = ""
    special: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """All of them."""
        kind = (self.kind_end,) if self.kind_end else ()
        return (*self.section_open, *self.open, *kind, *self.name_end, *self.close, *self.section_close)


class NamedCallParser(ToolParser):
    """Parser of a `NamedCallFormat`."""

    def __init__(self, style: NamedCallFormat, tools: ToolSchemas | None = None) -> None:
        self.style = style
        self.needs_special_tokens = style.special
        closers = (*style.close, *style.section_close)
        opening = (*style.section_open, *style.open)
        self._idle = scanner_for(*opening, *(closers if style.special else ()))
        self._owed = scanner_for(*opening, *closers)
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return frozenset(self.style.markers)

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        while True:
            marker = yield from self.content_until(self._owed if self.calls else self._idle)
            if marker is None:
                return
            if marker in self.style.section_open:
                yield from self._read_section(marker)
            elif marker in self.style.open:
                self.cursor.keep(marker)
                yield from self._read_calls()

    def _read_section(self, marker: str) -> Steps[None]:
        self.cursor.keep(marker)
        yield from skip_space(self.cursor)
        opened = yield from expect(self.cursor, *self.style.open)
        if opened:
            yield from self._read_calls()
        else:
            self.give_back(self.style.markers)

    def _read_calls(self) -> Steps[None]:
        """Calls one behind the other; the first opening marker has been read."""
        style = self.style
        while (yield from self._read_call()):
            self.cursor.keep()
            yield from skip_space(self.cursor)
            between = yield from expect(self.cursor, *style.open, *style.section_close)
            if between in style.section_close:
                self.cursor.drop()
                return
            if between not in style.open:
                self.give_back(style.markers)
                return
        self.give_back(style.markers)

    def _read_call(self) -> Steps[bool]:
        """One call behind its opening marker. False: it is none, nothing was said."""
        name = yield from self._read_head()
        if not name:
            return False
        char = yield from skip_space(self.cursor)
        if self.style.fence and (yield from expect(self.cursor, self.style.fence)):
            char = yield from skip_space(self.cursor)
        if char == "{":
            self.announce(name)
            yield from self.stream_arguments()
            yield from self._read_tail()
            return True
        if not (yield from expect(self.cursor, *self.style.close)):
            return False
        self.announce(name)
        self.arguments("{}")
        self.end_call()
        return True

    def announce(self, name: str) -> None:
        """Begins the call that the markup names `name`."""
        self.begin_call(name)

    def _read_head(self) -> Steps[str]:
        """The name, up to and with the marker behind it; "" if they are not there."""
        yield from skip_space(self.cursor)
        name = yield from read_name(self.cursor)
        if self.style.kind_end:
            if not (yield from expect(self.cursor, self.style.kind_end)):
                return ""
            name = yield from read_name(self.cursor)
        if not (yield from expect(self.cursor, *self.style.name_end)):
            yield from skip_space(self.cursor)
            if not (yield from expect(self.cursor, *self.style.name_end)):
                return ""
        return name

    def _read_tail(self) -> Steps[None]:
        """What closes a call. Where it is missing, what stands there instead is content."""
        self.cursor.keep()
        yield from skip_space(self.cursor)
        if self.style.fence and (yield from expect(self.cursor, "```")):
            yield from skip_space(self.cursor)
        if (yield from expect(self.cursor, *self.style.close)):
            self.cursor.drop()
        else:
            self.give_back(("```",) if self.style.fence else ())


class KimiK2Parser(NamedCallParser):
    """Kimi K2: the markup holds an id, ``functions.NAME:INDEX``, that clients must get back as it is."""

    def announce(self, name: str) -> None:
        """Begins the call; an id that holds no name is the only declared tool's, or stands for itself."""
        head, _, index = name.rpartition(":")
        plain = (head if head and index.isdigit() else name).removeprefix("functions.")
        if plain not in self.tools and len(self.tools) == 1 and not head:
            plain = next(iter(self.tools))
        self.begin_call(plain, name)


DEEPSEEK_V31 = NamedCallFormat(
    open=("<｜tool▁call▁begin｜>",),
    name_end=("<｜tool▁sep｜>",),
    close=("<｜tool▁call▁end｜>",),
    section_open=("<｜tool▁calls▁begin｜>",),
    section_close=("<｜tool▁calls▁end｜>",),
)
DEEPSEEK_V3 = replace(DEEPSEEK_V31, kind_end="<｜tool▁sep｜>", name_end=("\n",), fence="```json")
KIMI_K2 = NamedCallFormat(
    open=("<|tool_call_begin|>",),
    name_end=("<|tool_call_argument_begin|>",),
    close=("<|tool_call_end|>",),
    section_open=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    section_close=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    special=True,
)
FUNCTIONARY = NamedCallFormat(open=("<function=",), name_end=(">",), close=("</function>",))
PLAMO3 = NamedCallFormat(
    open=("<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",),
    name_end=("<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",),
    close=("<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",),
    section_open=("<|plamo:begin_tool_requests:plamo|>",),
    section_close=("<|plamo:end_tool_requests:plamo|><|plamo:tag|>", "<|plamo:end_tool_requests:plamo|>"),
    special=True,
)
