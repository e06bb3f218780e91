"""The approximate cache: prompts return to where their beginning is, within bounds of memory and load."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.routing.policies import CacheAware, CacheAwareOptions
from smg_trio.routing.policies.prefix_tree import NODE_TOKENS, PrefixTree
from smg_trio.routing.policies.token_bytes import token_bytes
from tests.routing.policies.fleet import choose, fleet


def prompt(seed: int, length: int) -> list[int]:
    """So many token ids that no other seed has."""
    random = Random(seed)
    return [random.randrange(150_000) for _ in range(length)]


def test_a_conversation_stays_where_its_beginning_is():
    policy, workers = CacheAware(), fleet(4)
    turns = prompt(1, 64)
    first = choose(policy, workers, turns)
    for turn in range(5):
        turns = turns + prompt(100 + turn, 40)
        assert choose(policy, workers, turns) == first


def test_different_conversations_spread_over_the_workers():
    policy, workers = CacheAware(), fleet(4)
    assert {choose(policy, workers, prompt(seed, 64)) for seed in range(4)} == {"w0", "w1", "w2", "w3"}


@pytest.mark.parametrize(("rest", "goes_home"), [(50, True), (100, False)])
def test_a_match_below_the_threshold_does_not_count(rest, goes_home):
    policy, workers = CacheAware(CacheAwareOptions(cache_threshold=0.5)), fleet(2)
    shared = prompt(1, 64)
    first = choose(policy, workers, shared)
    for worker in workers:
        worker.load = 1.0 if worker.name == first else 0.0
    assert (choose(policy, workers, shared + prompt(2, rest)) == first) is goes_home


def test_prompts_shorter_than_a_block_go_to_the_least_loaded():
    policy, workers = CacheAware(), fleet(2)
    workers[0].load = 1.0
    assert {choose(policy, workers, prompt(1, 15)) for _ in range(4)} == {"w1"}


def test_a_worker_far_busier_than_the_rest_gives_its_prompts_away():
    policy, workers = CacheAware(), fleet(2)
    shared = prompt(1, 64)
    holder = next(worker for worker in workers if worker.name == choose(policy, workers, shared))
    holder.load = 8.0  # mean 4: within 4 requests of it
    assert choose(policy, workers, shared) == holder.name
    holder.load = 10.0  # mean 5: above by more than two standard deviations, and 1.5 times the mean
    assert choose(policy, workers, shared) != holder.name


def test_of_several_holders_the_less_loaded_one_is_taken():
    policy, workers = CacheAware(), fleet(2)
    shared = prompt(1, 64)
    first = choose(policy, workers, shared)
    (holder,) = [worker for worker in workers if worker.name == first]
    holder.load = 50.0
    assert choose(policy, workers, shared) != first
    workers[0].load, workers[1].load = 0.0, 1.0
    assert choose(policy, workers, shared) == "w0"
    workers[0].load = 2.0
    assert choose(policy, workers, shared) == "w1"


def test_what_a_removed_worker_had_is_forgotten():
    policy, workers = CacheAware(), fleet(3)
    shared = prompt(1, 64)
    holder = choose(policy, workers, shared)
    policy.forget(holder)
    for worker in workers:
        worker.load = 1.0 if worker.name == holder else 0.0
    assert choose(policy, workers, shared) != holder


def test_a_worker_that_is_not_ready_is_not_chosen_for_what_it_has():
    policy, workers = CacheAware(), fleet(3)
    shared = prompt(1, 64)
    holder = choose(policy, workers, shared)
    assert choose(policy, [worker for worker in workers if worker.name != holder], shared) != holder


def test_models_do_not_share_a_tree():
    policy, ours, theirs = CacheAware(), fleet(2), fleet(2, "other")
    shared = prompt(1, 64)
    holder = choose(policy, ours, shared)
    for worker in theirs:
        worker.load = 1.0 if worker.name == holder else 0.0
    assert choose(policy, theirs, shared) != holder


def test_ids_that_do_not_fit_the_tree_are_no_reason_to_fail():
    policy, workers = CacheAware(), fleet(2)
    assert choose(policy, workers, [2**32] * 100) in {"w0", "w1"}


def test_the_tree_never_exceeds_its_size():
    tree = PrefixTree(max_tokens=5000, block_tokens=16)
    for seed in range(200):
        data = token_bytes(prompt(seed, 16 * (1 + seed % 30)))
        tree.claim(data, tree.find(data), 1)
        assert tree.tokens <= 5000
    assert 5000 // (480 + NODE_TOKENS) <= len(tree) <= 5000 // (16 + NODE_TOKENS)


def test_a_prompt_larger_than_the_tree_leaves_it_empty():
    tree = PrefixTree(max_tokens=300, block_tokens=16)
    data = token_bytes(prompt(1, 512))
    tree.claim(data, tree.find(data), 1)
    assert (tree.tokens, len(tree)) == (0, 0)


def test_the_longest_unused_prompt_goes_first():
    tree = PrefixTree(max_tokens=4 * (64 + NODE_TOKENS), block_tokens=16)
    prompts = [token_bytes(prompt(seed, 64)) for seed in range(5)]
    for data in prompts[:4]:
        tree.claim(data, [], 1)
    tree.claim(prompts[0], tree.find(prompts[0]), 1)
    tree.claim(prompts[4], [], 1)
    assert [bool(tree.find(data)) for data in prompts] == [True, False, True, True, True]


def known_blocks(seen: list[list[int]], asked: list[int]) -> int:
    """How many blocks of two tokens the tree should know, by comparing with every prompt."""
    best = 0
    for other in seen:
        blocks = 0
        while (blocks + 1) * 2 <= min(len(other), len(asked)) and (
            other[blocks * 2 : blocks * 2 + 2] == asked[blocks * 2 : blocks * 2 + 2]
        ):
            blocks += 1
        best = max(best, blocks)
    return best


few_tokens = st.lists(st.integers(0, 2), min_size=0, max_size=14)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(few_tokens, st.integers(0, 2)), max_size=14))
def test_the_tree_knows_of_each_owner_exactly_the_blocks_it_was_given(requests):
    tree = PrefixTree(max_tokens=10**9, block_tokens=2)
    seen: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}
    for token_ids, owner in requests:
        data = token_bytes(token_ids)
        path = tree.find(data)
        for other, prompts in seen.items():
            owned = max((end for node, end in path if node.owners & (1 << other)), default=0)
            assert owned // 8 == known_blocks(prompts, token_ids)
        tree.claim(data, path, 1 << owner)
        seen[owner].append(token_ids)
    for owner in seen:
        tree.forget(1 << owner)
    assert (tree.tokens, len(tree)) == (0, 0)


def test_a_thousand_tokens_cost_microseconds():
    policy, workers = CacheAware(), fleet(4)
    shared = prompt(0, 512)
    prompts = [shared + prompt(seed, 512) for seed in range(1, 201)]
    best = float("inf")
    for start in range(0, 200, 20):
        began = process_time()
        for one in prompts[start : start + 20]:
            choose(policy, workers, one)
        best = min(best, (process_time() - began) / 20)
    assert best < 200e-6  # about 15 µs on an idle machine; the bound only catches another order of growth
