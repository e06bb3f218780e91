"""Parser events to deltas: the one step that streamed and folded chat answers share.

A delta is what one chunk adds to one message. Adjacent pieces of the same kind are joined, so a burst of
tokens costs one chunk. Hidden things (thoughts, parallel calls) are dropped here, for both forms alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg_trio.api.openai.answer import ChatAnswer
from smg_trio.core.events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call with the id that the client gets to see."""

    index: int
    name: str
    call_id: str


Delta = ContentDelta | ReasoningDelta | CallStart | ToolCallArguments


class ChatEvents:
    """The parser events of one choice, made ready to show.

    Holds only whether calls were made; ids are made once, at a call's start.
    """

    __slots__ = ("_answer", "called")

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self.called = False

    def deltas(self, events: Sequence[ParserEvent]) -> list[Delta]:
        """The visible deltas of one update, adjacent ones of a kind joined."""
        shown: list[Delta] = []
        for event in events:
            delta = self._delta(event)
            if delta is None:
                continue
            joined = _join(shown[-1], delta) if shown else None
            if joined is None:
                shown.append(delta)
            else:
                shown[-1] = joined
        return shown

    def _delta(self, event: ParserEvent) -> Delta | None:
        if isinstance(event, ContentDelta):
            return event
        if isinstance(event, ReasoningDelta):
            return event if self._answer.show_reasoning else None
        if event.index > 0 and not self._answer.parallel_tool_calls:
            return None
        if isinstance(event, ToolCallStart):
            self.called = True
            return CallStart(event.index, event.name, event.call_id or self._answer.make_call_id())
        return event

    @property
    def ends_in_call(self) -> bool:
        """Whether a normal end is ``tool_calls``; a named call ends in ``stop`` (OpenAI, vLLM)."""
        return self.called and not self._answer.named_tool


def _join(last: Delta, delta: Delta) -> Delta | None:
    if isinstance(last, ContentDelta) and isinstance(delta, ContentDelta):
        return ContentDelta(last.text + delta.text)
    if isinstance(last, ReasoningDelta) and isinstance(delta, ReasoningDelta):
        return ReasoningDelta(last.text + delta.text)
    if isinstance(last, ToolCallArguments) and isinstance(delta, ToolCallArguments) and last.index == delta.index:
        return ToolCallArguments(last.index, last.delta + delta.delta)
    return None
