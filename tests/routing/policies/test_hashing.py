"""Keys and prefixes find the same worker again, and few of them move when workers come and go."""

from __future__ import annotations

from collections import Counter
from random import Random

from smg_trio.routing.policies import ConsistentHashing, PrefixHash, PrefixHashOptions
from smg_trio.routing.policies.consistent_hashing import stable_hash
from tests.routing.policies.fleet import choose, fleet

KEYS = [f"user-{number}" for number in range(2000)]


def test_a_key_goes_to_the_same_worker_from_any_gateway():
    workers = fleet(4)
    first = [choose(ConsistentHashing(), workers, key=key) for key in KEYS[:50]]
    assert [choose(ConsistentHashing(), workers[::-1], key=key) for key in KEYS[:50]] == first


def test_hashes_do_not_depend_on_the_process():
    assert stable_hash(b"smg") == 0xFAF2FF7219E2512F


def test_keys_spread_evenly():
    policy, workers = ConsistentHashing(), fleet(4)
    counts = Counter(choose(policy, workers, key=key) for key in KEYS)
    assert all(400 < counts[f"w{number}"] < 600 for number in range(4))


def test_only_the_keys_of_a_lost_worker_move():
    policy, workers = ConsistentHashing(), fleet(4)
    before = {key: choose(policy, workers, key=key) for key in KEYS}
    policy.forget("w1")
    for key, worker in before.items():
        after = choose(policy, [one for one in workers if one.name != "w1"], key=key)
        assert after == worker or worker == "w1"


def test_a_new_worker_takes_its_share_and_nothing_else_moves():
    policy, workers = ConsistentHashing(), fleet(5)
    moved = 0
    for key in KEYS:
        before, after = choose(policy, workers[:4], key=key), choose(policy, workers, key=key)
        if before != after:
            assert after == "w4"
            moved += 1
    assert 300 < moved < 500


def test_without_a_key_chance_decides():
    policy, workers = ConsistentHashing(Random(3)), fleet(3)
    assert {choose(policy, workers) for _ in range(50)} == {"w0", "w1", "w2"}


def test_prompts_with_the_same_beginning_share_a_worker():
    policy, workers = PrefixHash(PrefixHashOptions(prefix_token_count=8)), fleet(4)
    shared = list(range(8))
    assert len({choose(policy, workers, [*shared, *range(n, n + 50)]) for n in range(20)}) == 1
    assert len({choose(policy, workers, range(n, n + 50)) for n in range(40)}) == 4


def test_a_worker_far_above_the_mean_is_passed_over_until_it_has_calmed_down():
    policy, workers = PrefixHash(), fleet(3)
    own = choose(policy, workers)
    (busy,) = [worker for worker in workers if worker.name == own]
    busy.load = 16.0  # mean 5.3: above 1.25 times the mean, and above the mean by more than 10
    assert choose(policy, workers) != own
    busy.load = 14.0  # above the mean by less than 10
    assert choose(policy, workers) == own


def test_token_ids_no_vocabulary_has_are_no_reason_to_fail():
    policy, workers = PrefixHash(), fleet(3)
    assert choose(policy, workers, [2**40, -1]) in {"w0", "w1", "w2"}
