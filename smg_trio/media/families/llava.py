"""LLaVA 1.5 with a CLIP or SigLIP tower: one size, so that every image is as many tokens."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.media.families.base import Family, Placeholder, Recipe, TensorRule
from smg_trio.media.families.model_numbers import CLIP_MEAN, CLIP_STD, HALF, ModelNumbers
from smg_trio.media.families.plans import CentreCrop, Plan, ResizeRule, Stretch

_TENSORS = (TensorRule("pixel_values", "batched", "pixels", keep_on_cpu=False),)


@dataclass(frozen=True, slots=True)
class FixedCount:
    """The same number of tokens for every image."""

    embed_id: int
    count: int

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """See `Replacement`."""
        return (self.embed_id,) * self.count, None, ()


def llava(numbers: ModelNumbers) -> Family:
    """The family of a LLaVA model whose tower takes squares."""
    image_id = numbers.token("<image>", "image_token_index", "image_token_id")
    siglip = numbers.vision.get("model_type") == "siglip_vision_model"
    count = _token_count(numbers, siglip)
    return Family(
        name="llava",
        placeholders={"image": Placeholder("<image>", (image_id,))},
        image=Recipe(
            rule=_resize_rule(numbers, siglip),
            filter=numbers.filter("bicubic"),
            mean=numbers.channels("image_mean", HALF if siglip else CLIP_MEAN),
            std=numbers.channels("image_std", HALF if siglip else CLIP_STD),
            rescale=numbers.rescale(),
        ),
        replacement=FixedCount(image_id, count),
        tensors=_TENSORS,
        max_embeds=count,
    )


def _resize_rule(numbers: ModelNumbers, siglip: bool) -> ResizeRule:
    if siglip:
        numbers.require_defaults(do_center_crop=False, do_pad=False)
        size = numbers.size()
        return Stretch(size.get("width", 224), size.get("height", 224))
    numbers.require_defaults(do_center_crop=True, do_pad=False)
    size, crop = numbers.size(), numbers.size("crop_size")
    if size and "shortest_edge" not in size:
        raise UnsupportedFeature("preprocessor_config.json gives no shortest edge in size, as CLIP's processor does")
    rule = CentreCrop(size.get("shortest_edge", 224), crop.get("width", 224), crop.get("height", 224))
    if max(rule.crop_width, rule.crop_height) > rule.edge:
        raise UnsupportedFeature("preprocessor_config.json asks for a crop that is larger than the resized image")
    return rule


def _token_count(numbers: ModelNumbers, siglip: bool) -> int:
    """vLLM 0.32: ``clip.py``, ``siglip.py`` and ``vision.get_num_selected_vision_tokens``."""
    side = numbers.vision_number("image_size", 224) // numbers.vision_number("patch_size", 16 if siglip else 32)
    vectors = side * side if siglip else side * side + 1
    strategy = numbers.config.get("vision_feature_select_strategy") or "default"
    if strategy == "full":
        return vectors
    if strategy == "default":
        return vectors - 1
    raise UnsupportedFeature(
        f"config.json asks for vision_feature_select_strategy {strategy!r}, which is not supported"
    )
