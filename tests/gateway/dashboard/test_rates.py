"""Tokens per second out of looks at growing counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.events import Usage
from smg_trio.gateway.dashboard.rates import RateMeter, TokenCount, TokenRate


def count(answer: str, tokens_in: int, tokens_out: int, *engines: tuple[str, int], heard: bool = True) -> TokenCount:
    return TokenCount(answer, engines or (("w", 0),), Usage(tokens_in, tokens_out), heard)


def test_the_first_look_knows_no_rates() -> None:
    assert RateMeter().look(0.0, [count("a", 10, 50)], []) is None


def test_a_rate_is_what_was_added_over_the_time_between() -> None:
    meter = RateMeter()
    meter.look(10.0, [count("a", 10, 50)], [])
    rates = meter.look(12.0, [count("a", 10, 70), count("b", 30, 4)], [])
    assert rates is not None
    assert (rates.total.input, rates.total.output) == (15.0, 12.0)
    assert rates.of_worker("w") == rates.of_engine("w", 0) == rates.total
    assert rates.finished == 0


def test_an_answer_that_ended_counts_with_its_last_tokens_only() -> None:
    meter = RateMeter()
    meter.look(0.0, [count("a", 10, 50)], [])
    rates = meter.look(1.0, [], [count("a", 10, 53), count("began and ended", 7, 2)])
    assert rates is not None
    assert (rates.total.input, rates.total.output, rates.finished) == (7.0, 5.0, 2.0)


def test_a_prompt_counts_once_the_engine_has_been_heard() -> None:
    meter = RateMeter()
    meter.look(0.0, [count("a", 100, 0, heard=False)], [])
    waiting = meter.look(1.0, [count("a", 100, 0, heard=False)], [])
    heard = meter.look(2.0, [count("a", 100, 1)], [])
    assert waiting is not None
    assert heard is not None
    assert (waiting.total.input, heard.total.input) == (0.0, 100.0)


def test_engines_of_one_answer_share_alike_and_none_means_no_engine() -> None:
    meter = RateMeter()
    meter.look(0.0, [], [])
    nowhere = TokenCount("x", (), Usage(4, 4), True)
    rates = meter.look(1.0, [count("a", 0, 15, ("v", 0), ("w", 0), ("w", 3)), nowhere], [])
    assert rates is not None
    made = {engine: rate.output for engine, rate in rates.by_engine.items()}
    assert made == {("v", 0): 5.0, ("w", 0): 5.0, ("w", 3): 5.0}
    assert rates.of_worker("w").output == 10
    assert rates.of_engine("w", 1) == TokenRate()
    assert rates.total.output == 19


def test_a_look_at_the_same_moment_knows_no_rates() -> None:
    meter = RateMeter()
    meter.look(1.0, [], [])
    assert meter.look(1.0, [count("a", 1, 1)], []) is None


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_rates_add_up_to_the_tokens_made(steps: list[list[int]], data: st.DataObject) -> None:
    """However answers overlap, the rates times the times between looks are all tokens, each once."""
    meter = RateMeter()
    meter.look(0.0, [], [])
    looks = max(map(len, steps)) + 1
    made = 0.0
    for look in range(1, looks + 1):
        in_flight = [count(str(i), 0, sum(s[:look])) for i, s in enumerate(steps) if look < len(s)]
        ended = [count(str(i), 0, sum(s)) for i, s in enumerate(steps) if look == len(s)]
        rates = meter.look(float(look), data.draw(st.permutations(in_flight)), ended)
        assert rates is not None
        made += rates.total.output
    assert made == pytest.approx(sum(map(sum, steps)))
