from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.testing.prefix_cache import PrefixCache

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=8)


def test_a_prompt_seen_before_is_held_but_for_its_last_token() -> None:
    cache = PrefixCache(capacity_blocks=100, block_size=4)
    prompt = list(range(8))
    assert cache.take(prompt) == 0
    assert cache.take(prompt) == 4
    assert cache.take([*prompt, 9]) == 8


def test_another_salt_shares_nothing() -> None:
    cache = PrefixCache(capacity_blocks=100, block_size=2)
    cache.take([1, 2, 3], salt="one")
    assert cache.take([1, 2, 3], salt="two") == 0
    assert cache.take([1, 2, 3], salt="one") == 2


def test_reading_can_be_declined_and_clearing_forgets() -> None:
    cache = PrefixCache(capacity_blocks=100, block_size=2)
    cache.take([1, 2, 3])
    assert cache.take([1, 2, 3], read=False) == 0
    assert cache.take([1, 2, 3]) == 2
    cache.clear()
    assert cache.take([1, 2, 3]) == 0


def test_the_least_recently_used_block_goes_first() -> None:
    cache = PrefixCache(capacity_blocks=2, block_size=2)
    cache.take([1, 1, 0])
    cache.take([2, 2, 0])
    cache.take([1, 1, 0])
    cache.take([3, 3, 0])
    assert cache.take([1, 1, 0]) == 2
    assert cache.take([2, 2, 0]) == 0


@settings(max_examples=100)
@given(PROMPTS)
def test_hits_are_whole_blocks_of_the_longest_prefix_seen(prompts: list[list[int]]) -> None:
    size, seen = 3, []
    cache = PrefixCache(capacity_blocks=10_000, block_size=size)
    for prompt in prompts:
        longest = max(
            (
                blocks
                for other in seen
                for blocks in range(len(other) // size + 1)
                if other[: blocks * size] == prompt[: blocks * size] and blocks * size < len(prompt)
            ),
            default=0,
        )
        assert cache.take(prompt) == longest * size
        seen.append(prompt)
