"""The whole of an answer: thought, then content and calls.

The reasoning parser reads first and what it calls content goes on to the tool parser, piece by piece and in
order. A call may also stand inside a thought that was never closed: the thought's text passes through the
tool parser too, and what comes back as content is thought. White space in front of the first visible text,
between the thought and a call, and behind calls is no content.
"""

from __future__ import annotations

from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallStart
from smg_trio.parsers.base import ScriptParser, ToolParser, coalesce
from smg_trio.parsers.reasoning.think import ThinkParser


class AnswerParser:
    """Parser of a whole answer; see `Parser` for `feed` and `finish`.

    Args:
        reasoning: splits off the thought; None leaves it in the content. Not used if `tool` reads thoughts.
        tool: finds calls; None leaves them in the content.

    Attributes:
        calls: how many calls have begun.
        in_reasoning: the latest text was thought (for counting reasoning tokens).
    """

    __slots__ = ("_blank", "_events", "_in_order", "_reasoning", "_said", "_thought", "_tool", "calls", "in_reasoning")

    def __init__(self, reasoning: ScriptParser | None = None, tool: ToolParser | None = None) -> None:
        self._tool = tool
        self._reasoning = None if tool is not None and tool.reads_reasoning else reasoning
        self._events: list[ParserEvent] = []
        self._blank: list[str] = []
        self._said = False
        self._thought = False
        self.calls = 0
        self.in_reasoning = False
        first = self._reasoning or tool
        self._in_order = first
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
        if self._in_order is None:
            return [ContentDelta(text)] if text else []
        self._in_order.feed(text)
        return self._drain()

    def finish(self) -> list[ParserEvent]:
        """See `Parser.finish`."""
        if self._reasoning is not None:
            self._reasoning.finish()
        if self._tool is not None:
            self._tool.finish()
        if not (self._said or self._thought or self.calls):
            self._events.extend(ContentDelta(blank) for blank in self._blank)
        self._blank.clear()
        self.in_reasoning = False
        return self._drain()

    def _drain(self) -> list[ParserEvent]:
        events = self._events
        if not events:
            return []
        drained = coalesce(events) if len(events) > 1 else events.copy()
        events.clear()
        return drained

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
        """The thought begins or ends here, so a candidate for a call that has not become one never will."""
        tool.finish()
        self.in_reasoning = thinking

    def _from_tool(self, event: ParserEvent) -> None:
        if isinstance(event, ToolCallStart):
            self.calls += 1
            self._said = False
            self._blank.clear()
        elif self._reasoning is None:
            self.in_reasoning = isinstance(event, ReasoningDelta)
        elif self.in_reasoning and isinstance(event, ContentDelta) and not self.calls:
            event = ReasoningDelta(event.text)
        self._show(event)

    def _show(self, event: ParserEvent) -> None:
        """Lets `event` out; white space waits until visible text follows it."""
        if isinstance(event, ContentDelta) and not self._said:
            if event.text.isspace():
                self._blank.append(event.text)
                return
            self._said = True
            if self._blank:
                event = ContentDelta("".join(self._blank) + event.text)
                self._blank.clear()
        elif isinstance(event, ReasoningDelta):
            self._thought = True
            if not self._said:
                self._blank.clear()
        self._events.append(event)
