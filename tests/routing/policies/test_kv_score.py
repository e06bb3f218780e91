"""Laws of the score over KV caches that are known."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.routing.policies.kv_score import WINDOW, Candidate, StoredBlocks, best, cost

PROMPT = 200
candidates = st.builds(
    Candidate,
    matched=st.floats(0, PROMPT),
    backlog=st.floats(0, 10_000),
    active=st.integers(0, 500),
    stored=st.floats(0, 100_000),
    capacity=st.sampled_from([0, 1_000, 60_000]),
)
fleets = st.lists(candidates, min_size=1, max_size=16)
seeds = st.integers(0, 2**32)


@given(fleets, seeds)
def test_the_choice_has_the_lowest_cost(fleet: list[Candidate], seed: int) -> None:
    chosen = best(fleet, PROMPT, Random(seed))
    assert cost(fleet[chosen], PROMPT) == min(cost(one, PROMPT) for one in fleet)


@given(fleets, seeds, st.floats(0, 5), st.floats(0, 5))
def test_one_seed_gives_one_choice_whatever_the_options(
    fleet: list[Candidate], seed: int, decay: float, temperature: float
) -> None:
    first = best(fleet, PROMPT, Random(seed), overlap_decay=decay, temperature=temperature)
    assert 0 <= first < len(fleet)
    assert first == best(fleet, PROMPT, Random(seed), overlap_decay=decay, temperature=temperature)


@given(candidates, st.floats(1, 1_000))
def test_a_better_match_never_costs_more_and_work_never_costs_less(one: Candidate, more: float) -> None:
    before = cost(one, PROMPT)
    assert cost(replace(one, matched=min(PROMPT, one.matched + more)), PROMPT) <= before
    assert cost(replace(one, backlog=one.backlog + more), PROMPT) > before
    assert cost(replace(one, active=one.active + 1), PROMPT) > before
    assert cost(replace(one, stored=one.stored + more), PROMPT) >= before
    assert before >= one.backlog + PROMPT - one.matched


@given(st.integers(1, 16), seeds)
def test_equals_are_all_chosen_in_the_end(count: int, seed: int) -> None:
    random = Random(seed)
    fleet = [Candidate(matched=0, backlog=7, active=1)] * count
    assert {best(fleet, PROMPT, random) for _ in range(40 * count)} == set(range(count))


def test_a_match_is_left_where_its_wait_is_longer_than_what_it_saves() -> None:
    home, idle = Candidate(matched=150, backlog=100, active=0), Candidate(matched=0, backlog=0, active=0)
    assert best([home, idle], PROMPT, Random(1)) == 0
    assert best([replace(home, backlog=151), idle], PROMPT, Random(1)) == 1


def test_where_caches_turn_over_fast_a_match_is_worth_a_longer_wait() -> None:
    home = Candidate(matched=150, backlog=151, active=0, stored=6_000, capacity=6_000)
    idle = replace(home, matched=0, backlog=0)
    assert best([home, idle], PROMPT, Random(1)) == 0


def test_of_two_alike_the_one_that_stored_less_is_chosen() -> None:
    busy = Candidate(matched=50, backlog=0, active=0, stored=6_000, capacity=6_000)
    assert best([busy, replace(busy, stored=5_000)], PROMPT, Random(1)) == 1


@given(candidates, st.floats(1, 100_000))
def test_without_a_known_capacity_what_is_stored_does_not_count(one: Candidate, stored: float) -> None:
    one = replace(one, capacity=0)
    assert cost(replace(one, stored=stored), PROMPT) == cost(one, PROMPT)


@given(candidates)
def test_a_missing_block_costs_nine_times_its_own_time_at_most(one: Candidate) -> None:
    more = cost(one, PROMPT + 1) - cost(one, PROMPT)
    assert 1 - 1e-6 <= more <= 9 + 1e-6


def test_a_match_longer_than_the_prompt_counts_as_the_prompt() -> None:
    assert cost(Candidate(matched=PROMPT + 50, backlog=0, active=0), PROMPT) == 0


def test_decay_passes_over_a_busy_match_that_would_be_chosen_without() -> None:
    home, idle = Candidate(matched=190, backlog=100, active=0), Candidate(matched=0, backlog=0, active=0)
    assert best([home, idle], PROMPT, Random(1)) == 0
    assert best([home, idle], PROMPT, Random(1), overlap_decay=4.0) == 1


def test_temperature_spreads_by_cost() -> None:
    random = Random(1)
    fleet = [Candidate(matched=0, backlog=backlog, active=0) for backlog in (0, 50, 100)]
    picks = [best(fleet, PROMPT, random, temperature=0.5) for _ in range(6_000)]
    shares = [picks.count(index) / len(picks) for index in range(3)]
    weights = [math.exp(-distance / 0.5) for distance in (0, 0.5, 1)]
    assert all(abs(share - weight / sum(weights)) < 0.03 for share, weight in zip(shares, weights, strict=True))
    assert best(fleet, PROMPT, random, temperature=1e-6) == 0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1_000)), max_size=30), st.floats(0, 500))
def test_stored_blocks_fade_by_their_age(steps: list[tuple[float, float]], after: float) -> None:
    stored, now, expected = StoredBlocks(), 1000.0, 0.0
    for pause, blocks in steps:
        now += pause
        expected = expected * math.exp(-pause / WINDOW) + blocks
        stored.add(blocks, now)
    assert math.isclose(stored.value(now + after), expected * math.exp(-after / WINDOW), rel_tol=1e-9, abs_tol=1e-9)
