"""A thought between two markers, then the answer: what all families but the channelled ones write."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.parsers.base import ScriptParser, ToolParser
from smg_trio.parsers.scanner import MarkerScanner
from smg_trio.parsers.tape import Emit, Steps, expect, skip_space


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    """How one family marks its thought.

    Attributes:
        open, close: spellings of the two markers.
        starts_in_reasoning: the family's prompts end inside the thought, unless the prompt says otherwise.
        unwrap: markers around the answer that are never shown.
        special: the markers are special tokens.
    """

    open: tuple[str, ...] = ("<think>",)
    close: tuple[str, ...] = ("</think>",)
    starts_in_reasoning: bool = False
    unwrap: tuple[str, ...] = ()
    special: bool = False

    def opened_by(self, prompt: str) -> bool:
        """Whether the answer to `prompt` begins inside the thought.

        Only the prompt's very end counts: markers in earlier turns say nothing about this one.
        """
        tail = prompt[-200:].rstrip()
        if tail.endswith(tuple(marker.strip() for marker in self.open)):
            return True
        if tail.endswith(tuple(marker.strip() for marker in self.close)):
            return False
        return self.starts_in_reasoning


class ThinkParser(ScriptParser):
    """Parser of a `ThinkFormat`. Only the first thought counts: later markers are text.

    Args:
        starts_in_reasoning: whether the prompt has opened the thought; None for the family's habit.

    Attributes:
        inner: the tool parser that reads on behind this one, if any. Inside its calls no marker counts.
    """

    def __init__(self, style: ThinkFormat, starts_in_reasoning: bool | None = None) -> None:
        self.style = style
        self.needs_special_tokens = style.special
        self.inner: ToolParser | None = None
        self._opened = style.starts_in_reasoning if starts_in_reasoning is None else starts_in_reasoning
        self._before = MarkerScanner((*style.open, *style.unwrap))
        self._inside = MarkerScanner(style.close)
        self._after = MarkerScanner(style.unwrap)
        super().__init__()

    def script(self) -> Steps[None]:
        if not self._opened:
            found = yield from self._read_up_to(self._before, frozenset(self.style.open), self.content)
            if not found:
                return
        else:
            yield from self._skip_repeated_open()
        yield from self._read_up_to(self._inside, self._inside.markers, self.reasoning)
        yield from self._read_up_to(self._after, frozenset(), self.content)

    def _skip_repeated_open(self) -> Steps[None]:
        """The model may write the opening marker although the prompt holds it."""
        self.tape.keep()
        yield from skip_space(self.tape)
        repeated = yield from expect(self.tape, *self.style.open)
        space = self.tape.kept()
        if not repeated:
            self.reasoning(space)

    def _read_up_to(self, scanner: MarkerScanner, wanted: frozenset[str], emit: Emit) -> Steps[bool]:
        """Passes text to `emit` up to one of `wanted`; True if it came. Other markers are left out."""
        tape = self.tape
        while True:
            end, marker = scanner.scan(tape.text, tape.pos, tape.closed)
            if end > tape.pos:
                emit(tape.take_to(end))
            if marker is None:
                if tape.closed:
                    return False
                yield
                continue
            tape.skip_to(end + len(marker))
            if self.inner is not None and self.inner.in_call:
                emit(marker)
            elif marker in wanted:
                return True


THINK = ThinkFormat()
THINK_OPENED = ThinkFormat(starts_in_reasoning=True)
COHERE = ThinkFormat(("<|START_THINKING|>",), ("<|END_THINKING|>",), special=True)
GRANITE = ThinkFormat(
    ("Here is my thought process:", "Here's my thought process:"),
    ("Here is my response:", "Here's my response:"),
)
HUNYUAN = ThinkFormat(
    ("<think>\n", "<think>"),
    ("\n</think>\n", "\n</think>", "</think>\n", "</think>"),
    unwrap=("<answer>\n", "<answer>", "\n</answer>", "</answer>"),
)
KIMI = ThinkFormat(("◁think▷",), ("◁/think▷",))
MISTRAL = ThinkFormat(("[THINK]",), ("[/THINK]",), special=True)
SEED_OSS = ThinkFormat(("<seed:think>",), ("</seed:think>",), starts_in_reasoning=True)
