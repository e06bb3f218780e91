"""Stop matcher: against a plain restatement of the rule, under any cutting, and its edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.errors import InvalidRequest
from smg_trio.text.stops import StopMatcher, StopResult


def run(
    stops: list[str], pieces: list[str], *, include: bool = False, disarmed: int = 0
) -> tuple[list[str], str | None]:
    """What is released per piece, plus the finish; the first `disarmed` pieces are not armed."""
    matcher = StopMatcher(stops, include_stop=include)
    out = [matcher.push(piece, armed=i >= disarmed).text for i, piece in enumerate(pieces)]
    return [*out, matcher.finish()], matcher.matched


def expected(stops: list[str], pieces: list[str], include: bool, disarmed: int) -> tuple[str, str | None]:
    """The rule, restated: the earliest end behind the unarmed text wins, then the order of the list."""
    text = "".join(pieces)
    armed_from = len("".join(pieces[:disarmed]))
    for end in range(armed_from + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


few = st.text("ab", min_size=1, max_size=4)


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(few, min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=8),
    include=st.booleans(),
    disarmed=st.integers(0, 3),
)
def test_any_cutting_gives_what_the_rule_says(
    stops: list[str], pieces: list[str], include: bool, disarmed: int
) -> None:
    released, matched = run(stops, pieces, include=include, disarmed=disarmed)
    assert ("".join(released), matched) == expected(stops, pieces, include, disarmed)


@settings(max_examples=200, deadline=None)
@given(stops=st.lists(few, min_size=1, max_size=3), pieces=st.lists(st.text("abc", max_size=3), max_size=8))
def test_only_a_true_beginning_of_some_stop_is_held(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = released = ""
    for piece in pieces:
        seen += piece
        result = matcher.push(piece)
        if result.matched is not None:
            return
        released += result.text
        held = seen[len(released) :]
        beginnings = {stop[:size] for stop in stops for size in range(len(stop))}
        assert held == max((seen[i:] for i in range(len(seen) + 1) if seen[i:] in beginnings), key=len)


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "matched"),
    [
        (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"], "ABC", "DEFGHIJ"),
        (["DE"], ["ABC", "DEF"], "ABC", "DE"),
        (["DEX"], ["ABC", "DE", "F"], "ABCDEF", None),
        (["DEX"], ["ABC", "DE"], "ABCDE", None),
        (["海X"], ["大", "海", "风"], "大海风", None),
        (["ab", "abc"], ["xabc"], "x", "ab"),
        (["abc", "ab"], ["xa", "bc"], "x", "ab"),
        (["bc", "abc"], ["abc"], "a", "bc"),
        (["abc", "bc"], ["abc"], "", "abc"),
        (["\n"], ["line", "\n\n"], "line", "\n"),
    ],
)
def test_stops_match_anywhere_and_failed_beginnings_are_released(
    stops: list[str], pieces: list[str], text: str, matched: str | None
) -> None:
    released, found = run(stops, pieces)
    assert ("".join(released), found) == (text, matched)


def test_the_included_stop_appears_once_and_nothing_behind_it() -> None:
    assert run(["."], ["a", "b.c"], include=True) == (["a", "b.", ""], ".")


def test_a_stop_seen_before_min_tokens_never_matches_but_one_that_straddles_does() -> None:
    assert run(["ab"], ["ab", "c"], disarmed=1) == (["ab", "c", ""], None)
    assert run(["ab"], ["xa", "bc"], disarmed=1) == (["x", "", ""], "ab")


def test_without_stops_text_passes_untouched() -> None:
    assert StopMatcher([]).push("abc") == StopResult("abc", None)


def test_nothing_comes_out_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("ax") == StopResult("a", "x")
    assert matcher.push("more") == StopResult("", "x")
    assert matcher.finish() == ""


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(["a", ""])
    assert caught.value.param == "stop"


@pytest.mark.parametrize("special", ["]", "^", "-", "\\", "[a-z]", ".*", "$"])
def test_characters_with_a_meaning_in_patterns_are_plain_characters(special: str) -> None:
    released, matched = run([special], ["abz", special, "c"])
    assert ("".join(released), matched) == ("abz", special)


def test_adversarial_text_costs_linear_work() -> None:
    """Counts automaton steps: text made of near-matches must not be walked again from each start."""
    stop = "a" * 500 + "b"
    matcher = StopMatcher([stop])
    automaton = matcher._automaton
    assert automaton is not None
    hops = 0
    real_fails = automaton._fails

    class CountingFails(list[int]):
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            nonlocal hops
            hops += 1
            return super().__getitem__(index)

    automaton._fails = CountingFails(real_fails)
    text = ("a" * 499 + "c") * 20
    for char in text:
        matcher.push(char)
    assert hops <= 2 * len(text)
