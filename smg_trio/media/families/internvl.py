"""InternVL, in the layout of transformers and in its original one: a grid of squares and the whole image."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.media.families.base import Family, Placeholder, Recipe, TensorRule
from smg_trio.media.families.model_numbers import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, ModelNumbers
from smg_trio.media.families.plans import Plan, TileGrid


@dataclass(frozen=True, slots=True)
class EnclosedTiles:
    """All tiles' tokens between a start and an end.

    Attributes:
        count: vectors of one tile.
    """

    embed_id: int
    start_id: int
    end_id: int
    count: int

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """See `Replacement`."""
        embeds, view = plan.tiles * self.count, plan.views[0]
        ids = (self.start_id, *(self.embed_id,) * embeds, self.end_id)
        return ids, b"\x00" + b"\x01" * embeds + b"\x00", (view.rows, view.columns)


def internvl(numbers: ModelNumbers) -> Family:
    """The layout of transformers, whose processor always cuts into tiles (``InternVLProcessorKwargs``)."""
    numbers.require_defaults()
    length = numbers.config.get("image_seq_length")
    context = numbers.token("<IMG_CONTEXT>", "image_token_id")
    recipe = Recipe(
        rule=TileGrid(
            numbers.size().get("height", 384), numbers.number("min_patches", 1), numbers.number("max_patches", 12)
        ),
        filter=numbers.filter("bicubic"),
        mean=numbers.channels("image_mean", CLIP_MEAN),
        std=numbers.channels("image_std", CLIP_STD),
        rescale=numbers.rescale(),
        arrangement="tiles",
    )
    count = length if isinstance(length, int) else 256
    placeholder = Placeholder("<IMG_CONTEXT>", (context,))
    return _tiled("internvl", numbers, recipe, placeholder, "pixel_values", count)


def internvl_chat(numbers: ModelNumbers) -> Family:
    """The original layout: no preprocessor's file counts, Pillow resizes, and <image> may be several tokens."""
    config = numbers.config
    tile, patch = numbers.vision_number("image_size", 448), numbers.vision_number("patch_size", 14)
    dynamic = config.get("dynamic_image_size", True)
    recipe = Recipe(
        rule=TileGrid(
            tile,
            int(config.get("min_dynamic_patch", 1)) if dynamic else 1,
            int(config.get("max_dynamic_patch", 6)) if dynamic else 1,
            thumbnail=bool(config.get("use_thumbnail", True)),
            original=True,
        ),
        filter="bicubic",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        kernel="pillow",
        arithmetic="stepwise",
        arrangement="tiles",
    )
    count = int((tile // patch) ** 2 * float(config.get("downsample_ratio", 0.5)) ** 2)
    placeholder = Placeholder("<image>", numbers.encode("<image>"))
    return _tiled("internvl_chat", numbers, recipe, placeholder, "pixel_values_flat", count)


def _tiled(
    name: str, numbers: ModelNumbers, recipe: Recipe, placeholder: Placeholder, pixels: str, count: int
) -> Family:
    rule = recipe.rule
    assert isinstance(rule, TileGrid)
    context = numbers.token("<IMG_CONTEXT>", "image_token_id")
    most = rule.max_tiles + 1 if rule.thumbnail and rule.max_tiles > 1 else rule.max_tiles
    return Family(
        name=name,
        placeholders={"image": placeholder},
        image=recipe,
        replacement=EnclosedTiles(context, numbers.token("<img>"), numbers.token("</img>"), count),
        tensors=(
            TensorRule(pixels, "flat", "pixels", keep_on_cpu=False),
            TensorRule("image_num_patches", "batched", "tiles"),
            TensorRule("image_token_id", "shared", "token"),
        ),
        max_embeds=most * count,
    )
