"""Processed items that are kept: by bytes, the least recently used go first, forms are kept beside each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.media import MediaTensor, PixelForm
from smg_trio.core.tensors import TensorValue
from smg_trio.media.cache import MediaCache
from smg_trio.media.families import ItemLayout
from smg_trio.media.identity import identifier
from smg_trio.media.items import ProcessedItem

RAW, NORMALISED = frozenset({PixelForm.UINT8}), frozenset({PixelForm.NORMALISED})
LAYOUT = ItemLayout(modality="image", token_ids=(1,), is_embed=None, embeds=1, tiles=1, grid=(), pixels_shape=(3, 1, 1))


def item(name: str, size: int, forms: frozenset[PixelForm] = RAW) -> ProcessedItem:
    tensor = MediaTensor("pixel_values", TensorValue("uint8", (size,), bytes(size)), "batched")
    return ProcessedItem("image", name, LAYOUT, dict.fromkeys(forms, (tensor,)))


@given(st.integers(0, 40), st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 30), st.booleans())))
def test_no_more_is_kept_than_the_limit(limit: int, uses: list[tuple[str, int, bool]]) -> None:
    cache = MediaCache(limit)
    for name, size, raw in uses:
        forms = RAW if raw else NORMALISED
        cache.put(item(name, size, forms))
        assert cache.nbytes <= limit
        kept = [found for key in "abcdef" for one in (RAW, NORMALISED) if (found := cache.get(key, one))]
        assert cache.nbytes == sum(one.nbytes for one in {id(one): one for one in kept}.values())


def test_the_item_used_longest_ago_goes_first() -> None:
    cache = MediaCache(30)
    for name in "abc":
        cache.put(item(name, 10))
    assert cache.get("a", RAW) is not None
    cache.put(item("d", 10))
    assert [cache.get(name, RAW) is not None for name in "abcd"] == [True, False, True, True]


def test_an_item_without_a_wanted_form_is_none_and_forms_add_up() -> None:
    cache = MediaCache(100)
    cache.put(item("a", 10))
    assert cache.get("a", NORMALISED) is None
    cache.put(item("a", 20, NORMALISED))
    assert (found := cache.get("a", RAW | NORMALISED)) is not None
    assert (found.nbytes, cache.nbytes, len(cache)) == (30, 30, 1)


def test_every_input_changes_the_identifier() -> None:
    base = {"modality": "image", "family": "f", "recipe": {"patch": 14}, "model": "m", "dtype": "bfloat16"}
    changed = [
        {**base, "modality": "video"},
        {**base, "family": "g"},
        {**base, "recipe": {"patch": 16}},
        {**base, "model": "n"},
        {**base, "dtype": "float16"},
    ]
    names = {identifier(b"file", **one) for one in (base, *changed)} | {identifier(b"file2", **base)}
    assert len(names) == 7
    assert all(len(name) == 64 for name in names)
    assert identifier(b"file", **base) == identifier(b"file", **{**base, "recipe": {"patch": 14}})
