"""The Sweep: one text under every way of cutting it must give one and the same answer.

Feeds parsers, folds their events, and reads the corpora that the sweep tests run over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from smg_trio.core.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArguments, ToolCallStart
from smg_trio.parsers.base import Parser

CORPUS = Path(__file__).parent / "corpus"


@dataclass
class Folded:
    """A whole answer: what a non-streaming client would get."""

    content: str
    reasoning: str
    calls: list[tuple[str, str, str | None]]


def fold(events: Iterable[ParserEvent]) -> Folded:
    """Joins events; also checks that calls come in order and no delta is empty."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, list[str], str | None]] = []
    for event in events:
        if isinstance(event, ContentDelta):
            assert event.text
            content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            assert event.text
            reasoning.append(event.text)
        elif isinstance(event, ToolCallStart):
            assert event.index == len(calls)
            assert event.name
            calls.append((event.name, [], event.call_id))
        else:
            assert isinstance(event, ToolCallArguments)
            assert event.delta
            assert event.index == len(calls) - 1
            calls[-1][1].append(event.delta)
    joined = [(name, "".join(pieces), call_id) for name, pieces, call_id in calls]
    return Folded("".join(content), "".join(reasoning), joined)


def run(parser: Parser, pieces: Iterable[str]) -> Folded:
    """Feeds `pieces`, finishes, folds."""
    events: list[ParserEvent] = []
    for piece in pieces:
        events += parser.feed(piece)
    return fold(events + parser.finish())


def every(size: int, items: Sequence[str]) -> list[str]:
    """`items` joined in groups of `size`."""
    return ["".join(items[at : at + size]) for at in range(0, len(items), size)]


def at_cuts(text: str, cuts: Sequence[int]) -> list[str]:
    """`text` cut at code-point offsets."""
    return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


def cuttings(text: str, cuts: Iterable[Sequence[int]] = ()) -> Iterator[list[str]]:
    """All at once, 1 to 7 characters per tick, at given places."""
    yield [text]
    for size in range(1, 8):
        yield every(size, text)
    for places in cuts:
        yield at_cuts(text, places)


def sweep(make: Callable[[], Parser], text: str, cuts: Iterable[Sequence[int]] = ()) -> Folded:
    """The one answer to `text` under every cutting."""
    ways = cuttings(text, cuts)
    whole = run(make(), next(ways))
    for pieces in ways:
        assert run(make(), pieces) == whole, pieces
    return whole


def corpus(kind: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every (file, sample) of ``tool_calls`` or ``reasoning``."""
    for path in sorted((CORPUS / kind).glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        for sample in data["samples"]:
            yield data, sample
