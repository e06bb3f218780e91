"""``mm_features`` of vLLM's wire, decoded as the real engine does: hardly anything is looked at. Pure.

What fails here closes the real engine's input thread without a word (0.27.1 and 0.32.0, ``v1/serial_utils.py``); what
does not may still end its step loop, see `testing.vision`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from smg_trio.testing.tensors import RAW_VIEW
from smg_trio.testing.vllm_request import Undecodable
from smg_trio.wire.tensors import ITEM_SIZES

_FACTORIES = {
    "batched": {"keep_on_cpu"},
    "flat": {"keep_on_cpu", "slices", "dim"},
    "shared": {"keep_on_cpu", "batch_size"},
}


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor: little-endian, C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def integers(self) -> list[int]:
        """Its elements, of a signed integer dtype."""
        size = ITEM_SIZES[self.dtype]
        starts = range(0, len(self.data), size)
        return [int.from_bytes(self.data[start : start + size], "little", signed=True) for start in starts]


@dataclass(frozen=True, slots=True)
class Element:
    """One input of the model for one item. ``field``: how the engine batches it."""

    field: str
    array: Array


@dataclass(frozen=True, slots=True)
class Item:
    """One feature as it was sent. ``data`` None where the sender takes it to be cached; ``mask``: byte per token."""

    modality: str
    identifier: str
    cache_key: str
    offset: int
    length: int
    mask: bytes | None
    data: Mapping[str, Element] | None


def decode_features(features: Sequence[Mapping[str, Any]] | None, frames: Sequence[bytes]) -> tuple[Item, ...]:
    """The features of a request. Raises Undecodable.

    Args:
        features: as msgpack gives them, extension types not resolved.
        frames: the payload and the auxiliary frames after it.
    """
    try:
        return tuple(_item(feature, frames) for feature in features or ())
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise Undecodable(f"mm_features: {type(error).__name__}: {error}") from None


def _item(feature: Mapping[str, Any], frames: Sequence[bytes]) -> Item:
    position, identifier = feature["mm_position"], feature["identifier"]
    offset, length, mask = position["offset"], position["length"], position.get("is_embed")
    if not (type(identifier) is type(feature["modality"]) is str and type(offset) is type(length) is int):
        raise TypeError("a field of a wrong type")
    data = feature["data"]
    return Item(
        modality=feature["modality"],
        identifier=identifier,
        cache_key=feature.get("mm_hash") or identifier,
        offset=offset,
        length=length,
        mask=None if mask is None else _array(mask, frames).data,
        data=None if data is None else {name: _element(value, frames) for name, value in data.items()},
    )


def _element(element: Mapping[str, Any], frames: Sequence[bytes]) -> Element:
    factory, options = element["field"]
    unknown = options.keys() - _FACTORIES[factory]
    if unknown or (factory == "flat" and "slices" not in options):
        raise TypeError(f"{factory}() with {sorted(options)}")
    return Element(factory, _array(element["data"], frames))


def _array(triple: Any, frames: Sequence[bytes]) -> Array:
    if isinstance(triple, int | float):
        return Array("float64", (), b"")
    dtype, shape, data = triple
    raw = data.data if isinstance(data, msgpack.ExtType) and data.code == RAW_VIEW else bytes(frames[data])
    if math.prod(shape) * ITEM_SIZES[dtype] != len(raw):
        raise ValueError(f"shape {shape} of {dtype} is invalid for input of size {len(raw)}")
    return Array(dtype, tuple(shape), raw)
