"""The whole of an answer: reasoning, then content and calls.

The reasoning parser reads first and what it calls content goes on to the tool parser, piece by piece and in
order. A call may also stand inside reasoning that was never closed: its text passes through the
tool parser too, and what comes back as content is reasoning. White space in front of the first visible text,
between the reasoning and a call, and behind calls is no content, unless the family means it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from smg_trio.parsers.base import ScriptParser, ToolParser, take_all
from smg_trio.parsers.reasoning.think import ThinkParser
from smg_trio.parsers.special_tokens import SpecialTokenFilter, split_special_tokens

if TYPE_CHECKING:
    from smg_trio.parsers.call_ids import MakeCallId

Text = ContentDelta | ReasoningDelta


class AnswerParser:
    """Parser of a whole answer; see `Parser` for `feed` and `finish`.

    Args:
        reasoning: splits off the reasoning; None leaves it in the content. Not used if `tool` reads reasoning.
        tool: finds calls; None leaves them in the content.
        hidden: texts of special tokens that the detokenizer leaves in the text for the parsers' sake: never shown.
        make_call_id: makes ids for calls without one; None leaves them without.
        single_call: calls behind the first are left out.
        merged: reasoning is shown as content, in its place.

    Attributes:
        calls: how many calls have begun.
        in_reasoning: the latest text was reasoning (for counting reasoning tokens).
    """

    __slots__ = (
        "_blank",
        "_events",
        "_in_order",
        "_incoming",
        "_keeps_space",
        "_make_call_id",
        "_merged",
        "_outgoing",
        "_reasoned",
        "_reasoning",
        "_said",
        "_single_call",
        "_tool",
        "_veiled",
        "calls",
        "in_reasoning",
    )

    def __init__(
        self,
        reasoning: ScriptParser | None = None,
        tool: ToolParser | None = None,
        *,
        hidden: frozenset[str] = frozenset(),
        make_call_id: MakeCallId | None = None,
        single_call: bool = False,
        merged: bool = False,
    ) -> None:
        self._tool = tool
        self._reasoning = None if tool is not None and tool.reads_reasoning else reasoning
        self._make_call_id = make_call_id
        self._single_call = single_call
        self._merged = merged
        self._keeps_space = tool is not None and tool.keeps_space
        self._events: list[ParserEvent] = []
        self._blank: list[str] = []
        self._said = False
        self._reasoned = False
        self.calls = 0
        self.in_reasoning = False
        self._in_order = self._reasoning or tool
        self._incoming, self._outgoing = _hiders(hidden, self._reasoning, tool)
        self._veiled: type[Text] = ContentDelta
        if tool is not None:
            tool.sink = self._from_tool
        if self._reasoning is not None:
            self._reasoning.sink = self._from_reasoning
            if isinstance(self._reasoning, ThinkParser):
                self._reasoning.inner = tool

    @property
    def needs_special_tokens(self) -> bool:
        """See `Parser.needs_special_tokens`."""
        parsers = (self._reasoning, self._tool)
        return any(parser is not None and parser.needs_special_tokens for parser in parsers)

    def feed(self, text: str) -> list[ParserEvent]:
        """See `Parser.feed`."""
        if self._incoming is not None:
            text = self._incoming.feed(text)
        if self._in_order is None:
            return [ContentDelta(text)] if text else []
        self._in_order.feed(text)
        return take_all(self._events)

    def finish(self) -> list[ParserEvent]:
        """See `Parser.finish`."""
        if self._incoming is not None:
            rest = self._incoming.flush()
            if self._in_order is None:
                return [ContentDelta(rest)] if rest else []
            self._in_order.feed(rest)
        if self._reasoning is not None:
            self._reasoning.finish()
        if self._tool is not None:
            self._tool.finish()
        self._unveil()
        if not (self._said or self._reasoned or self.calls):
            self._events.extend(ContentDelta(blank) for blank in self._blank)
        self._blank.clear()
        self.in_reasoning = False
        return take_all(self._events)

    def _from_reasoning(self, event: ParserEvent) -> None:
        thinking = isinstance(event, ReasoningDelta)
        tool = self._tool
        if tool is None:
            self.in_reasoning = thinking
            self._show(event)
            return
        if thinking != self.in_reasoning:
            self._turn(tool, thinking)
        if thinking and not tool.has_markers:
            self._show(event)
        elif isinstance(event, ContentDelta | ReasoningDelta):
            tool.feed(event.text)

    def _turn(self, tool: ToolParser, thinking: bool) -> None:
        """The reasoning begins or ends here, so a candidate for a call that has not become one never will."""
        tool.finish()
        self.in_reasoning = thinking

    def _from_tool(self, event: ParserEvent) -> None:
        if isinstance(event, ToolCallStart):
            event = self._begin_call(event)
        elif self._reasoning is None:
            self.in_reasoning = isinstance(event, ReasoningDelta)
        elif self.in_reasoning and isinstance(event, ContentDelta) and not self.calls:
            event = ReasoningDelta(event.text)
        self._show(event)

    def _begin_call(self, event: ToolCallStart) -> ToolCallStart:
        self._unveil()
        self.calls += 1
        self._said = False
        self._blank.clear()
        if event.call_id is None and self._make_call_id is not None:
            return ToolCallStart(event.index, event.name, self._make_call_id(event.index, event.name))
        return event

    def _show(self, event: ParserEvent) -> None:
        """Lets `event` out, if it may be seen."""
        if isinstance(event, ToolCallStart | ToolCallArguments):
            if not (self._single_call and event.index):
                self._events.append(event)
        elif self._outgoing is None:
            self._show_text(event)
        else:
            if type(event) is not self._veiled:
                self._unveil()
                self._veiled = type(event)
            text = self._outgoing.feed(event.text)
            if text:
                self._show_text(self._veiled(text))

    def _unveil(self) -> None:
        """Shows text that was held because it might have become the text of a special token."""
        text = self._outgoing.flush() if self._outgoing is not None else ""
        if text:
            self._show_text(self._veiled(text))

    def _show_text(self, event: Text) -> None:
        """Lets text out; white space waits until visible text follows it."""
        if isinstance(event, ReasoningDelta):
            if not self._merged:
                self._reasoned = True
                if not self._said:
                    self._blank.clear()
                self._events.append(event)
                return
            event = ContentDelta(event.text)
        if not self._said:
            if event.text.isspace() and not (self._keeps_space and not self.calls):
                self._blank.append(event.text)
                return
            self._said = True
            if self._blank:
                event = ContentDelta("".join(self._blank) + event.text)
                self._blank.clear()
        self._events.append(event)


def _hiders(
    hidden: frozenset[str], *parsers: ScriptParser | None
) -> tuple[SpecialTokenFilter | None, SpecialTokenFilter | None]:
    """What takes special tokens out before the parsers read the text, and out of what they say of it.

    A special token that is part of a format's markup must reach the parser; if it then turns up as text, it stood
    where it means nothing.
    """
    if not hidden:
        return None, None
    markers = [marker for parser in parsers if parser is not None for marker in parser.markers]
    before, behind = split_special_tokens(hidden, markers)
    return SpecialTokenFilter(before) if before else None, SpecialTokenFilter(behind) if behind else None
