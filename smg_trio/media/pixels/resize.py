"""Resizes as torchvision's uint8 kernel for CPUs does, byte for byte, by banded matrix products.

The kernel (``UpSampleKernel.cpp`` of PyTorch 2.13, antialias on) resizes the width first, then the height, and rounds
to bytes in between. Each output is a weighted sum of neighbouring inputs with integer weights of a common precision.
Here each pass multiplies blocks of inputs with a small matrix of these weights, in floating point: every product and
partial sum is an integer (times a power of two) that the type holds, so that nothing is rounded and the order of the
additions, which the BLAS library chooses, does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Filter = Literal["bicubic", "bilinear"]

_MAX_PRECISION = 22
_CENTRE = 128
"""Taken off each input before it is multiplied, so that twice as large weights stay exact in single precision."""
_ROWS = 256
"""Rows that are taken at a time; bounds the memory, and they stay in the cache."""
_BLOCK = 16
"""Outputs per matrix product: more waste multiplications with zeros, fewer make the calls themselves count."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Outputs start to end as a product with inputs low to high."""

    start: int
    end: int
    low: int
    high: int
    weights: npt.NDArray[np.floating]
    bias: npt.NDArray[np.floating]


Rows = Callable[[int, int], Pixels]
"""Of an image, from one row to another: [rows, W, 3]."""


def resize(rows: Rows, size: tuple[int, int], new_size: tuple[int, int], filter: Filter) -> Pixels:
    """To another size, as [3, height, width].

    Args:
        rows: of the image, which is asked for a few at a time, so that they need little memory.
        size, new_size: width and height.
    """
    planes = np.empty((3, size[1], new_size[0]), np.uint8)
    blocks = _blocks(size[0], new_size[0], filter) if size[0] != new_size[0] else []
    for top in range(0, size[1], _ROWS):
        bottom = min(top + _ROWS, size[1])
        band = rows(top, bottom).transpose(2, 0, 1)
        if blocks:
            _resize_width(band, blocks, planes[:, top:bottom])
        else:
            planes[:, top:bottom] = band
    return _resize_height(planes, new_size[1], filter) if size[1] != new_size[1] else planes


def _resize_width(planes: Pixels, blocks: list[_Block], place: Pixels) -> None:
    kind = blocks[0].weights.dtype
    bias = np.concatenate([block.bias for block in blocks])
    sums = np.empty(place.shape[1:], kind)
    for channel in range(3):
        values = np.subtract(planes[channel], kind.type(_CENTRE), dtype=kind, order="C")
        for block in blocks:
            np.matmul(values[:, block.low : block.high], block.weights.T, out=sums[:, block.start : block.end])
        sums += bias
        _round_into(place[channel], sums)


def _resize_height(planes: Pixels, height: int, filter: Filter) -> Pixels:
    blocks = _blocks(planes.shape[1], height, filter)
    kind = blocks[0].weights.dtype
    result = np.empty((3, height, planes.shape[2]), np.uint8)
    for channel in range(3):
        for block in blocks:
            values = np.subtract(planes[channel, block.low : block.high], kind.type(_CENTRE), dtype=kind)
            sums = block.weights @ values
            sums += block.bias[:, None]
            _round_into(result[channel, block.start : block.end], sums)
    return result


def _round_into(place: Pixels, sums: npt.NDArray[np.floating]) -> None:
    """Downwards; what is added to each sum holds the half."""
    np.clip(sums, 0, 255, out=sums)
    np.copyto(place, sums, casting="unsafe")


@lru_cache(maxsize=64)
def _blocks(n_in: int, n_out: int, filter: Filter) -> list[_Block]:
    """The matrices of one pass."""
    lows, weights, precision = _integer_weights(n_in, n_out, filter)
    # Single precision holds every integer up to 2^24.
    kind = np.dtype(np.float32 if np.abs(weights).sum(1).max() * _CENTRE < 1 << 24 else np.float64)
    taps = np.arange(weights.shape[1])
    last = np.where(weights.any(1), (np.where(weights != 0, taps, 0)).max(1), 0)
    highs = np.minimum(lows + last + 1, n_in)
    bias = np.ldexp(weights.sum(1, dtype=np.int64) * _CENTRE + (1 << (precision - 1)), -precision)
    scaled = np.ldexp(weights.astype(np.float64), -precision)
    blocks = []
    for start in range(0, n_out, _BLOCK):
        end = min(start + _BLOCK, n_out)
        low, high = int(lows[start:end].min()), int(highs[start:end].max())
        matrix = np.zeros((end - start, high - low), kind)
        for row in range(start, end):
            count = int(last[row]) + 1
            matrix[row - start, lows[row] - low : lows[row] - low + count] = scaled[row, :count]
        blocks.append(_Block(start, end, low, high, matrix, bias[start:end].astype(kind)))
    return blocks


def _integer_weights(n_in: int, n_out: int, filter: Filter) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
    """For each output the first input, the weights from there on, and how many bits are behind their point."""
    function, taps = (_cubic, 4) if filter == "bicubic" else (_triangle, 2)
    scale = n_in / n_out
    support = taps * 0.5 * max(scale, 1.0)
    inverse = 1 / scale if scale >= 1 else 1.0
    most = math.ceil(support) * 2 + 1
    centres = scale * (np.arange(n_out) + 0.5)
    lows = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    counts = np.clip(np.minimum((centres + support + 0.5).astype(np.int64), n_in) - lows, 0, most)
    steps = np.arange(most)[None]
    real = function((steps + lows[:, None] - centres[:, None] + 0.5) * inverse)
    real = np.where(steps < counts[:, None], real, 0.0)
    real /= real.sum(1, keepdims=True)
    precision = _precision(float(real.max()))
    scaled = real * (1 << precision)
    return lows, np.where(scaled < 0, np.trunc(scaled - 0.5), np.trunc(scaled + 0.5)).astype(np.int32), precision


def _precision(largest: float) -> int:
    """As many bits as leave every weight within 16 bits with its sign."""
    precision = 0
    while precision < _MAX_PRECISION and int(0.5 + largest * (1 << (precision + 1))) < 1 << 15:
        precision += 1
    return precision


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    a = -0.5
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _triangle(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = np.abs(x)
    return np.where(x < 1, 1 - x, 0.0)
