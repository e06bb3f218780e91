"""Prompts with media, as policies see them: by what is in them, not by their placeholders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.routing.policies import CacheAware, PrefixHash, make_policy
from smg_trio.routing.policies.media_tokens import with_media
from smg_trio.testing.pictures import qwen_picture
from tests.routing.policies.fleet import choose, fleet

GRID = (1, 20, 20)
LENGTH = 100
VOCABULARY = 1 << 31


def prompt(*seeds: int, text: int = 7) -> list[int]:
    """Text, a picture, text, a picture, …"""
    media = [qwen_picture(seed, 5 + (LENGTH + 5) * n, grid=GRID, forms=()) for n, seed in enumerate(seeds)]
    return with_media([text] * (5 + (LENGTH + 5) * len(seeds) + 20), media)


@given(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=4))
def test_prompts_agree_as_far_as_their_media_do(one: list[int], other: list[int]) -> None:
    first, second = prompt(*one), prompt(*other)
    assert len(first) == 25 + (LENGTH + 5) * len(one)
    common = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    agree = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if one == other:
        assert first == second
    elif common < min(len(one), len(other)):
        assert agree == 5 + (LENGTH + 5) * common


def test_text_stays_as_it_is_and_no_vocabulary_has_the_rest() -> None:
    seen = prompt(1)
    assert seen[:5] == [7] * 5
    assert seen[5 + LENGTH :] == [7] * 25
    assert min(seen[5 : 5 + LENGTH]) >= VOCABULARY
    assert max(seen) < 1 << 32
    assert prompt() == [7] * 25


@pytest.mark.parametrize("name", ["cache_aware", "prefix_hash"])
def test_the_same_pictures_go_to_the_same_engine(name: str) -> None:
    policy, workers = make_policy(name), fleet(4)
    homes = {seed: choose(policy, workers, prompt(seed)) for seed in range(12)}
    assert len(set(homes.values())) > 1
    for seed, home in homes.items():
        assert choose(policy, workers, prompt(seed)) == home
    # A further turn of the conversation begins with the same picture.
    if name == "cache_aware":
        assert {choose(policy, workers, prompt(seed, 99)) == home for seed, home in homes.items()} == {True}


def test_two_pictures_are_no_common_prefix() -> None:
    policy, workers = CacheAware(), fleet(2)
    first = choose(policy, workers, prompt(1))
    statistics = policy.statistics().cache
    assert statistics is not None
    choose(policy, workers, prompt(2))
    after = policy.statistics().cache
    assert after is not None
    assert after.branches["tree_match"] == 0
    assert choose(policy, workers, prompt(1)) == first
    assert choose(PrefixHash(), workers, prompt(1)) == choose(PrefixHash(), workers, prompt(1))
