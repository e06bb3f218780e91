"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches in merge blocks, as many as the image's size asks for."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.media.families.base import Family, Placeholder, Recipe, TensorRule
from smg_trio.media.families.model_numbers import CLIP_MEAN, CLIP_STD, ModelNumbers
from smg_trio.media.families.plans import Plan, SmartResize

_TENSORS = (
    TensorRule("pixel_values", "flat", "pixels", keep_on_cpu=False),
    TensorRule("image_grid_thw", "batched", "grid"),
)


@dataclass(frozen=True, slots=True)
class MergedPatches:
    """One token for each merge block."""

    embed_id: int
    patch: int
    merge: int

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """See `Replacement`."""
        view = plan.views[0]
        rows, columns = view.canvas_height // self.patch, view.canvas_width // self.patch
        return (self.embed_id,) * (rows * columns // self.merge**2), None, (1, rows, columns)


def qwen_vl(numbers: ModelNumbers) -> Family:
    """The family of a Qwen model; the defaults are those of transformers' ``Qwen2VLImageProcessor``."""
    numbers.require_defaults()
    patch, merge = numbers.number("patch_size", 14), numbers.number("merge_size", 2)
    size = numbers.size()
    min_pixels = numbers.number("min_pixels", size.get("shortest_edge", size.get("min_pixels", 56 * 56)))
    max_pixels = numbers.number("max_pixels", size.get("longest_edge", size.get("max_pixels", 28 * 28 * 1280)))
    image_id = numbers.token("<|image_pad|>", "image_token_id")
    factor = patch * merge
    return Family(
        name=str(numbers.config["model_type"]),
        placeholders={"image": Placeholder("<|vision_start|><|image_pad|><|vision_end|>", (image_id,))},
        image=Recipe(
            rule=SmartResize(factor, min_pixels, max_pixels),
            filter=numbers.filter("bicubic"),
            mean=numbers.channels("image_mean", CLIP_MEAN),
            std=numbers.channels("image_std", CLIP_STD),
            rescale=numbers.rescale(),
            arrangement="patches",
            patch=patch,
            merge=merge,
            temporal=numbers.number("temporal_patch_size", 2),
        ),
        replacement=MergedPatches(image_id, patch, merge),
        tensors=_TENSORS,
        max_embeds=max(max_pixels // factor**2, 1),
    )
