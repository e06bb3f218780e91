"""Sessions stay with their worker."""

from __future__ import annotations

from random import Random

from smg_trio.routing.policies import ManualOptions, ManualSessions, PolicyOptions, RoundRobin, make_policy, manual
from tests.routing.policies.fleet import choose, fleet


def test_a_key_stays_with_its_worker_while_others_come():
    policy, workers = manual("min_load"), fleet(4)
    first = choose(policy, workers[:2], key="session")
    next(worker for worker in workers if worker.name == first).load = 99.0
    assert {choose(policy, workers, key="session") for _ in range(10)} == {first}


def test_a_key_whose_worker_is_not_ready_moves_for_good():
    policy, workers = manual("min_load"), fleet(2)
    first = choose(policy, workers, key="session")
    second = choose(policy, [worker for worker in workers if worker.name != first], key="session")
    assert second != first
    assert choose(policy, workers, key="session") == second


def test_an_idle_key_is_forgotten():
    policy, workers = manual("min_load", ManualOptions(max_idle_s=100)), fleet(2)
    workers[1].load = 1.0
    assert choose(policy, workers, key="session", now=0) == "w0"
    workers[0].load = 2.0
    assert choose(policy, workers, key="session", now=99) == "w0"
    assert choose(policy, workers, key="session", now=198) == "w0"
    assert choose(policy, workers, key="session", now=298) == "w1"


def test_the_number_of_keys_is_bounded():
    policy, workers = manual("min_load", ManualOptions(max_keys=3)), fleet(2)
    for number in range(10):
        choose(policy, workers, key=f"k{number}")
    assert sum(policy.keys_of.values()) == 3


def test_min_group_gives_every_worker_as_many_keys():
    policy, workers = manual("min_group"), fleet(3)
    for number in range(9):
        choose(policy, workers, key=f"k{number}")
    assert dict(policy.keys_of) == {"w0": 3, "w1": 3, "w2": 3}


def test_a_removed_worker_has_no_keys():
    policy, workers = manual("min_group"), fleet(2)
    for number in range(6):
        choose(policy, workers, key=f"k{number}")
    policy.forget("w0")
    assert dict(policy.keys_of) == {"w1": 3}


def test_a_lost_cache_does_not_end_a_session():
    policy, workers = manual("random", random=Random(5)), fleet(3)
    first = choose(policy, workers, key="session")
    policy.cache_lost(first)
    assert choose(policy, workers, key="session") == first


def test_requests_without_a_key_are_left_to_the_choice():
    policy, workers = ManualSessions(RoundRobin()), fleet(2)
    assert [choose(policy, workers) for _ in range(4)] == ["w0", "w1", "w0", "w1"]


def test_keys_stick_on_any_policy_if_asked_to():
    policy, workers = make_policy("round_robin", PolicyOptions(sticky=True)), fleet(3)
    assert policy.name == "round_robin"
    first = choose(policy, workers, key="session")
    assert {choose(policy, workers, key="session") for _ in range(5)} == {first}
    assert {choose(policy, workers) for _ in range(3)} == {"w0", "w1", "w2"}
