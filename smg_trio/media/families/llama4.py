"""Llama 4: tiles of the canvas that an image fits best, and the whole image as one more tile."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.media.families.base import Family, Placeholder, Recipe, TensorRule
from smg_trio.media.families.model_numbers import HALF, ModelNumbers
from smg_trio.media.families.plans import BestCanvas, Plan

_TENSORS = (
    TensorRule("pixel_values", "flat", "pixels", keep_on_cpu=False),
    TensorRule("patches_per_image", "batched", "tiles"),
    TensorRule("aspect_ratios", "batched", "grid"),
)


@dataclass(frozen=True, slots=True)
class SeparatedTiles:
    """Tiles with separators between them, then the whole image.

    Attributes:
        count: vectors of one tile.
    """

    embed_id: int
    image_id: int
    start_id: int
    end_id: int
    column_id: int
    row_id: int
    count: int

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """See `Replacement`."""
        view = plan.views[0]
        tile = (self.embed_id,) * self.count
        ids = [self.start_id]
        if plan.tiles > 1:
            for _ in range(view.rows):
                ids += ((*tile, self.column_id) * view.columns)[:-1]
                ids.append(self.row_id)
        ids += (self.image_id, *tile, self.end_id)
        return tuple(ids), bytes(token == self.embed_id for token in ids), (view.rows, view.columns)


def llama4(numbers: ModelNumbers) -> Family:
    """The family of a Llama 4 model; its processor rounds to bfloat16 after each step."""
    numbers.require_defaults(resize_to_max_canvas=False)
    tile, max_tiles = numbers.size().get("height", 336), numbers.number("max_patches", 16)
    ratio = numbers.vision.get("pixel_shuffle_ratio")
    shrink = round(1 / (ratio if isinstance(ratio, float) else 0.5) ** 2)
    side = numbers.vision_number("image_size", 448) // numbers.vision_number("patch_size", 14)
    image_id, count = numbers.token("<|image|>"), side * side // shrink
    return Family(
        name="llama4",
        placeholders={"image": Placeholder("<|image|>", (image_id,))},
        image=Recipe(
            rule=BestCanvas(tile, max_tiles),
            filter=numbers.filter("bilinear"),
            mean=numbers.channels("image_mean", HALF),
            std=numbers.channels("image_std", HALF),
            rescale=numbers.rescale(),
            arithmetic="bfloat16",
            arrangement="tiles",
        ),
        replacement=SeparatedTiles(
            embed_id=numbers.token("<|patch|>", "image_token_index", "image_token_id"),
            image_id=image_id,
            start_id=numbers.token("<|image_start|>", "boi_token_index"),
            end_id=numbers.token("<|image_end|>", "eoi_token_index"),
            column_id=numbers.token("<|tile_x_separator|>"),
            row_id=numbers.token("<|tile_y_separator|>"),
            count=count,
        ),
        tensors=_TENSORS,
        max_embeds=count * (max_tiles + 1 if max_tiles > 1 else 1),
    )
