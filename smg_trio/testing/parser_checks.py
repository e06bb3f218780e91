"""The laws of parsers, for those that are plug-ins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from smg_trio.core.plugin_calls import PluginCalls
from smg_trio.parsers.base import coalesce
from smg_trio.parsers.plugin import ParserContext, ParserPlugin, PluginParser
from smg_trio.testing.plugin_faults import CheckFailed

PROSE: Final = (
    "The sea is calm tonight. The tide is full, the moon lies fair.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n\nUnd jetzt: нет, 没有, いいえ 🌊🏴‍☠️.",
    "One\n\ttwo   three\r\n four",
)
"""No format takes any of this for markup."""
MARKUP: Final = (
    'Let me see. <tool_call>{"name": "f", "arguments": {"a": "<b>"}}</tool_call> Done.',
    "<think>Hm, what now?</think>The answer is 4.",
    '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
    'call me <tool_call>{"name": "f", ',
    "</think> and <think> and [ and { and ``` and <| and |> and <",
    '```json\n{"a": [1, 2, {"b": null}]}\n```',
    "f(a=1)\n[f(a='x'), g()]",
)
_ROUNDS: Final = 200
_PIECES: Final = (*"<>/{}[]\"':,|` \n\\ab1fé🌊",)
_TOOLS: Final[dict[str, dict[str, Any]]] = {"f": {"type": "object"}, "g": {"type": "object"}}


@dataclass(frozen=True, slots=True)
class ParserUnderTest:
    """A factory, and the texts that it is tried with."""

    factory: Callable[[ParserContext], Any]
    options: Mapping[str, str]
    samples: Sequence[str]
    finds_calls: bool
    faults: list[str] = field(default_factory=list)

    @property
    def corpus(self) -> list[str]:
        """All texts."""
        return [*self.samples, *PROSE, *MARKUP]

    def make(self) -> PluginParser:
        """A new parser. Raises CheckFailed if the factory does not make one."""
        calls = PluginCalls("parser", "checked")
        plugin = ParserPlugin("checked", self.factory, _Strict(calls), self.options, self.finds_calls)  # type: ignore[arg-type]
        return plugin.make(ParserContext(tools=_TOOLS, model_name="checked", prompt_end="user: hi\n"))

    def read(self, pieces: Sequence[str]) -> list[ParserEvent]:
        """What a new parser makes of a text in pieces."""
        return fed(self.make(), pieces)


class _Strict:
    """Where the gateway counts a fault and goes on, a check fails."""

    def __init__(self, calls: PluginCalls) -> None:
        self.clock = calls.clock

    def fault(self, error: BaseException, what_now: str) -> None:
        raise CheckFailed(f"{type(error).__name__}: {error}") from error

    def took(self, seconds: float) -> None:
        return


def fed(parser: PluginParser, pieces: Sequence[str]) -> list[ParserEvent]:
    """What a parser makes of a text in pieces, neighbours of one kind joined."""
    events: list[ParserEvent] = []
    for piece in pieces:
        try:
            events += parser.feed(piece)
        except CheckFailed as failure:
            raise CheckFailed(f"fed {shortened(piece)}: {failure}") from failure
    try:
        return coalesce(events + parser.finish())
    except CheckFailed as failure:
        raise CheckFailed(f"at the end of {shortened(''.join(pieces))}: {failure}") from failure


def shortened(text: str) -> str:
    """A text for a message."""
    return repr(text if len(text) <= 80 else f"{text[:77]}…")


def cuts_do_not_matter(parser: ParserUnderTest, random: Random) -> None:
    """However a text is cut, the same events come out."""
    for text in parser.corpus:
        whole = parser.read([text])
        ways = [list(text), *(_cut(text, random) for _ in range(20))]
        ways += [[text[:at], text[at:]] for at in range(1, len(text))] if len(text) <= 400 else []
        for pieces in ways:
            if (found := parser.read(pieces)) != whole:
                raise CheckFailed(
                    f"{shortened(text)} in {len(pieces)} pieces gives {found}, in one piece {whole}"
                )  # fmt: skip


def _cut(text: str, random: Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = random.randint(1, 9)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def any_text_is_read(parser: ParserUnderTest, random: Random) -> None:
    """Random text, near to what means something, never raises, and gives the same events cut and whole."""
    alphabet = [*_PIECES, *{word for text in parser.corpus for word in text.split()}]
    for _ in range(_ROUNDS):
        text = "".join(random.choices(alphabet, k=random.randint(0, 30)))
        if parser.read(_cut(text, random)) != parser.read([text]):
            raise CheckFailed(f"{shortened(text)} gives other events when it is cut")


def no_text_is_lost(parser: ParserUnderTest, random: Random) -> None:
    """Prose comes out as it went in; so does, of a tool parser, any text in which it finds no call."""
    for text in parser.corpus:
        events = parser.read(_cut(text, random))
        shown = "".join(event.text for event in events if isinstance(event, (ContentDelta, ReasoningDelta)))
        calls = any(isinstance(event, ToolCallStart) for event in events)
        if text in PROSE and (calls or shown != text):
            raise CheckFailed(f"the prose {shortened(text)} comes out as {events}")
        if parser.finds_calls and not calls and shown != text:
            raise CheckFailed(f"{shortened(text)} holds no call, and comes out as {shortened(shown)}")


def calls_are_whole(parser: ParserUnderTest, random: Random) -> None:
    """The arguments of each call in the samples, joined, are a JSON object."""
    for text in parser.samples:
        for index, arguments in _calls(parser.read([text])).items():
            try:
                value = json.loads(arguments)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                raise CheckFailed(f"call {index} of {shortened(text)} has the arguments {shortened(arguments)}")


def _calls(events: Sequence[ParserEvent]) -> dict[int, str]:
    calls: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            calls[event.index] = ""
        elif isinstance(event, ToolCallArguments):
            calls[event.index] += event.delta
    return calls


def parsers_share_nothing(parser: ParserUnderTest, random: Random) -> None:
    """Two parsers that are fed in turn say what each says alone."""
    texts = parser.corpus
    for one, other in pairwise(texts):
        alone = parser.read(list(one)), parser.read(list(other))
        first, second = parser.make(), parser.make()
        found: tuple[list[ParserEvent], list[ParserEvent]] = ([], [])
        for at in range(max(len(one), len(other))):
            found[0].extend(first.feed(one[at]) if at < len(one) else [])
            found[1].extend(second.feed(other[at]) if at < len(other) else [])
        together = coalesce(found[0] + first.finish()), coalesce(found[1] + second.finish())
        if together != alone:
            raise CheckFailed(f"two parsers fed in turn give {together}, each alone {alone}")


def the_end_can_be_said_early(parser: ParserUnderTest, random: Random) -> None:
    """After `finish` a parser can be fed again, and `finish` of nothing says nothing."""
    for text in PROSE:
        found = parser.make()
        before = found.finish()
        if before:
            raise CheckFailed(f"finish without any text gives {before}")
        again = [*found.feed(text), *found.finish(), *found.feed(text), *found.finish()]
        shown = "".join(event.text for event in again if isinstance(event, (ContentDelta, ReasoningDelta)))
        if shown != text * 2:
            raise CheckFailed(f"{shortened(text)}, finish, and the same again come out as {shortened(shown)}")


def special_tokens_are_decided(parser: ParserUnderTest, random: Random) -> None:
    """`needs_special_tokens` is True or False, and the same for each parser of one context."""
    found = [parser.factory(ParserContext(tools=_TOOLS, options=parser.options)).needs_special_tokens for _ in range(2)]
    if not all(type(value) is bool for value in found) or found[0] is not found[1]:
        raise CheckFailed(f"needs_special_tokens is {found[0]!r}, then {found[1]!r}")


PARSER_CHECKS: Final[Mapping[str, Callable[[ParserUnderTest, Random], None]]] = {
    "needs_special_tokens is decided": special_tokens_are_decided,
    "however a text is cut, the same events come out": cuts_do_not_matter,
    "random text is read, and never raises": any_text_is_read,
    "no text is lost": no_text_is_lost,
    "the arguments of calls in the samples are JSON objects": calls_are_whole,
    "two parsers share nothing": parsers_share_nothing,
    "a parser can be fed again after finish": the_end_can_be_said_early,
}
