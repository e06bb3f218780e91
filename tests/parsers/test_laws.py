"""Laws that hold for every parser and any text: cutting does not matter, nothing is lost, cost is linear."""

from __future__ import annotations

import gc
import json
import re
import sys
from functools import partial
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.events import ParserEvent, ToolCallArguments, ToolCallStart
from smg_trio.parsers.base import MOST_ATTEMPTS
from smg_trio.parsers.call_frames import FRAMES
from smg_trio.parsers.families import TOOL_ALIASES, TOOL_PARSERS
from smg_trio.parsers.reasoning.families import REASONING_ALIASES, REASONING_FORMATS
from smg_trio.parsers.registry import make_answer_parser, make_reasoning_parser, make_tool_parser
from smg_trio.parsers.text_cursor import TextCursor
from tests.parsers.sweep import Folded, corpus, every, run

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "ping": {"type": "object", "properties": {}},
}


def _fragments(names: set[str]) -> list[str]:
    """What texts of these formats are made of: their samples, cut at markup and punctuation."""
    found = {"a", " ", "\n", "{", "}", "[", "]", '"', "'", "\\", ",", ":", "<", "<|", "😀", "1", "true", "x=", "(", ")"}
    found |= {"get_weather", "ping", "city", '{"name": "ping", "arguments": {}}', "get_weather(city='x')", "</think>"}
    for kind in ("tool_calls", "reasoning"):
        for data, sample in corpus(kind):
            if names & {data["format"], *data["aliases"].values()} and len(sample["text"]) < 400:
                found.update(re.findall(r"<[^<>]*>|\[[A-Z_/]+\]|[^<>\[\]{}]+|.", sample["text"], re.DOTALL))
    return sorted(found)


def _texts(*names: str) -> st.SearchStrategy[str]:
    spellings = set(names)
    for aliases in (TOOL_ALIASES, REASONING_ALIASES):
        spellings |= {alias for alias, name in aliases.items() if name in names}
    return st.lists(st.sampled_from(_fragments(spellings)), max_size=30).map("".join)


def _cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(bounds)]


def _check_arguments(got: Folded) -> None:
    for _, arguments, _ in got.calls[:-1]:
        json.loads(arguments)


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_any_text_under_any_cutting_gives_the_same_calls(name: str) -> None:
    @settings(max_examples=30, deadline=None)
    @given(_texts(name), st.lists(st.integers(0, 10_000), max_size=12))
    def law(text: str, places: list[int]) -> None:
        make = partial(make_tool_parser, name, TOOLS)
        whole = run(make(), [text])
        assert run(make(), every(1, text)) == whole
        assert run(make(), _cut(text, places)) == whole
        _check_arguments(whole)

    law()


@pytest.mark.parametrize("name", sorted({form: name for name, form in REASONING_FORMATS.items()}.values()))
def test_any_text_under_any_cutting_gives_the_same_answer(name: str) -> None:
    tool = name if name in TOOL_PARSERS else "qwen"

    @settings(max_examples=30, deadline=None)
    @given(_texts(name, tool), st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
    def law(text: str, places: list[int], opened: bool) -> None:
        make = partial(make_answer_parser, name, tool, TOOLS, opened)
        whole = run(make(), [text])
        assert run(make(), every(1, text)) == whole
        assert run(make(), _cut(text, places)) == whole

    law()


@given(st.text())
def test_plain_text_without_parsers_passes_as_it_is(text: str) -> None:
    assert run(make_answer_parser(None, None), [text]).content == text


HEADERS = {
    "harmony": r"<\|(?:start|channel|constrain)\|>(?:(?!<\|(?:message|end|call|return)\|>).)*",
    "inkling": r"<\|message_model\|>[\w.:/\-]*",
}
"""What a format reads as a message's header: markup, though it is no literal marker."""
WORD = re.compile(r"zq\d+q")


def _shown(event: ParserEvent) -> str:
    if isinstance(event, ToolCallStart):
        return event.name
    return event.delta if isinstance(event, ToolCallArguments) else event.text


def _pieces(name: str) -> list[str]:
    """Markers of a format, whole and broken, beginnings and ends of its calls, and signs that mean something."""
    markers = sorted(make_tool_parser(name, TOOLS).markers)
    broken = [marker[:size] for marker in markers for size in (1, len(marker) // 2, len(marker) - 1)]
    broken += [marker[len(marker) // 2 :] for marker in markers]
    calls = ['{"name": "ping", "arguments": {}}', '{"name": "get_weather", "arguments": {"city": "', '"}}']
    calls += ["[get_weather(city='", "')]", "get_weather", "ping", "[ping()]"]
    if frame := FRAMES.get(name):
        calls += [frame.open + frame.begin.replace("{name}", "get_weather") + frame.numbered, frame.end + frame.close]
    return [piece for piece in [*markers, *broken, *calls, *"{}[],<>():= \n"] if piece]


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_every_word_outside_markers_comes_out_once_and_in_order(name: str) -> None:
    pieces = _pieces(name)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(["", " "]) | st.sampled_from(pieces), max_size=14))
    def law(chosen: list[str]) -> None:
        # "" and " " stand for a word, alone or between spaces; each is told from the others by its number.
        text = "".join(piece.strip(" ") or f"{piece}zq{at}q{piece}" for at, piece in enumerate(chosen))
        # A key or a head that the end of the text cuts off is markup: neither is left open here.
        text += "'\" .>\n."
        markup = "".join(found[0] for found in re.finditer(HEADERS.get(name, "(?!)"), text, re.DOTALL))
        exempt = set(WORD.findall(markup))
        parser = make_tool_parser(name, TOOLS)
        out = " ".join(map(_shown, parser.feed(text) + parser.finish()))
        wanted = [word for word in WORD.findall(text) if word not in exempt]
        assert [word for word in WORD.findall(out) if word not in exempt] == wanted

    law()


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@given(st.text(st.sampled_from("abcXYZ 019.,;!?-_äß北😀\n\t"), max_size=60))
@settings(max_examples=15, deadline=None)
def test_text_without_a_sign_of_any_marker_comes_out_whole(name: str, text: str) -> None:
    for pieces in ([text], every(1, text)):
        got = run(make_tool_parser(name, TOOLS), pieces)
        assert (got.content, got.reasoning, got.calls) == (text, "", [])


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
@pytest.mark.parametrize("opened", [True, False])
def test_every_word_of_a_thought_and_its_answer_comes_out_once_and_in_order(name: str, opened: bool) -> None:
    markers = sorted(make_reasoning_parser(name, opened).markers)
    broken = [marker[:size] for marker in markers for size in (1, len(marker) // 2, len(marker) - 1)]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(["", " ", "\n", "<", *markers, *broken]), max_size=12))
    def law(chosen: list[str]) -> None:
        text = "".join(piece.strip(" ") or f"{piece}zq{at}q{piece}" for at, piece in enumerate(chosen))
        markup = "".join(found[0] for found in re.finditer(HEADERS.get(name, "(?!)"), text, re.DOTALL))
        exempt = set(WORD.findall(markup))
        parser = make_answer_parser(name, None, None, opened)
        out = " ".join(map(_shown, parser.feed(text) + parser.finish()))
        wanted = [word for word in WORD.findall(text) if word not in exempt]
        assert [word for word in WORD.findall(out) if word not in exempt] == wanted

    law()


class Work:
    """Counts what a parser does: calls of functions, and characters that are copied or looked at."""

    def __init__(self) -> None:
        self.done = 0

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            self.done += 1
            if event == "call" and frame.f_code is TextCursor.push.__code__:
                cursor = frame.f_locals["self"]
                self.done += len(frame.f_locals["piece"]) + len(cursor.text) - cursor.pos

    def of(self, name: str, pieces: list[str]) -> int:
        """The work of parsing `pieces`."""
        parser = make_tool_parser(name, TOOLS)
        self.done = 0
        # A collection in between would count its callbacks and finalizers as the parser's work.
        gc.disable()
        sys.setprofile(self._count)
        try:
            for piece in pieces:
                parser.feed(piece)
            parser.finish()
        finally:
            sys.setprofile(None)
            gc.enable()
        return self.done


@pytest.mark.parametrize(
    "unit", ["<", "{", "[", '[{"name":', "[f(", "<tool_call>\n", "<|channel|>", "[TOOL_CALLS]", '"']
)
@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_work_grows_with_the_text_and_not_faster(name: str, unit: str) -> None:
    work = Work()
    for small, large in (([unit] * 100, [unit] * 400), ([unit * 100], [unit * 400])):
        base = work.of(name, small)
        # Fourfold text: linear is four times the work, quadratic sixteen times.
        assert work.of(name, large) < 5 * base + 200


@pytest.mark.parametrize("name", ["json", "llama", "pythonic", "sarashina"])
@pytest.mark.parametrize("unit", ["{", "[", '{"name":', "[f("])
def test_brackets_that_begin_nothing_cost_next_to_nothing(name: str, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    # Most brackets are passed over by a search in C; a bounded number of them is looked at behind the first key.
    assert Work().of(name, [text]) < 150 * MOST_ATTEMPTS + len(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "ping", "arguments":0", "x": 7',
        '{"name": "ping", "arguments":{}, "b "x": 7',
        '{"name": "ping", "arguments":true", "x": 7}}}',
    ],
)
def test_what_stands_behind_a_call_that_breaks_off_is_content_however_it_is_cut(text: str) -> None:
    whole = run(make_tool_parser("json", TOOLS), [text])
    assert whole.content
    for cut in range(len(text)):
        assert run(make_tool_parser("json", TOOLS), [text[:cut], text[cut:]]) == whole
