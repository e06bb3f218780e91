"""The vision side of a fake vLLM engine: what it makes of media, and what it dies of. Pure.

It is as careless as the real one (0.27.1 and 0.32.0, tried with a tiny Qwen2-VL): it ends when numbers do not fit each
other, keeps what it has encoded under an identifier that it believes, and goes on with whatever else is wrong. What it
sees takes part in what it says, so a wrong place, a wrong order or a wrong picture gives another answer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from smg_trio.testing.vllm_media import Array, Element, Item

Arrays = Mapping[str, Array]


class VisionFailed(Exception):
    """The step loop would raise: the engine ends."""


def _qwen_vectors(arrays: Arrays) -> int:
    [pixels] = (array for name, array in arrays.items() if name.startswith("pixel_values"))
    [grid] = (array for name, array in arrays.items() if name.endswith("grid_thw"))
    patches = math.prod(grid.integers())
    if pixels.shape != (patches, QWEN_PATCH_VALUES):
        raise VisionFailed(f"pixels of shape {pixels.shape} for {patches} patches")
    return patches // QWEN_PATCHES_PER_VECTOR


QWEN_PATCH_VALUES = 3 * 2 * 14 * 14
QWEN_PATCHES_PER_VECTOR = 4


@dataclass(frozen=True, slots=True)
class VisionModel:
    """Which tensors a model takes, and how many vectors it makes of them; as it stands, a Qwen2-VL.

    Attributes:
        needs: modality → tensor → (how it is batched, its dimensions).
        vectors: of one item's tensors; raises VisionFailed where they do not fit each other.
        largest_item: vectors of the largest item; the engine makes room for as many.
    """

    needs: Mapping[str, Mapping[str, tuple[str, int]]] = field(
        default_factory=lambda: {
            "image": {"pixel_values": ("flat", 2), "image_grid_thw": ("batched", 1)},
            "video": {"pixel_values_videos": ("flat", 2), "video_grid_thw": ("batched", 1)},
        }
    )
    vectors: Callable[[Arrays], int] = _qwen_vectors
    largest_item: int = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """One item as the model saw it: at which positions of the prompt, and a digest of what it was encoded from."""

    modality: str
    identifier: str
    positions: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What an engine makes of a request's media.

    Attributes:
        pictures: in the order in which they were sent.
        missing: cache keys of items that came without data and are not cached.
        stuck: an item never fits into a step; the request is never answered.
        invalid: pixels that are no numbers: the answer is token 0.
    """

    pictures: tuple[Picture, ...] = ()
    missing: tuple[str, ...] = ()
    stuck: bool = False
    invalid: bool = False

    @property
    def number(self) -> int:
        """What all of it comes to in 32 bits; 0 without media."""
        seen = [(picture.positions, picture.digest) for picture in self.pictures]
        return zlib.crc32(repr(seen).encode()) if seen else 0


NO_SIGHT = Sight()


@dataclass(frozen=True, slots=True)
class _Encoded:
    vectors: int
    digest: str
    invalid: bool


class Vision:
    """One engine's model and caches.

    Args:
        model: None for one that takes text alone.
        normalises: the engine normalises pixels, so that ones that have been are normalised twice.
        budget: most vectors of one step.
        replaces: data that come under a known cache key take the place of what is there (since 0.32).
    """

    def __init__(self, model: VisionModel | None, *, normalises: bool, budget: int, replaces: bool) -> None:
        self._model = model
        self._normalises = normalises
        self._budget = budget
        self._replaces = replaces
        self._received: dict[str, Mapping[str, Element]] = {}
        self._encoded: dict[str, _Encoded] = {}

    def forget_received(self) -> None:
        """Empty the cache of what was sent (``reset_mm_cache``)."""
        self._received.clear()

    def forget_encoded(self) -> None:
        """Empty the cache of what was encoded (``reset_encoder_cache``)."""
        self._encoded.clear()

    def look(self, items: Sequence[Item], prompt_length: int) -> Sight:
        """Take in the media of a request. Raises VisionFailed."""
        if not items:
            return NO_SIGHT
        if self._model is None:
            raise VisionFailed("the model takes no media")
        data = [self._receive(item) for item in items]
        missing = tuple(item.cache_key for item, found in zip(items, data, strict=True) if found is None)
        if missing:
            return Sight(missing=missing)
        encoded = [self._encode(self._model, item, found or {}) for item, found in zip(items, data, strict=True)]
        pictures = [_put(item, one, prompt_length) for item, one in zip(items, encoded, strict=True)]
        _refuse_overlap(items)
        most = max(self._budget, self._model.largest_item)
        stuck = any(one.vectors > most for one in encoded)
        return Sight(tuple(pictures), stuck=stuck, invalid=any(one.invalid for one in encoded))

    def _receive(self, item: Item) -> Mapping[str, Element] | None:
        if item.data is not None and (self._replaces or item.cache_key not in self._received):
            self._received[item.cache_key] = item.data
        return self._received.get(item.cache_key)

    def _encode(self, model: VisionModel, item: Item, data: Mapping[str, Element]) -> _Encoded:
        known = self._encoded.get(item.identifier)
        if known is None:
            known = self._encoded[item.identifier] = self._run(model, item.modality, data)
        return known

    def _run(self, model: VisionModel, modality: str, data: Mapping[str, Element]) -> _Encoded:
        needs = model.needs.get(modality)
        if needs is None:
            raise VisionFailed(f"unknown modality {modality!r}")
        for name, (factory, dims) in needs.items():
            element = data.get(name)
            if element is None:
                raise VisionFailed(f"no {name}")
            # Anything but the right way to batch it gives a tensor of another rank.
            if element.field != factory or len(element.array.shape) != dims:
                raise VisionFailed(f"{name} is {element.field} of shape {element.array.shape}")
        arrays = {name: data[name].array for name in needs}
        digest = blake2b(digest_size=8)
        for name, array in arrays.items():
            twice = self._normalises and array.dtype in ("float32", "float16", "bfloat16")
            values = repr(array.integers()).encode() if array.dtype.startswith("int") else array.data
            digest.update(f"{name} {array.shape} {twice} ".encode() + values)
        invalid = any(_holds_nan(array) for array in arrays.values())
        return _Encoded(model.vectors(arrays), digest.hexdigest(), invalid)


def _put(item: Item, encoded: _Encoded, prompt_length: int) -> Picture:
    """Vectors go to the places in turn: too many places end the engine, too many vectors are left over."""
    mask = item.mask
    if mask is not None and len(mask) != item.length:
        raise VisionFailed(f"mask of {len(mask)} for {item.length} positions")
    places = [item.offset + index for index in range(item.length) if mask is None or mask[index]]
    if len(places) > encoded.vectors:
        raise VisionFailed(
            f"Attempted to assign {encoded.vectors} = {encoded.vectors} multimodal tokens to {len(places)} placeholders"
        )
    seen = tuple(place for place in places if 0 <= place < prompt_length)
    return Picture(item.modality, item.identifier, seen, encoded.digest)


def _refuse_overlap(items: Sequence[Item]) -> None:
    ranges = sorted((item.offset, item.offset + item.length) for item in items)
    for (_, end), (start, _) in pairwise(ranges):
        if start < end:
            raise VisionFailed("all elements of broadcast shape must be non-negative")


_LOOKED_AT_BYTES = 65_536
"""Of each tensor, when looking for values that are no numbers."""


def _holds_nan(array: Array) -> bool:
    if array.dtype != "bfloat16":
        return False
    values = memoryview(array.data[:_LOOKED_AT_BYTES]).cast("H")
    return any(value & 0x7F80 == 0x7F80 and value & 0x7F for value in values)
