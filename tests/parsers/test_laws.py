"""Laws that hold for every parser and any text: cutting does not matter, nothing is lost, cost is linear."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.parsers.families import REASONING_ALIASES, REASONING_FORMATS, TOOL_ALIASES, TOOL_PARSERS
from smg_trio.parsers.registry import make_answer_parser, make_tool_parser
from tests.parsers.sweep import Folded, corpus, every, fold, run

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "ping": {"type": "object", "properties": {}},
}
MARKUP = re.compile(r"<[^<>\s]{1,60}>?|\[/?[A-Z_]+\]|functools|```json|```|◁/?think▷")


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
        # A header (role, channel, recipient) is markup, so only formats without headers keep every word.
        if not whole.calls and not make().reads_reasoning:
            for sign in ("a", "😀", "1", "="):
                assert whole.content.count(sign) >= MARKUP.sub("", text).count(sign)

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


@pytest.mark.parametrize(
    "name", ["qwen", "json", "llama", "mistral", "pythonic", "qwen_xml", "kimik2", "kimi_k3", "harmony", "inkling"]
)
@pytest.mark.parametrize("unit", ["<", '[{"name":', "<tool_call>\n", "<|channel|>"])
def test_adversarial_text_is_parsed_in_linear_time(name: str, unit: str) -> None:
    def cost(pieces: list[str]) -> float:
        parser = make_tool_parser(name, TOOLS)
        began = time.process_time()
        for piece in pieces:
            parser.feed(piece)
        fold(parser.finish())
        return time.process_time() - began

    # Eightfold text: linear is 8 times the cost, quadratic 64 times. The constant covers clock noise.
    small = min(cost([unit] * 400) for _ in range(3))
    assert min(cost([unit] * 3200) for _ in range(2)) < 25 * small + 0.05
    small = min(cost([unit * 1000]) for _ in range(3))
    assert min(cost([unit * 8000]) for _ in range(2)) < 25 * small + 0.05
