"""From bytes 0 to 255 to the numbers of an engine that does not normalise: one table of 256 numbers per colour.

All arithmetic runs over the 256 values alone, with the operations and in the precision of the family's processor, so
that what is looked up is bit for bit what it would compute for each pixel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Arithmetic = Literal["fused", "stepwise", "bfloat16"]
_BYTES = np.arange(256, dtype=np.float32)


@lru_cache(maxsize=16)
def value_table(
    arithmetic: Arithmetic, mean: tuple[float, ...], std: tuple[float, ...], rescale: float, dtype: str
) -> npt.NDArray[Any]:
    """[3, 256] in the dtype; bfloat16 as uint16 of the same bits. Raises ValueError for another dtype."""
    values = _ARITHMETIC[arithmetic](_column(mean), _column(std), rescale)
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16)
    if dtype == "bfloat16":
        return _bfloat16_bits(values)
    raise ValueError(f"no table for dtype {dtype}")


def _column(numbers: tuple[float, ...]) -> npt.NDArray[np.float32]:
    return np.asarray(numbers, np.float32)[:, None]


def _fused(mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32], rescale: float) -> npt.NDArray[np.float32]:
    """torchvision's processors of transformers: mean and deviation are scaled instead of the pixels."""
    factor = np.float32(1.0 / rescale)
    values: npt.NDArray[np.float32] = (_BYTES - mean * factor) / (std * factor)
    return values


def _stepwise(mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32], rescale: float) -> npt.NDArray[np.float32]:
    """torchvision's ToTensor, then Normalize."""
    del rescale
    values: npt.NDArray[np.float32] = (_BYTES / np.float32(255) - mean) / std
    return values


def _rounded(mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32], rescale: float) -> npt.NDArray[np.float32]:
    """Llama 4: each step in bfloat16."""
    scaled = _round_to_bfloat16(_BYTES * np.float32(rescale))
    shifted = _round_to_bfloat16(scaled - _round_to_bfloat16(mean))
    return _round_to_bfloat16(shifted / _round_to_bfloat16(std))


_ARITHMETIC = {"fused": _fused, "stepwise": _stepwise, "bfloat16": _rounded}


def _bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even. For finite numbers."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return (_bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32)
