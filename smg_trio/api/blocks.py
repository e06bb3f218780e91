"""Parser events to blocks of one kind each: what APIs whose answers are lists of blocks or items share.

Blocks come one after the other and never overlap: text or reasoning that begins ends the block before it. The one
exception is text inside an unfinished tool call (a parser's leftover): it waits until the call is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from smg_trio.api.chat_events import CallStart, ChatEvents, Delta
from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta
from smg_trio.core.exact_json import is_json

BlockKind = Literal["text", "reasoning", "call"]


@dataclass(frozen=True, slots=True)
class BlockStart:
    """Block ``index`` begins; ``call`` is set for calls."""

    index: int
    kind: BlockKind
    call: CallStart | None = None


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """A piece of a block: text, reasoning or JSON text of arguments; never empty."""

    index: int
    kind: BlockKind
    text: str


@dataclass(frozen=True, slots=True)
class BlockStop:
    """A block is over."""

    index: int
    kind: BlockKind


Step = BlockStart | BlockDelta | BlockStop


class AnswerBlocks:
    """The blocks of one answer, in order.

    Attributes:
        kind: of the open block; None if none is open.
        index: of the open block, or of the one to come.
        called: whether any call was made.
        last_call_is_whole: whether the arguments of the last call that ended are JSON.
    """

    __slots__ = ("_arguments", "_call", "_events", "_first", "_held", "called", "index", "kind", "last_call_is_whole")

    def __init__(self, events: ChatEvents, first: int = 0) -> None:
        """`first`: the index of the first block."""
        self._events = events
        self._first = first
        self._call = -1
        self._arguments: list[str] = []
        self._held: list[str] = []
        self.called = False
        self.last_call_is_whole = False
        self.kind: BlockKind | None = None
        self.index = first

    def steps(self, events: Sequence[ParserEvent]) -> list[Step]:
        """What one update adds."""
        steps: list[Step] = []
        for delta in self._events.deltas(events):
            self._add(delta, steps)
        return steps

    def finish(self) -> list[Step]:
        """What ends the answer. An answer that said nothing is one empty text: clients read the first block."""
        steps: list[Step] = []
        self._leave(steps)
        if self.index == self._first:
            self._open("text", steps)
            self._leave(steps)
        return steps

    def _add(self, delta: Delta, steps: list[Step]) -> None:
        if isinstance(delta, ContentDelta):
            self._add_text(delta.text, steps)
        elif isinstance(delta, ReasoningDelta):
            self._enter("reasoning", steps)
            steps.append(BlockDelta(self.index, "reasoning", delta.text))
        elif isinstance(delta, CallStart):
            self._leave(steps)
            self._call, self.called, self._arguments = delta.index, True, []
            self._open("call", steps, delta)
        elif self.kind == "call" and delta.index == self._call and delta.delta:
            self._arguments.append(delta.delta)
            steps.append(BlockDelta(self.index, "call", delta.delta))

    def _add_text(self, text: str, steps: list[Step]) -> None:
        if self.kind == "call":
            self._held.append(text)
            if self._call_is_whole():
                self._close(steps)
            return
        self._enter("text", steps)
        steps.append(BlockDelta(self.index, "text", text))

    def _call_is_whole(self) -> bool:
        return is_json("".join(self._arguments))

    def _enter(self, kind: BlockKind, steps: list[Step]) -> None:
        if self.kind != kind:
            self._leave(steps)
            self._open(kind, steps)

    def _leave(self, steps: list[Step]) -> None:
        while self.kind is not None:
            self._close(steps)

    def _open(self, kind: BlockKind, steps: list[Step], call: CallStart | None = None) -> None:
        self.kind = kind
        steps.append(BlockStart(self.index, kind, call))

    def _close(self, steps: list[Step]) -> None:
        """End the open block; the text that waited for it opens the next."""
        kind, self.kind = self.kind, None
        if kind is None:
            return
        if kind == "call":
            self.last_call_is_whole = self._call_is_whole()
        steps.append(BlockStop(self.index, kind))
        self.index += 1
        if self._held:
            held, self._held = "".join(self._held), []
            self._add_text(held, steps)
