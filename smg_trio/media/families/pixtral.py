"""Pixtral's tower, in LLaVA's layout and in Mistral 3: one token per patch, and one that ends each row."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.media.families.base import Family, Placeholder, Recipe, TensorRule
from smg_trio.media.families.model_numbers import CLIP_MEAN, CLIP_STD, ModelNumbers
from smg_trio.media.families.plans import FitLongest, Plan

_TENSORS = (TensorRule("pixel_values", "batched", "pixels", keep_on_cpu=False),)


@dataclass(frozen=True, slots=True)
class PatchRows:
    """Rows of patches; the end of the last row is the end of the image."""

    embed_id: int
    break_id: int
    end_id: int
    patch_width: int
    patch_height: int

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """See `Replacement`."""
        view = plan.views[0]
        rows, columns = view.canvas_height // self.patch_height, view.canvas_width // self.patch_width
        row = (*(self.embed_id,) * columns, self.break_id)
        ids = row * rows
        return (*ids[:-1], self.end_id), (b"\x01" * columns + b"\x00") * rows, (rows, columns)


def pixtral(numbers: ModelNumbers) -> Family:
    """The family of a model in LLaVA's layout with Pixtral's tower."""
    return _patch_rows(numbers, "pixtral", merge=1)


def mistral3(numbers: ModelNumbers) -> Family:
    """The family of a Mistral 3 model, which merges patches into squares."""
    merge = numbers.config.get("spatial_merge_size")
    return _patch_rows(numbers, "mistral3", merge=merge if isinstance(merge, int) else 2)


def _patch_rows(numbers: ModelNumbers, name: str, *, merge: int) -> Family:
    numbers.require_defaults(do_center_crop=False)
    size, patch = numbers.size(), numbers.size("patch_size")
    side = numbers.vision_number("patch_size", 16)
    width, height = patch.get("width", side) * merge, patch.get("height", side) * merge
    longest = size.get("longest_edge", 1024)
    image_id = numbers.token("[IMG]", "image_token_index", "image_token_id")
    return Family(
        name=name,
        placeholders={"image": Placeholder("[IMG]", (image_id,))},
        image=Recipe(
            rule=FitLongest(longest, width, height),
            filter=numbers.filter("bicubic"),
            mean=numbers.channels("image_mean", CLIP_MEAN),
            std=numbers.channels("image_std", CLIP_STD),
            rescale=numbers.rescale(),
        ),
        replacement=PatchRows(image_id, numbers.token("[IMG_BREAK]"), numbers.token("[IMG_END]"), width, height),
        tensors=_TENSORS,
        max_embeds=-(-longest // width) * -(-longest // height),
    )
