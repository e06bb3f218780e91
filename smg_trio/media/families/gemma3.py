"""Gemma 3: one square per image, between line feeds that the tokenizer may write together with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.media.families.base import Family, Placeholder, Recipe, TensorRule
from smg_trio.media.families.model_numbers import HALF, ModelNumbers
from smg_trio.media.families.plans import Plan, Stretch

_TENSORS = (
    TensorRule("pixel_values", "flat", "pixels", keep_on_cpu=False),
    TensorRule("num_patches", "batched", "tiles"),
)


@dataclass(frozen=True, slots=True)
class FixedSequence:
    """The same tokens for every image, of which those with one id take vectors."""

    embed_id: int
    ids: tuple[int, ...]

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """See `Replacement`."""
        return self.ids, bytes(token == self.embed_id for token in self.ids), ()


def gemma3(numbers: ModelNumbers) -> Family:
    """The family of a Gemma 3 model. Crops (pan and scan) are not made: vLLM has them off too unless told otherwise."""
    numbers.require_defaults(do_pan_and_scan=False)
    start = numbers.token("<start_of_image>", "boi_token_index", "boi_token_id")
    soft = numbers.token("<image_soft_token>", "image_token_index", "image_token_id")
    count = numbers.config.get("mm_tokens_per_image")
    count = count if isinstance(count, int) else numbers.number("image_seq_length", 256)
    ids = numbers.encode("\n\n<start_of_image>" + "<image_soft_token>" * count + "<end_of_image>\n\n")
    if ids.count(soft) != count:
        raise UnsupportedFeature("the tokenizer does not write <image_soft_token> as the token that config.json names")
    size = numbers.size()
    return Family(
        name="gemma3",
        placeholders={"image": Placeholder("<start_of_image>", (start,))},
        image=Recipe(
            rule=Stretch(size.get("width", 224), size.get("height", 224)),
            filter=numbers.filter("bilinear"),
            mean=numbers.channels("image_mean", HALF),
            std=numbers.channels("image_std", HALF),
            rescale=numbers.rescale(),
            arrangement="tiles",
        ),
        replacement=FixedSequence(soft, ids),
        tensors=_TENSORS,
        max_embeds=count,
        newlines=_newlines(numbers),
    )


def _newlines(numbers: ModelNumbers) -> tuple[int, int, int, int] | None:
    """None for a tokenizer in which one to four line feeds are not one token each."""
    one, two, three, four = (numbers.encode("\n" * count) for count in (1, 2, 3, 4))
    if any(len(ids) != 1 for ids in (one, two, three, four)):
        return None
    return one[0], two[0], three[0], four[0]
