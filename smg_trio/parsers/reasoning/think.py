"""Reasoning between two markers, then the answer: what all families but the channelled ones write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smg_trio.parsers.base import ScriptParser, ToolParser
from smg_trio.parsers.scanner import MarkerScanner, scanner_for
from smg_trio.parsers.suffixes import Suffixed, without_suffixes
from smg_trio.parsers.text_cursor import Emit, Steps, expect, skip_space

# Two signs in a row, so that reasoning that begins with a bracket or a brace stays reasoning.
_JSON_HEAD: Final = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"])')
_JSON_HEAD_BEGUN: Final = re.compile(r"\s*[\[{]?\s*")
_JSON_HEAD_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    """How one family marks its reasoning.

    Attributes:
        open, close: spellings of the two markers.
        starts_in_reasoning: the family's prompts end inside the reasoning, unless the prompt says otherwise.
        unwrap: markers around the answer that are never shown.
        special: the markers are special tokens.
        suffixed: the markers may carry a suffix (see `suffixes`).
    """

    open: tuple[str, ...] = ("<think>",)
    close: tuple[str, ...] = ("</think>",)
    starts_in_reasoning: bool = False
    unwrap: tuple[str, ...] = ()
    special: bool = False
    suffixed: bool = False

    @property
    def markers(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.open, *self.close, *self.unwrap))

    def state(self, prompt: str, continued: str = "") -> bool | None:
        """Whether the answer to `prompt` begins inside the reasoning; None where the prompt does not say.

        Only the prompt's very end counts: markers in earlier turns say nothing about this one.

        Args:
            continued: the text at the prompt's end that the answer goes on from; the last marker in it counts.
        """
        text = continued or prompt[-200:]
        if self.suffixed:
            text = without_suffixes(text)
        return last_marker(text, self.open, self.close, anywhere=bool(continued))

    def opened_by(self, prompt: str) -> bool:
        """`state`, with the family's habit where the prompt does not say."""
        state = self.state(prompt)
        return self.starts_in_reasoning if state is None else state


def last_marker(text: str, opening: tuple[str, ...], closing: tuple[str, ...], *, anywhere: bool) -> bool | None:
    """True if an opening marker ends `text` (or, `anywhere`, comes last in it), False for a closing one."""
    tail = text.rstrip()
    if anywhere:
        opened, closed = (max(tail.rfind(marker.strip()) for marker in markers) for markers in (opening, closing))
        return None if opened == closed else opened > closed
    if tail.endswith(tuple(marker.strip() for marker in opening)):
        return True
    return False if tail.endswith(tuple(marker.strip() for marker in closing)) else None


class ThinkParser(ScriptParser):
    """Parser of a `ThinkFormat`. Only the first reasoning block counts: later markers are text.

    Args:
        starts_in_reasoning: whether the prompt has opened the reasoning; None for the family's habit.
        json_answer: the answer is held to JSON. If the text begins with it although the reasoning is open, the engine
            has put the constraint before the reasoning, and there is none.

    Attributes:
        inner: the tool parser that reads on behind this one, if any. Inside its calls no marker counts.
    """

    def __init__(self, style: ThinkFormat, starts_in_reasoning: bool | None = None, json_answer: bool = False) -> None:
        self.style = style
        self._json_answer = json_answer
        self.needs_special_tokens = style.special
        self.inner: ToolParser | None = None
        self._opened = style.starts_in_reasoning if starts_in_reasoning is None else starts_in_reasoning
        self._before = scanner_for(*style.open, *style.unwrap)
        self._inside = scanner_for(*style.close)
        self._after = scanner_for(*style.unwrap)
        super().__init__()

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return self.style.markers

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        if self._opened and self._json_answer and (yield from self._is_json()):
            yield from self._read_up_to(self._after, frozenset(), self.content)
            return
        if not self._opened:
            found = yield from self._read_up_to(self._before, frozenset(self.style.open), self.content)
            if not found:
                return
        else:
            yield from self._skip_repeated_open()
        yield from self._read_up_to(self._inside, self._inside.markers, self.reasoning)
        yield from self._read_up_to(self._after, frozenset(), self.content)

    def _is_json(self) -> Steps[bool]:
        """Whether JSON begins here; nothing is read."""
        cursor = self.cursor
        while True:
            text = cursor.text[cursor.pos : cursor.pos + _JSON_HEAD_LIMIT]
            if _JSON_HEAD.match(text):
                return True
            if cursor.closed or len(text) == _JSON_HEAD_LIMIT or not _JSON_HEAD_BEGUN.fullmatch(text):
                return False
            yield

    def _skip_repeated_open(self) -> Steps[None]:
        """The model may write the opening marker although the prompt holds it."""
        self.cursor.keep()
        yield from skip_space(self.cursor)
        repeated = yield from expect(self.cursor, *self.style.open)
        space = self.cursor.kept()
        if not repeated:
            self.reasoning(space)

    def _read_up_to(self, scanner: MarkerScanner, wanted: frozenset[str], emit: Emit) -> Steps[bool]:
        """Passes text to `emit` up to one of `wanted`; True if it came. Other markers are left out."""
        cursor = self.cursor
        while True:
            end, marker = scanner.scan(cursor.text, cursor.pos, cursor.closed)
            if end > cursor.pos:
                emit(cursor.take_to(end))
            if marker is None:
                if cursor.closed:
                    return False
                yield
                continue
            cursor.skip_to(end + len(marker))
            if self.inner is not None and self.inner.in_call:
                emit(marker)
            elif marker in wanted:
                return True


class SuffixedThinkParser(Suffixed, ThinkParser):
    """Parser of a `ThinkFormat` whose markers may carry a suffix."""


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
GEMMA4 = ThinkFormat(("<|channel>thought\n", "<|channel>thought"), ("<channel|>",), special=True)
HUNYUAN_SUFFIXED = ThinkFormat(starts_in_reasoning=True, special=True, suffixed=True)
K2_HORIZON = ThinkFormat(
    ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    starts_in_reasoning=True,
)
MINIMAX_M3 = ThinkFormat(("<mm:think>",), ("</mm:think>",))
PLAMO3 = ThinkFormat(
    ("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",), starts_in_reasoning=True, special=True
)
