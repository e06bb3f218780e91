"""Placeholders in prompts: counted, replaced from left to right, and merged with their neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import MediaPlaceholderMismatch
from smg_trio.media.expansion import expand, merge_newlines
from smg_trio.media.families import Family, ItemLayout, Placeholder, Recipe
from smg_trio.media.families.gemma3 import FixedSequence
from smg_trio.media.families.plans import Stretch
from smg_trio.media.items import ProcessedItem

IMAGE, VIDEO = 900, 901
ONE, TWO, THREE, FOUR = 911, 912, 913, 914


def family(ids: tuple[int, ...] = (IMAGE,), newlines: tuple[int, int, int, int] | None = None) -> Family:
    return Family(
        name="test",
        placeholders={"image": Placeholder("<image>", ids), "video": Placeholder("<video>", (VIDEO,))},
        image=Recipe(rule=Stretch(8, 8), filter="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3),
        replacement=FixedSequence(7, (7,)),
        tensors=(),
        max_embeds=100,
        newlines=newlines,
    )


def item(name: str, *ids: int, modality: str = "image") -> ProcessedItem:
    layout = ItemLayout(
        modality=modality,  # type: ignore[arg-type]
        token_ids=ids,
        is_embed=bytes(id_ == 7 for id_ in ids),
        embeds=ids.count(7),
        tiles=1,
        grid=(),
        pixels_shape=(3, 8, 8),
    )
    return ProcessedItem(layout.modality, name, layout, {})


words = st.lists(st.integers(0, 50), max_size=6)
replacements = st.lists(st.integers(7, 9), min_size=1, max_size=6)


@given(st.lists(st.tuples(words, replacements, st.sampled_from(["image", "video"])), max_size=6), words)
def test_each_placeholder_becomes_its_items_tokens(
    parts: list[tuple[list[int], list[int], str]], end: list[int]
) -> None:
    prompt: list[int] = []
    expected: list[int] = []
    ranges = []
    for text, ids, modality in parts:
        prompt += [*text, IMAGE if modality == "image" else VIDEO]
        ranges.append((len(expected) + len(text), len(ids)))
        expected += [*text, *ids]
    items = [item(str(place), *ids, modality=modality) for place, (_, ids, modality) in enumerate(parts)]
    expanded = expand(prompt + end, items, family())
    assert expanded.token_ids == expected + end
    assert [(one.offset, one.length) for one in expanded.features] == ranges
    assert [one.identifier for one in expanded.features] == [str(place) for place in range(len(parts))]
    assert all(one.is_embed is not None and len(one.is_embed) == one.length for one in expanded.features)


def test_a_placeholder_of_several_tokens_is_one_only_as_a_whole() -> None:
    expanded = expand([1, 2, 1, 2, 3, 1, 2, 3, 3], [item("a", 7), item("b", 7, 7)], family((1, 2, 3)))
    assert expanded.token_ids == [1, 2, 7, 7, 7, 3]
    assert [(one.offset, one.length) for one in expanded.features] == [(2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("prompt", "items", "problem"),
    [
        ([1, IMAGE, IMAGE], 1, "2 image placeholders for 1 image parts: the text itself holds the placeholder"),
        ([1, IMAGE], 2, "1 image placeholders for 2 image parts: the chat template left out"),
        ([1], 1, "0 image placeholders"),
    ],
)
def test_another_number_of_placeholders_is_refused(prompt: list[int], items: int, problem: str) -> None:
    with pytest.raises(MediaPlaceholderMismatch, match=problem) as caught:
        expand(prompt, [item("a", 7)] * items, family(), param="messages[1]")
    assert (caught.value.param, caught.value.code) == ("messages[1]", "multimodal_prompt_contract_mismatch")


def test_without_media_a_typed_placeholder_is_text() -> None:
    assert expand([1, IMAGE, 2], [], family()).token_ids == [1, IMAGE, 2]


NEWLINES = (ONE, TWO, THREE, FOUR)
SEQUENCE = (TWO, 20, 7, 7, 21, TWO)


@pytest.mark.parametrize(
    ("prompt", "expanded", "ranges"),
    [
        # Text around: nothing to merge.
        ([1, IMAGE, 2], [1, *SEQUENCE, 2], [(1, 6)]),
        # A line feed before, after, or two of them.
        ([1, ONE, IMAGE, 2], [1, THREE, 20, 7, 7, 21, TWO, 2], [(1, 6)]),
        ([1, IMAGE, ONE, 2], [1, TWO, 20, 7, 7, 21, THREE, 2], [(1, 6)]),
        ([IMAGE, TWO, 2], [TWO, 20, 7, 7, 21, FOUR, 2], [(0, 6)]),
        # Two images share a merged token, which belongs to the first.
        ([IMAGE, IMAGE], [TWO, 20, 7, 7, 21, FOUR, 20, 7, 7, 21, TWO], [(0, 6), (6, 5)]),
        ([IMAGE, ONE, IMAGE], [TWO, 20, 7, 7, 21, TWO, THREE, 20, 7, 7, 21, TWO], [(0, 6), (6, 6)]),
    ],
)
def test_line_feeds_merge_and_ranges_never_overlap(
    prompt: list[int], expanded: list[int], ranges: list[tuple[int, int]]
) -> None:
    found = expand(prompt, [item("a", *SEQUENCE)] * prompt.count(IMAGE), family(newlines=NEWLINES))
    assert found.token_ids == expanded
    assert [(one.offset, one.length) for one in found.features] == ranges
    for one in found.features:
        ids = found.token_ids[one.offset : one.offset + one.length]
        assert one.is_embed == bytes(id_ == 7 for id_ in ids)


@given(st.lists(st.sampled_from([ONE, TWO, 1]), max_size=30))
def test_merging_keeps_the_text_and_says_where_each_token_went(token_ids: list[int]) -> None:
    lengths = {ONE: 1, TWO: 2, THREE: 3, FOUR: 4}
    merged, moved = merge_newlines(list(token_ids), NEWLINES)

    def text(ids: list[int]) -> str:
        return "".join("\n" * lengths[id_] if id_ in lengths else "x" for id_ in ids)

    assert text(merged) == text(token_ids)
    assert len(moved) == len(token_ids)
    assert moved == sorted(moved)
    assert all(merged[new] == id_ for id_, new in zip(token_ids, moved, strict=True) if id_ == 1)
