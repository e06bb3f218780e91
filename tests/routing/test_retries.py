"""Another attempt only where it can help, and not at once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import (
    EngineDead,
    EngineRejected,
    EngineSilent,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    NoReadyWorker,
    Overloaded,
    ProtocolViolation,
)
from smg_trio.routing.retries import NO_RETRIES, Attempts, RetrySchedule, can_help

NO_JITTER = RetrySchedule(jitter=0.0)


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (EngineDead("gone"), True),
        (EngineSilent(300), True),
        (NoReadyWorker("draining"), True),
        (EngineRejected("the engine cannot do that"), False),
        (EngineUnavailable("paused"), True),
        (ProtocolViolation("output", "?"), False),
        (InvalidRequest("bad"), False),
        (ModelNotFound("x"), False),
        (Overloaded("full"), False),
    ],
)
def test_another_attempt_helps_where_a_worker_failed_not_where_the_request_did(error, helps):
    assert can_help(error) is helps


def test_delays_grow_to_a_bound():
    delays = [NO_JITTER.delay_s(retry, Random()) for retry in range(1, 5)]
    assert delays == pytest.approx([0.05, 0.075, 0.1125, 0.16875])
    assert NO_JITTER.delay_s(1000, Random()) == 30.0
    assert NO_JITTER.delay_s(10**6, Random()) == 30.0
    assert RetrySchedule(multiplier=1e300, jitter=0.0).delay_s(3, Random()) == 30.0
    assert RetrySchedule(initial_s=0.0, multiplier=1e300).delay_s(3, Random()) == 0.0


@given(st.integers(1, 10_000), st.integers())
def test_chance_moves_a_delay_by_its_share_at_most(retry, seed):
    plain = NO_JITTER.delay_s(retry, Random(seed))
    assert abs(RetrySchedule().delay_s(retry, Random(seed)) - plain) <= 0.2 * plain + 1e-9


def test_attempts_end_after_as_many_as_the_schedule_allows():
    attempts = Attempts(Random(1))
    delays = [attempts.failed(EngineDead("gone"), [f"w{number}"], NO_JITTER) for number in range(5)]
    assert delays[:4] == pytest.approx([0.05, 0.075, 0.1125, 0.16875])
    assert delays[4] is None
    assert attempts.avoid == {"w0", "w1", "w2", "w3", "w4"}
    assert attempts.made == 5


def test_the_worker_that_failed_last_says_whether_there_is_another_attempt():
    attempts = Attempts(Random(1))
    assert attempts.failed(EngineDead("gone"), ["w0"], NO_JITTER) == pytest.approx(0.05)
    assert attempts.failed(EngineDead("gone"), ["w1"], RetrySchedule(max_attempts=2)) is None
    assert attempts.exhausted(EngineDead("gone"))


def test_an_error_that_would_come_again_ends_them_at_once():
    assert Attempts(Random(1)).failed(EngineRejected("no"), ["w0"], RetrySchedule()) is None


def test_with_one_attempt_there_are_no_retries():
    assert Attempts(Random(1)).failed(EngineDead("gone"), ["w0"], NO_RETRIES) is None
