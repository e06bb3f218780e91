"""What every parser is: text in pieces to events, the same events however the text was cut.

A non-streamed answer is ``feed(whole text) + finish()``. Parsers never raise on any text and lose none of
it: text that turns out to be no markup comes out as content, at the latest from `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from smg_trio.core.events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from smg_trio.parsers.text_cursor import Steps, TextCursor, read_until, read_value

if TYPE_CHECKING:
    from smg_trio.parsers.scanner import Scanner

MOST_ATTEMPTS: Final = 1000
"""Brackets that looked like the begin of a call and were none, until a format without markers stops looking."""

ToolSchemas = Mapping[str, Mapping[str, Any]]
"""Name of each declared tool to the JSON schema of its parameters."""


class Parser(Protocol):
    """Text to events. Not to be shared between choices: it holds the state of one answer."""

    @property
    def needs_special_tokens(self) -> bool:
        """The markers are special tokens: detokenize with them in the text, they are never shown."""

    def feed(self, text: str) -> list[ParserEvent]:
        """More text of the answer; returns what became certain with it."""

    def finish(self) -> list[ParserEvent]:
        """The text has ended; returns what was held back. The parser can be fed again afterwards."""


def take_all(events: list[ParserEvent]) -> list[ParserEvent]:
    """Empty a list of events; what was in it, with neighbours joined."""
    if not events:
        return []
    taken = coalesce(events) if len(events) > 1 else events.copy()
    events.clear()
    return taken


def coalesce(events: list[ParserEvent]) -> list[ParserEvent]:
    """The same events with neighbours of one kind (and one call) joined."""
    joined: list[ParserEvent] = []
    run: list[str] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, ToolCallStart) or not _same_run(last, event):
            _close_run(joined, run)
            joined.append(event)
        run.append(_text(event))
    _close_run(joined, run)
    return joined


def _same_run(last: ParserEvent | None, event: ParserEvent) -> bool:
    if type(last) is not type(event):
        return False
    return not (isinstance(last, ToolCallArguments) and isinstance(event, ToolCallArguments)) or (
        last.index == event.index
    )


def _text(event: ParserEvent) -> str:
    if isinstance(event, ToolCallStart):
        return ""
    return event.delta if isinstance(event, ToolCallArguments) else event.text


def _close_run(joined: list[ParserEvent], run: list[str]) -> None:
    if len(run) > 1:
        last = joined[-1]
        text = "".join(run)
        if isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(last.index, text)
        elif not isinstance(last, ToolCallStart):
            joined[-1] = type(last)(text)
    run.clear()


class ScriptParser:
    """A parser whose grammar is a script over a `TextCursor` (see there).

    Attributes:
        in_call: a call has begun and its arguments have not ended: whatever stands in the text now belongs
            to the call, even if it looks like the markup of reasoning.
        sink: where events go as they are found; the answer parser puts itself here to see them in order.
        needs_special_tokens: see `Parser.needs_special_tokens`.
    """

    needs_special_tokens: bool = False

    def __init__(self) -> None:
        self.cursor = TextCursor()
        self.in_call = False
        self._events: list[ParserEvent] = []
        self.sink: Callable[[ParserEvent], object] = self._events.append
        self._script = self.script()
        next(self._script)

    @property
    def markers(self) -> frozenset[str]:
        """The literals that mean something to the format."""
        return frozenset()

    def script(self) -> Steps[None]:
        """The grammar: reads until the cursor is closed and empty. Must ask for text before it says anything."""
        raise NotImplementedError

    def feed(self, text: str) -> list[ParserEvent]:
        """See `Parser.feed`."""
        if not text:
            return []
        self.cursor.push(text)
        next(self._script)
        return take_all(self._events)

    def finish(self) -> list[ParserEvent]:
        """See `Parser.finish`. Indices of calls go on counting if it is fed again."""
        self.cursor.closed = True
        for _ in self._script:
            raise AssertionError("the script asks for text behind the end")
        self.cursor = TextCursor()
        self.in_call = False
        self._script = self.script()
        next(self._script)
        return take_all(self._events)

    def content(self, text: str) -> None:
        """Visible text was found."""
        if text:
            self.sink(ContentDelta(text))

    def reasoning(self, text: str) -> None:
        """Text of the reasoning was found."""
        if text:
            self.sink(ReasoningDelta(text))

    def content_until(self, scanner: Scanner) -> Steps[str | None]:
        """Content up to the next marker, which is read and returned; None at the end of the text."""
        return read_until(self.cursor, scanner, self.content)


class ToolParser(ScriptParser):
    """A script parser that finds tool calls.

    Args:
        tools: the declared tools; formats without types of their own take them from here, and formats
            without markers take only these names for calls.

    Attributes:
        has_markers: calls are told by markers, so that a call inside unclosed reasoning can be seen.
        starts_in_reasoning: the prompt has opened the reasoning; set before the first text, and only looked
            at by formats that read the reasoning themselves.
        reads_reasoning: the format frames the whole answer, reasoning included: no reasoning parser before it.
        keeps_space: white space in front of the first call is content.
    """

    has_markers: bool = True
    keeps_space: ClassVar[bool] = False
    reads_reasoning: ClassVar[bool] = False

    def __init__(self, tools: ToolSchemas | None = None) -> None:
        self.starts_in_reasoning = False
        self.tools: ToolSchemas = tools or {}
        self.calls = 0
        super().__init__()

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """A call is certain. What was kept of its markup is forgotten."""
        self.cursor.drop()
        self.sink(ToolCallStart(self.calls, name, call_id))
        self.calls += 1
        self.in_call = True

    def arguments(self, delta: str) -> None:
        """A further piece of the arguments of the call that began last."""
        if delta:
            self.sink(ToolCallArguments(self.calls - 1, delta))

    def end_call(self) -> None:
        """The arguments have ended."""
        self.in_call = False

    def stream_arguments(self) -> Steps[bool]:
        """Reads one JSON value as the arguments of the call that began last; see `read_value`."""
        complete = yield from read_value(self.cursor, self.arguments)
        self.end_call()
        return complete

    def give_back(self, markers: Iterable[str] = ()) -> None:
        """What was kept is no call: it is content.

        The format's `markers` in it stay visible where they may be prose; they are taken out where they are
        special tokens, or where a call was found before and raw markup beside it would be noise.
        """
        text = self.cursor.kept()
        if self.needs_special_tokens or self.calls:
            for marker in markers:
                text = text.replace(marker, "")
        self.content(text)
