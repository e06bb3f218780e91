"""Parser events to deltas: the one step that streamed and folded chat answers share.

A delta is what one chunk adds to one message. Adjacent pieces of the same kind are joined, so a burst of
tokens costs one chunk. Hidden things (reasoning, parallel calls) are dropped here, for both forms alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.events import (
    ChoiceFinish,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from smg_trio.core.exact_json import is_json

if TYPE_CHECKING:
    from smg_trio.api.chat_answer import ChatAnswer


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call with the id that the client gets to see."""

    index: int
    name: str
    call_id: str


Delta = ContentDelta | ReasoningDelta | CallStart | ToolCallArguments


class ChatEvents:
    """The parser events of one choice, made ready to show.

    Holds whether calls were made, and the arguments of the last one; ids are made once, at a call's start.
    """

    __slots__ = ("_answer", "_arguments", "called")

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._arguments: list[str] = []
        self.called = False

    def deltas(self, events: Sequence[ParserEvent]) -> list[Delta]:
        """The visible deltas of one update, adjacent ones of a kind joined."""
        shown: list[Delta] = []
        run: list[Delta] = []
        for event in events:
            delta = self._delta(event)
            if delta is None:
                continue
            if run and not _is_joined(run[-1], delta):
                shown.append(_joined(run))
                run = []
            run.append(delta)
        if run:
            shown.append(_joined(run))
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
            self._arguments.clear()
            return CallStart(event.index, event.name, event.call_id or self._answer.make_call_id())
        self._arguments.append(event.delta)
        return event

    def ends_in_call(self, finish: ChoiceFinish | None) -> bool:
        """Whether a normal end is ``tool_calls``; a named call ends in ``stop`` (OpenAI, vLLM).

        A stop string that cut a call short must not look like a call that may be run.
        """
        if not self.called or self._answer.named_tool:
            return False
        return finish is None or not isinstance(finish.stop_reason, str) or self.last_call_is_whole

    @property
    def last_call_is_whole(self) -> bool:
        """Whether the arguments of the last call so far are JSON."""
        return is_json("".join(self._arguments))


def _is_joined(last: Delta, delta: Delta) -> bool:
    if isinstance(last, ToolCallArguments):
        return isinstance(delta, ToolCallArguments) and last.index == delta.index
    return type(last) is type(delta) and not isinstance(last, CallStart)


def _joined(run: list[Delta]) -> Delta:
    """One delta of a run of a kind. All at once, since a whole answer's thousands of pieces may come in one update."""
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, ToolCallArguments):
        return ToolCallArguments(
            first.index, "".join([delta.delta for delta in run if isinstance(delta, ToolCallArguments)])
        )
    kind = ContentDelta if isinstance(first, ContentDelta) else ReasoningDelta
    return kind("".join([delta.text for delta in run if isinstance(delta, ContentDelta | ReasoningDelta)]))
