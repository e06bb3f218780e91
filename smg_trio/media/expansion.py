"""Placeholders in a rendered prompt become the tokens that the engine's encoder fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.errors import MediaPlaceholderMismatch
from smg_trio.core.media import MediaFeature, Modality

if TYPE_CHECKING:
    from smg_trio.media.families import Family, ItemLayout
    from smg_trio.media.items import ProcessedItem


@dataclass(frozen=True, slots=True)
class Expanded:
    """A prompt as an engine gets it.

    Attributes:
        features: sorted by offset, ranges within the prompt that do not overlap.
    """

    token_ids: list[int]
    features: tuple[MediaFeature, ...]


def expand(
    token_ids: Sequence[int], items: Sequence[ProcessedItem], family: Family, *, param: str = "messages"
) -> Expanded:
    """Replace each placeholder by its item's tokens, from left to right in the items' order.

    Args:
        token_ids: the rendered prompt, with one placeholder of its modality for each item.
        items: in document order; modalities may be mixed.
        param: named in the error.

    Raises:
        MediaPlaceholderMismatch: another number of placeholders than items.
    """
    waiting: dict[Modality, deque[ProcessedItem]] = {}
    for item in items:
        waiting.setdefault(item.modality, deque()).append(item)
    places = sorted(
        (start, modality)
        for modality, queue in waiting.items()
        for start in _places(token_ids, family.placeholder_ids(modality), modality, len(queue), param)
    )
    expanded: list[int] = []
    placed: list[tuple[int, ProcessedItem]] = []
    copied = 0
    for start, modality in places:
        item = waiting[modality].popleft()
        expanded += token_ids[copied:start]
        placed.append((len(expanded), item))
        expanded += item.layout.token_ids
        copied = start + len(family.placeholder_ids(modality))
    expanded += token_ids[copied:]
    if family.newlines is not None and placed:
        expanded, moved = merge_newlines(expanded, family.newlines)
        placed = [(moved[offset], item) for offset, item in placed]
    return Expanded(expanded, tuple(_features(placed, family)))


def _places(token_ids: Sequence[int], ids: tuple[int, ...], modality: Modality, wanted: int, param: str) -> list[int]:
    places = list(_find(token_ids, ids))
    if len(places) == wanted:
        return places
    if len(places) > wanted:
        problem = f"the text itself holds the placeholder of the model for {modality} input; remove it"
    else:
        problem = f"the chat template left out {modality} parts of the messages; give them in a user message"
    raise MediaPlaceholderMismatch(
        f"the prompt has {len(places)} {modality} placeholders for {wanted} {modality} parts: {problem}", param=param
    )


def _find(token_ids: Sequence[int], ids: tuple[int, ...]) -> Iterator[int]:
    """Where a sequence begins, without overlaps, from left to right."""
    start, first, length = 0, ids[0], len(ids)
    while True:
        try:
            start = token_ids.index(first, start)
        except ValueError:
            return
        if length == 1 or tuple(token_ids[start : start + length]) == ids:
            yield start
            start += length
        else:
            start += 1


def merge_newlines(token_ids: list[int], newlines: tuple[int, int, int, int]) -> tuple[list[int], list[int]]:
    """Neighbouring line feeds become the one token that the tokenizer would have written.

    Three passes over the whole prompt, as vLLM 0.32 makes them (``gemma3_mm._apply_token_matches``).

    Returns:
        The merged prompt, and for each old position the new one.
    """
    one, two, three, four = newlines
    moved = list(range(len(token_ids)))
    for pair, merged in (((one, two), three), ((two, one), three), ((two, two), four)):
        shorter: list[int] = []
        steps: list[int] = []
        index = 0
        while index < len(token_ids):
            if token_ids[index] == pair[0] and tuple(token_ids[index : index + 2]) == pair:
                steps += [len(shorter)] * 2
                shorter.append(merged)
                index += 2
            else:
                steps.append(len(shorter))
                shorter.append(token_ids[index])
                index += 1
        if len(shorter) < len(token_ids):
            moved = [steps[position] for position in moved]
            token_ids = shorter
    return token_ids, moved


def _features(placed: list[tuple[int, ProcessedItem]], family: Family) -> Iterator[MediaFeature]:
    """Of items with their offsets. Two that share a merged token are given a range each: an engine dies of overlaps."""
    end = 0
    for offset, item in placed:
        yield _feature(item, family, offset, max(end - offset, 0))
        end = offset + len(item.layout.token_ids)


def _feature(item: ProcessedItem, family: Family, offset: int, taken: int) -> MediaFeature:
    layout: ItemLayout = item.layout
    return MediaFeature(
        modality=item.modality,
        identifier=item.identifier,
        offset=offset + taken,
        length=len(layout.token_ids) - taken,
        is_embed=None if layout.is_embed is None else layout.is_embed[taken:],
        embeds=layout.embeds,
        tensors=item.tensors,
        max_embeds=family.max_embeds,
        patches_per_embed=family.patches_per_embed,
    )
