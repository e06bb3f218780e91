"""From an RGB image to the tensor that a family's engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from smg_trio.media.pixels.resize import Pixels, resize
from smg_trio.media.pixels.values import value_table

if TYPE_CHECKING:
    from smg_trio.media.families import Recipe
    from smg_trio.media.families.plans import Plan, View

_NUMPY_TYPES: dict[str, Any] = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_PIECE_BYTES: Final = 1 << 19
"""Small enough to stay in the processor's cache until it is sent on."""
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def cut_tiles(image: Image.Image, recipe: Recipe, plan: Plan) -> Pixels:
    """All tiles of a plan, [N, 3, H, W]; an image that is not tiled is one tile."""
    views = [_tiles_of(_canvas(_resized(image, recipe, view), view), view) for view in plan.views]
    return views[0] if len(views) == 1 else np.concatenate(views)


def _resized(image: Image.Image, recipe: Recipe, view: View) -> Pixels:
    filter = _FILTERS[recipe.filter]
    if recipe.kernel == "pillow_passes":
        image = image.resize((view.width, image.height), filter)
    if recipe.kernel != "torchvision":
        resized = np.asarray(image.resize((view.width, view.height), filter))
        return np.ascontiguousarray(resized.transpose(2, 0, 1))

    def rows(top: int, bottom: int) -> Pixels:
        return np.asarray(image.crop((0, top, image.width, bottom)))

    return resize(rows, image.size, (view.width, view.height), recipe.filter)


def _canvas(planes: Pixels, view: View) -> Pixels:
    """Cut out of [3, H, W], or black at the right and below where it is smaller."""
    kept = planes[:, view.top : view.top + view.canvas_height, view.left : view.left + view.canvas_width]
    if kept.shape[1:] == (view.canvas_height, view.canvas_width):
        return kept
    canvas = np.zeros((3, view.canvas_height, view.canvas_width), np.uint8)
    canvas[:, : kept.shape[1], : kept.shape[2]] = kept
    return canvas


def _tiles_of(canvas: Pixels, view: View) -> Pixels:
    """Row by row; a view of the same memory where nothing is cut."""
    height, width = view.canvas_height // view.rows, view.canvas_width // view.columns
    cut = canvas.reshape(3, view.rows, height, view.columns, width).transpose(1, 3, 0, 2, 4)
    return cut.reshape(view.rows * view.columns, 3, height, width)


def tensor_size(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a tensor."""
    return int(np.prod(shape, dtype=np.int64)) * int(np.dtype(_NUMPY_TYPES[dtype]).itemsize)


def tensor_pieces(tiles: Pixels, recipe: Recipe, dtype: str) -> Iterator[npt.NDArray[Any]]:
    """The elements of a tensor in order, piece by piece; each piece is good until the next one.

    Args:
        tiles: of `cut_tiles`; for ``patches`` the frames of one item, [frames, 3, H, W].
        dtype: ``uint8`` for raw pixels, or that of the engine for normalised ones.
    """
    table = None
    if dtype != "uint8":
        table = value_table(recipe.arithmetic, recipe.mean, recipe.std, recipe.rescale, dtype)
    if recipe.arrangement == "patches":
        yield from _patches(tiles, recipe, table)
        return
    for tile in tiles:
        for channel in range(3):
            yield np.ascontiguousarray(_values(tile[channel : channel + 1], table, channel))


def _values(planes: Pixels, table: npt.NDArray[Any] | None, first: int = 0) -> npt.NDArray[Any]:
    """The numbers of [C, H, W] pixels, whose first colour is `first`."""
    if table is None:
        return planes
    values = np.empty(planes.shape, table.dtype)
    for channel, plane in enumerate(planes):
        np.take(table[first + channel], plane, out=values[channel], mode="clip")
    return values


def _patches(frames: Pixels, recipe: Recipe, table: npt.NDArray[Any] | None) -> Iterator[npt.NDArray[Any]]:
    """Patches in the order of merge blocks; each holds its rows of pixels of all colours and frames.

    A row of one patch is copied as one element, since numpy's cost is per element.
    """
    p, m, t = recipe.patch, recipe.merge, recipe.temporal
    count, _, height, width = frames.shape
    itemsize = 1 if table is None else table.dtype.itemsize
    row, block_columns = np.dtype(f"V{p * itemsize}"), width // p // m
    block_row_bytes = p * m * width * 3 * t * itemsize
    together = max(1, _PIECE_BYTES // block_row_bytes)
    for step in range(0, count, t):
        for top in range(0, height // p // m, together):
            block_rows = min(together, height // p // m - top)
            piece = np.empty(block_rows * block_row_bytes, np.uint8)
            target = piece.view(row).reshape(block_rows, block_columns, m, m, 3, t, p)
            for moment in range(t):
                # The last frame is repeated where frames are missing.
                if moment == 0 or step + moment < count:
                    frame = frames[step + moment, :, top * p * m : (top + block_rows) * p * m]
                    source = _values(frame, table).reshape(3, block_rows, m, p, block_columns, m, p).view(row)[..., 0]
                target[..., moment, :] = source.transpose(1, 4, 2, 5, 0, 3)
            yield piece
