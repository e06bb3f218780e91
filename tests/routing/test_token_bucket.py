"""Laws of the token bucket; times are those of a clock that rises by steps that floats hold exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.routing.token_bucket import TokenBucket

rates = st.integers(1, 1000).map(lambda n: n / 8)
capacities = st.integers(1, 10_000).map(float)
steps = st.integers(0, 4000).map(lambda n: n / 16)
amounts = st.integers(0, 5000).map(float)
uses = st.lists(st.tuples(steps, amounts), max_size=30)


def used(rate: float, capacity: float, history: list[tuple[float, float]]) -> tuple[TokenBucket, float]:
    """A bucket after these waits and takings, and the time."""
    bucket, now = TokenBucket(rate, capacity, 0.0), 0.0
    for step, amount in history:
        now += step
        bucket.take(amount, now)
    return bucket, now


@given(rates, capacities, uses, steps)
def test_it_never_holds_more_than_its_capacity_and_only_time_fills_it(
    rate: float, capacity: float, history: list[tuple[float, float]], step: float
) -> None:
    bucket, now = used(rate, capacity, history)
    before = bucket.level(now)
    assert before <= capacity
    assert bucket.level(now) == before
    later = bucket.level(now + step)
    assert before <= later <= capacity
    assert later == pytest.approx(min(capacity, before + step * rate))


@given(rates, capacities, uses, amounts)
def test_taking_lowers_it_by_just_that_and_giving_back_undoes_it(
    rate: float, capacity: float, history: list[tuple[float, float]], amount: float
) -> None:
    bucket, now = used(rate, capacity, history)
    before = bucket.level(now)
    bucket.take(amount, now)
    assert bucket.level(now) == pytest.approx(before - amount)
    bucket.take(-amount, now)
    assert bucket.level(now) == pytest.approx(before)


@given(rates, capacities, uses, st.integers(-1000, 1000).map(float))
def test_the_wait_is_true(rate: float, capacity: float, history: list[tuple[float, float]], level: float) -> None:
    bucket, now = used(rate, capacity, history)
    wanted = min(level, capacity)
    wait_s = bucket.wait_s(level, now)
    assert (wait_s == 0) == (bucket.level(now) >= wanted)
    if wait_s:
        tried_early, tried_late = (used(rate, capacity, history)[0] for _ in range(2))
        assert tried_early.level(now + wait_s * 0.999) < wanted
        assert tried_late.level(now + wait_s * 1.001 + 1e-9) >= wanted - 1e-9


@given(rates, capacities, st.lists(st.tuples(steps, amounts), min_size=2, max_size=40))
def test_who_begins_only_while_it_holds_something_uses_no_more_than_rate_and_one_overdraft_allow(
    rate: float, capacity: float, wishes: list[tuple[float, float]]
) -> None:
    bucket, now = TokenBucket(rate, capacity, 0.0), 0.0
    spent: list[tuple[float, float]] = []
    for step, amount in wishes:
        now += step
        if bucket.level(now) > 0:
            bucket.take(amount, now)
            spent.append((now, amount))
    for first in range(len(spent)):
        total = sum(amount for _, amount in spent[first:-1])
        if first < len(spent) - 1:
            # All but the last one were paid for before the last one began.
            assert total <= capacity + rate * (spent[-1][0] - spent[first][0]) + 1e-6


@given(rates, capacities, uses, rates, capacities)
def test_other_limits_keep_what_has_been_used(
    rate: float, capacity: float, history: list[tuple[float, float]], new_rate: float, new_capacity: float
) -> None:
    bucket, now = used(rate, capacity, history)
    debt = capacity - bucket.level(now)
    bucket.change(new_rate, new_capacity, now)
    assert new_capacity - bucket.level(now) == pytest.approx(debt)
    assert bucket.level(now + 16 * (debt / new_rate + 1)) == pytest.approx(new_capacity)


@given(rates, capacities, uses)
def test_a_clock_that_seems_to_go_back_fills_nothing_twice(
    rate: float, capacity: float, history: list[tuple[float, float]]
) -> None:
    bucket, now = used(rate, capacity, history)
    levels = [bucket.level(moment) for moment in (now, now - 5, now, now - 5, now)]
    assert all(before == after for before, after in pairwise(levels))
