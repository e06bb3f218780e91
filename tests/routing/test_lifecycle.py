"""Every row of the lifecycle table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.workers import HealthOverrides, WorkerState
from smg_trio.routing.lifecycle import HealthThresholds, Lifecycle

PENDING, READY, NOT_READY, FAILED, DRAINING = (
    WorkerState.PENDING,
    WorkerState.READY,
    WorkerState.NOT_READY,
    WorkerState.FAILED,
    WorkerState.DRAINING,
)


def probe(lifecycle: Lifecycle, alive: bool, times: int) -> WorkerState:
    """The state after so many equal probes."""
    for _ in range(times):
        lifecycle.probed(alive)
    return lifecycle.state


def ready() -> Lifecycle:
    """A lifecycle whose engines have connected."""
    lifecycle = Lifecycle()
    assert lifecycle.observe(READY)
    return lifecycle


def lost() -> Lifecycle:
    """A lifecycle whose engines are gone."""
    lifecycle = ready()
    assert lifecycle.observe(NOT_READY)
    return lifecycle


def test_a_connection_makes_a_worker_ready_at_once_from_any_state():
    failed = Lifecycle()
    probe(failed, False, 30)
    for lifecycle in (Lifecycle(), lost(), failed):
        lifecycle.observe(READY)
        assert lifecycle.state is READY


def test_lost_engines_make_it_not_ready_at_once():
    assert lost().state is NOT_READY


def test_an_engine_that_never_comes_makes_it_failed_after_thirty_probes():
    lifecycle = Lifecycle()
    assert probe(lifecycle, False, 29) is PENDING
    assert probe(lifecycle, False, 1) is FAILED


def test_an_engine_that_does_not_come_back_makes_it_failed_after_nine_probes():
    lifecycle = lost()
    assert probe(lifecycle, False, 8) is NOT_READY
    assert probe(lifecycle, False, 1) is FAILED
    assert probe(lifecycle, False, 100) is FAILED


def test_three_bad_probes_in_a_row_take_a_ready_worker_out_and_two_good_ones_bring_it_back():
    lifecycle = ready()
    probe(lifecycle, False, 2)
    probe(lifecycle, True, 1)
    assert probe(lifecycle, False, 2) is READY
    assert probe(lifecycle, False, 1) is NOT_READY
    assert probe(lifecycle, True, 1) is NOT_READY
    assert probe(lifecycle, True, 1) is READY


def test_bad_probes_of_a_lost_worker_count_in_a_row_only():
    lifecycle = lost()
    probe(lifecycle, False, 8)
    lifecycle.probed(True)
    assert probe(lifecycle, False, 8) is NOT_READY


def test_sockets_that_cannot_be_bound_are_a_failure_until_they_can():
    lifecycle = Lifecycle()
    lifecycle.observe(FAILED)
    assert lifecycle.state is FAILED
    lifecycle.observe(PENDING)
    assert lifecycle.state is PENDING
    lifecycle.observe(FAILED)
    lifecycle.observe(READY)
    assert lifecycle.state is READY


def test_a_word_said_twice_changes_nothing():
    lifecycle = Lifecycle()
    probe(lifecycle, False, 30)
    assert not lifecycle.observe(PENDING)
    assert lifecycle.state is FAILED


def test_thresholds_can_be_a_worker_s_own():
    own = HealthThresholds().with_overrides(HealthOverrides(failure_threshold=1, check_interval_secs=2.0))
    assert own == HealthThresholds(1, 2, 2.0)
    assert probe(Lifecycle(own), False, 10) is FAILED


@pytest.mark.parametrize("event", [READY, NOT_READY, FAILED, True, False])
def test_draining_is_for_good(event):
    lifecycle = ready()
    assert lifecycle.drain()
    for _ in range(20):
        assert not (lifecycle.probed(event) if isinstance(event, bool) else lifecycle.observe(event))
    assert lifecycle.state is DRAINING


links = st.sampled_from([PENDING, READY, NOT_READY, FAILED])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(links, st.booleans()), max_size=40))
def test_whatever_happened_a_new_connection_is_ready(events):
    lifecycle = Lifecycle()
    for event in events:
        before = lifecycle.state
        changed = lifecycle.probed(event) if isinstance(event, bool) else lifecycle.observe(event)
        assert changed == (lifecycle.state is not before)
    lifecycle.observe(NOT_READY)
    lifecycle.observe(READY)
    assert lifecycle.state is READY
