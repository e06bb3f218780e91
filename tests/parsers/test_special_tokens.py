"""Special tokens that are no part of a format never show; everything else does."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.events import ContentDelta
from smg_trio.parsers.answer import AnswerParser
from smg_trio.parsers.registry import make_reasoning_parser, make_tool_parser
from smg_trio.parsers.special_tokens import SpecialTokenFilter, split_special_tokens
from tests.parsers.sweep import every, sweep

TOKENS = frozenset({"<s>", "<sep>", "[a]"})


@given(st.lists(st.sampled_from(["<", "s", ">", "<s", "<s>", "<sep>", "[a", "]", "b"]), max_size=20).map("".join))
def test_literals_are_taken_out_however_the_text_is_cut(text: str) -> None:
    expected = text
    for token in sorted(TOKENS, key=len, reverse=True):
        expected = "\0".join(expected.split(token))
    for size in (1, 2, 3, len(text) + 1):
        hider = SpecialTokenFilter(TOKENS)
        shown = "".join(map(hider.feed, every(size, text))) + hider.flush()
        assert shown == expected.replace("\0", "")


def test_only_what_may_become_a_literal_is_held() -> None:
    hider = SpecialTokenFilter(TOKENS)
    assert [hider.feed(piece) for piece in ("a", "<", "x", "<se", "b")] == ["a", "", "<x", "", "<seb"]


def test_tokens_that_are_part_of_a_marker_are_told_from_the_others() -> None:
    markers = {"<|open|>think<|sep|>", "<tool_call>"}
    tokens = {"<|sep|>", "<tool_call:a1>", "<eos>", ""}
    outside, inside = split_special_tokens(tokens, markers)
    assert outside == frozenset({"<eos>"})
    assert inside == frozenset({"<|sep|>", "<tool_call:a1>"})


HIDDEN = frozenset({"<|eos|>", "<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<think>"})


def _parser(hidden: frozenset[str] = HIDDEN) -> AnswerParser:
    return AnswerParser(make_reasoning_parser("qwen3", True), make_tool_parser("kimik2", {}), hidden=hidden)


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        ("a<|eos|>b</think>c<|eos|>d", "ab", "cd", 0),
        ("a<|eo</think>c<|eos", "a<|eo", "c<|eos", 0),
        ("a</think>b<|tool_call_begin|>c", "a", "bc", 0),
        ("a</think><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|eos|>", "a", "", 1),
        ("a<think>b</think>", "ab", "", 0),
    ],
)
def test_an_answer_shows_no_special_token(text: str, reasoning: str, content: str, calls: int) -> None:
    got = sweep(_parser, text)
    assert (got.reasoning, got.content, len(got.calls)) == (reasoning, content, calls)


def test_a_special_token_inside_arguments_is_taken_out() -> None:
    text = '</think><|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": "b<|eos|>c"}<|tool_call_end|>'
    assert sweep(_parser, text).calls[0][1] == '{"a": "bc"}'


def test_special_tokens_are_taken_out_where_nothing_is_parsed() -> None:
    assert sweep(partial(AnswerParser, hidden=HIDDEN), "a<|eos|>b<|eos").content == "ab<|eos"


def test_text_without_a_token_is_not_held_back() -> None:
    parser = AnswerParser(hidden=HIDDEN)
    assert parser.feed("a b c") == [ContentDelta("a b c")]
