"""Reads the numbers of one model out of its ``config.json`` and ``preprocessor_config.json``.

Neither file names what equals a default of transformers, so each reader is given the default of the family's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smg_trio.core.errors import UnsupportedFeature

Encode = Callable[[str], tuple[int, ...]]
"""A text's token ids; names of special tokens become those tokens, and none is added."""

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)

_FILTERS: dict[int, Literal["bicubic", "bilinear"]] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which ``resample`` holds."""


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """The two files of a model, and its tokenizer.

    Attributes:
        config: of ``config.json``.
        preprocessor: of ``preprocessor_config.json``, or what ``processor_config.json`` has under ``image_processor``.
    """

    config: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    encode: Encode

    @property
    def vision(self) -> Mapping[str, Any]:
        """The vision tower's part of the configuration."""
        found = self.config.get("vision_config")
        return found if isinstance(found, Mapping) else {}

    def token(self, text: str, *keys: str) -> int:
        """The id that the config gives under one of the keys, or else the id of the special token.

        Raises:
            UnsupportedFeature: the tokenizer does not have the token.
        """
        for key in keys:
            if isinstance(found := self.config.get(key), int):
                return found
        ids = self.encode(text)
        if len(ids) != 1:
            raise UnsupportedFeature(f"the tokenizer has no token {text!r}, which stands for images of this model")
        return ids[0]

    def number(self, key: str, default: int) -> int:
        """Of the preprocessor's file."""
        found = self.preprocessor.get(key)
        return found if isinstance(found, int) else default

    def vision_number(self, key: str, default: int) -> int:
        """Of the vision tower; a pair of equal sides counts as one number."""
        found = self.vision.get(key)
        if isinstance(found, list | tuple) and found:
            found = found[0]
        return found if isinstance(found, int) else default

    def size(self, key: str = "size") -> Mapping[str, int]:
        """A size of the preprocessor's file; a bare number n stands for n as shortest edge, height and width."""
        found = self.preprocessor.get(key)
        if isinstance(found, int):
            return {"shortest_edge": found, "longest_edge": found, "height": found, "width": found}
        if not isinstance(found, Mapping):
            return {}
        return {name: value for name, value in found.items() if isinstance(value, int)}

    def filter(self, default: Literal["bicubic", "bilinear"]) -> Literal["bicubic", "bilinear"]:
        """The filter that images are resized with. Raises UnsupportedFeature for one that is not known here."""
        found = self.preprocessor.get("resample")
        if found is None:
            return default
        if found not in _FILTERS:
            raise UnsupportedFeature(f"preprocessor_config.json asks for resample {found!r}: only 2 and 3 are known")
        return _FILTERS[found]

    def channels(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Mean or deviation, one number per channel."""
        found = self.preprocessor.get(key)
        if isinstance(found, int | float):
            return (float(found),) * 3
        return tuple(map(float, found)) if isinstance(found, list | tuple) else default

    def rescale(self) -> float:
        """The factor that the processor multiplies by."""
        found = self.preprocessor.get("rescale_factor")
        return float(found) if isinstance(found, int | float) else 1 / 255

    def require_defaults(self, **wanted: bool) -> None:
        """Refuse a model whose preprocessor leaves out a step, or adds one that no rule here has.

        Raises:
            UnsupportedFeature: one of the switches is set otherwise.
        """
        for key, value in {"do_resize": True, "do_rescale": True, "do_normalize": True, **wanted}.items():
            found = self.preprocessor.get(key)
            if isinstance(found, bool) and found is not value:
                raise UnsupportedFeature(f"preprocessor_config.json sets {key} to {found}, which is not supported")
