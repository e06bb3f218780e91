"""The circuit breaker opens, tries and closes by its limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.errors import (
    EngineDead,
    EngineFault,
    EngineRejected,
    EngineSilent,
    EngineUnavailable,
    InvalidRequest,
    NoReadyWorker,
    Overloaded,
    ShuttingDown,
    SlowConsumer,
)
from smg_trio.routing.breaker import Breaker, BreakerLimits, BreakerState, is_failure

LIMITS = BreakerLimits(failure_threshold=3, success_threshold=2, timeout_s=60, window_s=120)


def end(breaker: Breaker, ok: bool | None, now: float) -> None:
    """A request that begins and ends now."""
    breaker.ends(breaker.begins(now), ok, now)


def opened(now: float = 0.0) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(LIMITS)
    for _ in range(3):
        end(breaker, False, now)
    assert breaker.statistics().state is BreakerState.OPEN
    return breaker


def test_the_defaults_are_the_reference_s():
    assert BreakerLimits() == BreakerLimits(10, 3, 60, 120)


def test_failures_in_a_row_open_it():
    breaker = Breaker(LIMITS)
    for now in range(2):
        end(breaker, False, now)
    assert breaker.admits(2)
    end(breaker, False, 2)
    assert not breaker.admits(3)


def test_a_success_between_them_starts_the_count_anew():
    breaker = Breaker(LIMITS)
    for ok in (False, False, True, False, False):
        end(breaker, ok, 0)
    assert breaker.admits(0)


def test_failures_too_far_apart_do_not_open_it():
    breaker = Breaker(LIMITS)
    for now in (0, 100, 200, 300):
        end(breaker, False, now)
    assert breaker.admits(300)
    end(breaker, False, 301)
    end(breaker, False, 302)
    assert not breaker.admits(302)


def test_a_client_that_leaves_says_nothing():
    breaker = Breaker(LIMITS)
    for ok in (False, False, None, None, None):
        end(breaker, ok, 0)
    assert breaker.admits(0)
    end(breaker, False, 0)
    assert not breaker.admits(0)


def test_it_is_tried_after_its_time_by_a_few_requests_at_once():
    breaker = opened()
    assert not breaker.admits(59.9)
    assert breaker.admits(60)
    tickets = [breaker.begins(60), breaker.begins(60)]
    assert breaker.statistics().state is BreakerState.HALF_OPEN
    assert not breaker.admits(60)
    breaker.ends(tickets[0], None, 61)
    assert breaker.admits(61)


def test_enough_successes_close_it():
    breaker = opened()
    end(breaker, True, 60)
    assert breaker.statistics().state is BreakerState.HALF_OPEN
    end(breaker, True, 61)
    assert breaker.statistics().state is BreakerState.CLOSED
    end(breaker, False, 62)
    assert breaker.admits(62)


def test_one_failure_opens_it_again_for_its_whole_time():
    breaker = opened()
    end(breaker, True, 60)
    end(breaker, False, 70)
    assert not breaker.admits(129)
    assert breaker.admits(130)
    assert breaker.statistics().opened == 2


def test_what_began_before_the_trial_says_nothing_about_it():
    breaker = Breaker(LIMITS)
    old = [breaker.begins(0) for _ in range(5)]
    for ticket in old[:3]:
        breaker.ends(ticket, False, 0)
    breaker.ends(old[3], True, 1)
    assert breaker.statistics().state is BreakerState.OPEN
    trial = breaker.begins(60)
    breaker.ends(old[4], False, 61)
    assert breaker.statistics().state is BreakerState.HALF_OPEN
    breaker.ends(trial, True, 62)
    assert breaker.statistics().successes == 1


def test_a_worker_with_new_engines_starts_with_a_clean_record():
    breaker = opened()
    breaker.renew()
    assert breaker.admits(0)
    end(breaker, False, 0)
    assert breaker.admits(0)


def test_what_an_engine_did_says_nothing_of_its_successor():
    breaker = Breaker(LIMITS)
    old = [breaker.begins(0) for _ in range(5)]
    breaker.renew()
    for ticket in old:
        breaker.ends(ticket, False, 1)
    assert breaker.admits(1)
    assert breaker.statistics().judged[False] == 5


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (EngineDead("gone"), True),
        (EngineSilent(300), True),
        (EngineFault("odd"), True),
        (EngineRejected("no"), True),
        (EngineUnavailable("paused"), False),
        (InvalidRequest("bad"), False),
        (NoReadyWorker("none"), False),
        (Overloaded("full"), False),
        (ShuttingDown("bye"), False),
        (SlowConsumer("slow"), False),
    ],
)
def test_only_what_engines_did_speaks_against_a_worker(error, failure):
    assert is_failure(error) is failure


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["begin", "ok", "bad", "left"]), st.floats(0, 50)), max_size=60))
def test_trials_are_never_more_than_allowed_and_it_always_opens_up_again(steps):
    breaker, now = Breaker(LIMITS), 0.0
    tickets: list[int] = []
    for step, passed in steps:
        now += passed
        if step == "begin" and breaker.admits(now):
            tickets.append(breaker.begins(now))
        elif step != "begin" and tickets:
            breaker.ends(tickets.pop(0), {"ok": True, "bad": False, "left": None}[step], now)
        assert 0 <= breaker._trials <= LIMITS.success_threshold
    for ticket in tickets:
        breaker.ends(ticket, None, now)
    assert breaker.admits(now + LIMITS.timeout_s)
