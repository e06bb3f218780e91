"""Model families that take images: which one a model is of, and what its engine expects.

One module per family builds a `Family` from the model's files. All of it is arithmetic on whole numbers and token ids:
nothing here loads numpy or Pillow, so that the gateway can count an image's tokens by its size alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smg_trio.media.families.base import Family, ItemLayout, Placeholder, Recipe, TensorRule
from smg_trio.media.families.gemma3 import gemma3
from smg_trio.media.families.internvl import internvl, internvl_chat
from smg_trio.media.families.llama4 import llama4
from smg_trio.media.families.llava import llava
from smg_trio.media.families.model_numbers import Encode, ModelNumbers
from smg_trio.media.families.pixtral import mistral3, pixtral
from smg_trio.media.families.qwen import qwen_vl

__all__ = ["Encode", "Family", "ItemLayout", "Placeholder", "Recipe", "TensorRule", "find_family"]

_BUILDERS: dict[str, Callable[[ModelNumbers], Family]] = {
    "qwen2_vl": qwen_vl,
    "qwen2_5_vl": qwen_vl,
    "qwen3_vl": qwen_vl,
    "qwen3_vl_moe": qwen_vl,
    "qwen3_5": qwen_vl,
    "qwen3_5_moe": qwen_vl,
    "llava": llava,
    "mistral3": mistral3,
    "gemma3": gemma3,
    "llama4": llama4,
    "internvl": internvl,
    "internvl_chat": internvl_chat,
}
"""By ``model_type`` of ``config.json``."""


def find_family(config: Mapping[str, Any], preprocessor: Mapping[str, Any], tokens: Encode) -> Family | None:
    """The family of a model, with its numbers; None for a model that takes no images, or of no family known here.

    Args:
        config: of ``config.json``.
        preprocessor: of ``preprocessor_config.json``, or of ``processor_config.json`` where that has the part
            ``image_processor``; empty where the model has neither.
        tokens: a text's ids without any that the tokenizer adds.

    Raises:
        UnsupportedFeature: the model is of a known family, but asks for a step that is not built.
    """
    model_type = config.get("model_type")
    builder = _BUILDERS.get(model_type) if isinstance(model_type, str) else None
    if builder is None or not isinstance(config.get("vision_config"), Mapping):
        return None
    nested = preprocessor.get("image_processor")
    numbers = ModelNumbers(config, nested if isinstance(nested, Mapping) else preprocessor, tokens)
    vision = config["vision_config"]
    if builder is llava and vision.get("model_type") == "pixtral":
        builder = pixtral
    return builder(numbers)
