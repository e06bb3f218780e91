"""What an image is resized to, cut into and padded with, in whole numbers: one class per rule of the model families.

Each rule is named in a family's recipe, so that the gateway (which counts tokens) and the helper process (which makes
pixels) compute the same plan. Sizes are pixels; all rules are those of the processors that vLLM 0.32 runs (transformers
5.19, and its own for the original layout of InternVL).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from smg_trio.core.errors import InvalidRequest

MAX_ASPECT_RATIO = 200
"""Of the longer to the shorter side, where the longer one could become any length: a rule of Qwen's processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The image resized, then cut or padded to a canvas, which is cut into tiles row by row.

    Attributes:
        width, height: what the whole image is resized to.
        left, top: the canvas's upper left corner in the resized image.
        canvas_width, canvas_height: what is kept; black where it is larger than the resized image.
        columns, rows: tiles of equal size that the canvas is cut into.
    """

    width: int
    height: int
    left: int = 0
    top: int = 0
    canvas_width: int
    canvas_height: int
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The views of one image, in the order in which their tiles are sent."""

    views: tuple[View, ...]

    @property
    def tiles(self) -> int:
        """Tiles of all views together."""
        return sum(view.columns * view.rows for view in self.views)


def _whole(width: int, height: int, columns: int = 1, rows: int = 1) -> View:
    return View(width=width, height=height, canvas_width=width, canvas_height=height, columns=columns, rows=rows)


def _check_aspect_ratio(width: int, height: int) -> None:
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise InvalidRequest(f"{width}x{height}: absolute aspect ratio must be smaller than {MAX_ASPECT_RATIO}")


class ResizeRule(Protocol):
    """From an image's size to its plan. Raises InvalidRequest for a size that the family does not take."""

    kind: ClassVar[str]

    def plan(self, width: int, height: int) -> Plan:
        """The plan for an image of that size."""
        ...


@dataclass(frozen=True, slots=True)
class SmartResize:
    """Qwen: to multiples of `factor`, the area between two bounds, the aspect ratio about kept."""

    kind: ClassVar[str] = "smart_resize"
    factor: int
    min_pixels: int
    max_pixels: int

    def plan(self, width: int, height: int) -> Plan:
        """See `ResizeRule`."""
        _check_aspect_ratio(width, height)
        f = self.factor
        new_height, new_width = round(height / f) * f, round(width / f) * f
        if new_height * new_width > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            new_height = max(f, math.floor(height / shrink / f) * f)
            new_width = max(f, math.floor(width / shrink / f) * f)
        elif new_height * new_width < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            new_height, new_width = math.ceil(height * grow / f) * f, math.ceil(width * grow / f) * f
        return Plan((_whole(new_width, new_height),))


@dataclass(frozen=True, slots=True)
class CentreCrop:
    """CLIP: the shorter side to `edge`, then a rectangle out of the middle."""

    kind: ClassVar[str] = "centre_crop"
    edge: int
    crop_width: int
    crop_height: int

    def plan(self, width: int, height: int) -> Plan:
        """See `ResizeRule`."""
        _check_aspect_ratio(width, height)
        if width <= height:
            new_width, new_height = self.edge, int(self.edge * height / width)
        else:
            new_width, new_height = int(self.edge * width / height), self.edge
        view = View(
            width=new_width,
            height=new_height,
            left=int((new_width - self.crop_width) / 2.0),
            top=int((new_height - self.crop_height) / 2.0),
            canvas_width=self.crop_width,
            canvas_height=self.crop_height,
        )
        return Plan((view,))


@dataclass(frozen=True, slots=True)
class Stretch:
    """SigLIP and Gemma 3: to one size, whatever the aspect ratio was."""

    kind: ClassVar[str] = "stretch"
    width: int
    height: int

    def plan(self, width: int, height: int) -> Plan:
        """See `ResizeRule`."""
        return Plan((_whole(self.width, self.height),))


@dataclass(frozen=True, slots=True)
class FitLongest:
    """Pixtral: the longer side at most `longest`, then up to multiples of the patch."""

    kind: ClassVar[str] = "fit_longest"
    longest: int
    patch_width: int
    patch_height: int

    def plan(self, width: int, height: int) -> Plan:
        """See `ResizeRule`."""
        ratio = max(height / self.longest, width / self.longest)
        if ratio > 1:
            width, height = max(math.floor(width / ratio), 1), max(math.floor(height / ratio), 1)
        columns, rows = -(-width // self.patch_width), -(-height // self.patch_height)
        return Plan((_whole(columns * self.patch_width, rows * self.patch_height),))


@dataclass(frozen=True, slots=True)
class BestCanvas:
    """Llama 4: onto the canvas of at most `max_tiles` squares that it fits best; black at the right and below."""

    kind: ClassVar[str] = "best_canvas"
    tile: int
    max_tiles: int

    def plan(self, width: int, height: int) -> Plan:
        """See `ResizeRule`."""
        canvas_width, canvas_height = self._canvas(width, height)
        room_width = min(max(width, self.tile), canvas_width)
        room_height = min(max(height, self.tile), canvas_height)
        by_width, by_height = room_width / width, room_height / height
        if by_width < by_height:
            new_width, new_height = room_width, min(math.floor(height * by_width), room_height)
        else:
            new_width, new_height = min(math.floor(width * by_height), room_width), room_height
        tiled = View(
            width=max(new_width, 1),
            height=max(new_height, 1),
            canvas_width=canvas_width,
            canvas_height=canvas_height,
            columns=canvas_width // self.tile,
            rows=canvas_height // self.tile,
        )
        if tiled.columns * tiled.rows == 1:
            return Plan((tiled,))
        return Plan((tiled, _whole(self.tile, self.tile)))

    def _canvas(self, width: int, height: int) -> tuple[int, int]:
        """The smallest canvas that enlarges the image least, else the one that shrinks it least."""
        canvases = [(columns * self.tile, rows * self.tile) for rows, columns in _tile_grids(self.max_tiles)]
        scales = [
            min(_float32(canvas_width / width), _float32(canvas_height / height))
            for canvas_width, canvas_height in canvases
        ]
        enlarging = [scale for scale in scales if scale >= 1]
        chosen = min(enlarging) if enlarging else max(scales)
        fitting = [canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == chosen]
        return min(fitting, key=lambda canvas: canvas[0] * canvas[1])


@lru_cache
def _tile_grids(max_tiles: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns) in the order of transformers' `find_supported_resolutions`: grouped by aspect ratio."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(max_tiles, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                columns = count // rows
                by_ratio.setdefault(rows / columns, []).append((rows, columns))
    return tuple(grid for grids in by_ratio.values() for grid in grids)


def _float32(number: float) -> float:
    """Rounded to single precision, in which Llama 4's processor compares scales."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


@dataclass(frozen=True, slots=True)
class TileGrid:
    """InternVL: the grid of squares whose aspect ratio is closest, and the whole image as a last square.

    Attributes:
        min_tiles, max_tiles: tiles of the grid, without the whole image.
        thumbnail: whether the whole image is added where the grid has more than one tile.
        original: the original layout's order among equals (vLLM's ``processors/internvl.py``), not transformers'.
    """

    kind: ClassVar[str] = "tile_grid"
    tile: int
    min_tiles: int
    max_tiles: int
    thumbnail: bool = True
    original: bool = False

    def plan(self, width: int, height: int) -> Plan:
        """See `ResizeRule`."""
        columns, rows = self._grid(width, height)
        tiled = _whole(columns * self.tile, rows * self.tile, columns, rows)
        if not self.thumbnail or columns * rows == 1:
            return Plan((tiled,))
        return Plan((tiled, _whole(self.tile, self.tile)))

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        ratio, area = width / height, width * height
        best, closest = (1, 1), math.inf
        for columns, rows in _tile_shapes(self.min_tiles, self.max_tiles, self.original):
            distance = abs(ratio - columns / rows)
            if distance < closest:
                best, closest = (columns, rows), distance
            elif distance == closest and area > 0.5 * self.tile * self.tile * columns * rows:
                best = (columns, rows)
        return best


@lru_cache
def _tile_shapes(min_tiles: int, max_tiles: int, original: bool) -> tuple[tuple[int, int], ...]:
    """(columns, rows) by their product.

    Among equal products transformers keeps the order in which they are made, and the original layout that of a Python
    set, which is the same in every process because small integers hash to themselves.
    """
    if original:
        shapes: list[tuple[int, int]] = list(
            {
                (i, j)
                for n in range(min_tiles, max_tiles + 1)
                for i in range(1, n + 1)
                for j in range(1, n + 1)
                if min_tiles <= i * j <= max_tiles
            }
        )
    else:
        sides = range(1, max_tiles + 1)
        shapes = [(i, j) for i in sides for j in sides if min_tiles <= i * j <= max_tiles]
    return tuple(sorted(shapes, key=lambda shape: shape[0] * shape[1]))


_RULES: dict[str, type[Any]] = {
    rule.kind: rule for rule in (SmartResize, CentreCrop, Stretch, FitLongest, BestCanvas, TileGrid)
}


def rule_to_plain(rule: ResizeRule) -> dict[str, Any]:
    """A rule as a map of strings and numbers."""
    return {"kind": rule.kind, **asdict(rule)}  # type: ignore[call-overload]


def rule_from_plain(plain: Mapping[str, Any]) -> ResizeRule:
    """The rule that `rule_to_plain` made a map of. Raises KeyError or TypeError for any other map."""
    numbers = dict(plain)
    rule: ResizeRule = _RULES[numbers.pop("kind")](**numbers)
    return rule
