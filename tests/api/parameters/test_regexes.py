"""Regexes that no engine has to look at."""

from __future__ import annotations

import pytest

from smg_trio.api.parameters.regexes import MAX_REGEX_CHARS, MAX_REGEX_DEPTH, check_regex
from smg_trio.core.errors import InvalidRequest


def _groups(depth: int, inner: str = "a") -> str:
    return "(" * depth + inner + ")" * depth


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        _groups(MAX_REGEX_DEPTH),
        "(a)" * 5_000,
        r"\(" * 500,
        "[(]" * 500,
        r"[\](]" * 500,
        "(?:x|y)" * 500,
        "(a" * MAX_REGEX_DEPTH + ")" * MAX_REGEX_DEPTH + "(b)",
    ],
)
def test_groups_beside_each_other_and_parentheses_that_are_text_pass(pattern: str) -> None:
    assert check_regex(pattern, "regex") == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        _groups(MAX_REGEX_DEPTH + 1),
        _groups(20_000),
        "(" * MAX_REGEX_CHARS,
        "x" * 20_000 + _groups(100),
        "(?:" * 100 + "a" + ")" * 100,
        "(?P<n>" + _groups(100) + ")",
        "[(]" * 100 + _groups(100, r"\("),
        _groups(100, "[)]"),
        ")" * 500 + _groups(100),
    ],
)
def test_groups_that_nest_too_deeply_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=f"may nest at most {MAX_REGEX_DEPTH} levels") as caught:
        check_regex(pattern, "regex")
    assert caught.value.param == "regex"


@pytest.mark.parametrize("pattern", ["(" * 200 + "[" * 200_000 + "\\", "(" * 200 + "[\\" * 60_000, "\\" * 200_001])
def test_sets_without_an_end_are_read_once(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        check_regex("(" * 65 + pattern, "regex")
