"""Policies without memory of prompts or keys."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from smg_trio.routing.policies import LeastLoad, Passthrough, PowerOfTwo, RandomChoice, RoundRobin, by_name, make_policy
from smg_trio.settings.choices import POLICIES
from tests.routing.policies.fleet import choose, fleet


def test_the_names_are_those_of_the_command_line():
    assert set(by_name) == set(POLICIES)
    assert {name: make().name for name, make in by_name.items()} == {name: name for name in POLICIES}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_the_only_worker_there_is(name):
    policy = make_policy(name)
    (worker,) = fleet(1)
    assert choose(policy, [worker], range(100), key="k") == "w0"
    policy.cache_lost("w0")
    policy.forget("w0")
    assert choose(policy, [worker], range(100)) == "w0"


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_chance_gives_the_same_choices(name):
    def choices():
        policy, workers = make_policy(name, random=Random(7)), fleet(5)
        return [choose(policy, workers, range(n, n + 64), key=f"k{n % 9}") for n in range(50)]

    assert choices() == choices()


def test_least_load_takes_the_idlest_and_rotates_among_equals():
    policy, workers = LeastLoad(), fleet(3)
    assert {choose(policy, workers) for _ in range(3)} == {"w0", "w1", "w2"}
    workers[0].load, workers[1].load, workers[2].load = 2.0, 1.0, 1.5
    assert {choose(policy, workers) for _ in range(5)} == {"w1"}


def test_round_robin_takes_each_in_turn():
    policy, workers = RoundRobin(), fleet(3)
    assert [choose(policy, workers) for _ in range(6)] == ["w0", "w1", "w2"] * 2


def test_passthrough_takes_the_first_that_is_ready():
    policy, workers = Passthrough(), fleet(2)
    assert [choose(policy, workers) for _ in range(3)] == ["w0"] * 3
    assert choose(policy, workers[1:]) == "w1"


def test_random_takes_all_about_equally_often():
    policy, workers = RandomChoice(Random(1)), fleet(4)
    counts = Counter(choose(policy, workers) for _ in range(4000))
    assert all(850 < counts[f"w{number}"] < 1150 for number in range(4))


def test_power_of_two_never_takes_the_busiest_of_several():
    policy, workers = PowerOfTwo(Random(1)), fleet(4)
    workers[2].load = 9.0
    counts = Counter(choose(policy, workers) for _ in range(400))
    assert counts.keys() == {"w0", "w1", "w3"}
