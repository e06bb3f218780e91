"""What a model family is: data about placeholders, resizing, arithmetic and tensors, behind one interface."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.media import MediaTensor, Modality
from smg_trio.core.tensors import TensorValue
from smg_trio.media.families.plans import Plan, ResizeRule, rule_from_plain, rule_to_plain


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What stands for one item before expansion.

    Attributes:
        text: what a template that takes only strings is given at the item's place.
        ids: the token ids that are replaced, matched as a sequence; `text` may have more around them.
    """

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLayout:
    """How one item stands in the prompt and what shapes its tensors have.

    Attributes:
        token_ids: replace the placeholder's ids.
        is_embed: one byte (0 or 1) for each of `token_ids`; None where each takes a vector.
        embeds: vectors that the engine's encoder makes of the item.
        tiles: pictures that the encoder is given for it: 1, or tiles plus the whole.
        grid: rows and columns of what the family counts: Qwen (frames / temporal patch, rows, columns of patches),
            Llama 4 and InternVL (rows, columns of tiles), else empty.
        pixels_shape: of the tensor of pixels.
    """

    modality: Modality
    token_ids: tuple[int, ...]
    is_embed: bytes | None
    embeds: int
    tiles: int
    grid: tuple[int, ...]
    pixels_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that shapes an item's pixels; the helper process gets it as plain numbers.

    Attributes:
        rule: what the image is resized to.
        filter: of the resize.
        kernel: ``torchvision`` (its uint8 kernel for CPUs: width before height), ``pillow`` (one call of Pillow's) or
            ``pillow_passes`` (two calls, width before height: within 2 levels of torchvision's).
        arithmetic: how values are normalised: ``fused`` (torchvision's rescale and normalise in one step),
            ``stepwise`` (divided by 255, then mean and deviation, in single precision) or ``bfloat16`` (each of these
            three steps rounded to bfloat16).
        arrangement: ``image`` [3, H, W], ``tiles`` [N, 3, H, W], or ``patches`` [rows of patches, 3*T*P*P] in the order
            of merge blocks.
        patch, merge, temporal: side of a patch, patches per side of a merge block, frames per patch; for ``patches``.
    """

    rule: ResizeRule
    filter: Literal["bicubic", "bilinear"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: float = 1 / 255
    kernel: Literal["torchvision", "pillow", "pillow_passes"] = "torchvision"
    arithmetic: Literal["fused", "stepwise", "bfloat16"] = "fused"
    arrangement: Literal["image", "tiles", "patches"] = "image"
    patch: int = 0
    merge: int = 0
    temporal: int = 1

    def to_plain(self) -> dict[str, Any]:
        """As a map of strings, numbers and lists."""
        return {
            "rule": rule_to_plain(self.rule),
            "filter": self.filter,
            "mean": list(self.mean),
            "std": list(self.std),
            "rescale": self.rescale,
            "kernel": self.kernel,
            "arithmetic": self.arithmetic,
            "arrangement": self.arrangement,
            "patch": self.patch,
            "merge": self.merge,
            "temporal": self.temporal,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The recipe that `to_plain` made a map of."""
        numbers = dict(plain)
        numbers["rule"] = rule_from_plain(numbers["rule"])
        numbers["mean"], numbers["std"] = tuple(numbers["mean"]), tuple(numbers["std"])
        return cls(**numbers)

    def pixels_shape(self, plan: Plan, frames: int = 1) -> tuple[int, ...]:
        """Of the tensor that the plan's pixels make."""
        view = plan.views[0]
        if self.arrangement == "patches":
            rows, columns = view.canvas_height // self.patch, view.canvas_width // self.patch
            steps = -(-frames // self.temporal)
            return (steps * rows * columns, 3 * self.temporal * self.patch * self.patch)
        height, width = view.canvas_height // view.rows, view.canvas_width // view.columns
        if self.arrangement == "tiles":
            return (plan.tiles, 3, height, width)
        return (3, height, width)


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One tensor of an item.

    Attributes:
        content: ``pixels``, the layout's ``grid``, its number of ``tiles``, or the id of the embedding ``token``.
    """

    name: str
    field: Literal["batched", "flat", "shared"]
    content: Literal["pixels", "grid", "tiles", "token"]
    keep_on_cpu: bool = True


class Replacement(Protocol):
    """What a placeholder is replaced by."""

    @property
    def embed_id(self) -> int:
        """The id at the positions that take vectors."""

    def tokens(self, plan: Plan) -> tuple[tuple[int, ...], bytes | None, tuple[int, ...]]:
        """For an image: the ids, which of them take a vector (None: all), and the layout's grid."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family with the numbers of one model.

    Attributes:
        name: as in metrics and logs.
        placeholders: of each modality that the family takes.
        image: everything that shapes an image's pixels.
        replacement: what an image's placeholder is replaced by.
        tensors: of an image, in the order in which they are sent.
        max_embeds: vectors of the largest image that the family makes.
        newlines: ids of one to four line feeds where neighbouring ones are merged after expansion, as the tokenizer
            would have written them; None for families that merge nothing.
    """

    name: str
    placeholders: Mapping[Modality, Placeholder]
    image: Recipe
    replacement: Replacement
    tensors: tuple[TensorRule, ...]
    max_embeds: int
    newlines: tuple[int, int, int, int] | None = None

    @property
    def patches_per_embed(self) -> int:
        """Rows of the tensor of pixels that make one vector, for families whose tensors are rows of patches."""
        return self.image.merge**2 if self.image.arrangement == "patches" else 1

    @property
    def modalities(self) -> frozenset[Modality]:
        """Modalities of which it has a placeholder."""
        return frozenset(self.placeholders)

    def placeholder(self, modality: Modality) -> str:
        """What is put into a template that takes only strings. Raises UnsupportedFeature."""
        return self._placeholder(modality).text

    def placeholder_ids(self, modality: Modality) -> tuple[int, ...]:
        """What stands for one item in the rendered prompt, before expansion. Raises UnsupportedFeature."""
        return self._placeholder(modality).ids

    def _placeholder(self, modality: Modality) -> Placeholder:
        found = self.placeholders.get(modality)
        if found is None:
            raise UnsupportedFeature(f"the model does not accept {modality} input")
        return found

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that shapes the pixels, as plain numbers for the helper process and the identifier."""
        return self.image.to_plain()

    def layout(self, modality: Modality, width: int, height: int, frames: int = 1) -> ItemLayout:
        """What an item of this size (pixels, upright) becomes.

        Raises:
            UnsupportedFeature: the family does not take the modality.
            InvalidRequest: it does not take this shape.
        """
        self._placeholder(modality)
        plan = self.image.rule.plan(width, height)
        token_ids, is_embed, grid = self.replacement.tokens(plan)
        return ItemLayout(
            modality=modality,
            token_ids=token_ids,
            is_embed=is_embed,
            embeds=len(token_ids) if is_embed is None else is_embed.count(1),
            tiles=plan.tiles,
            grid=grid,
            pixels_shape=self.image.pixels_shape(plan, frames),
        )

    def media_tensors(self, layout: ItemLayout, pixels: TensorValue) -> tuple[MediaTensor, ...]:
        """What is sent for an item with these pixels, in the order of the table."""
        values = {
            "pixels": lambda: pixels,
            "grid": lambda: _int64(layout.grid),
            "tiles": lambda: _int64(layout.tiles),
            "token": lambda: _int64(self.replacement.embed_id),
        }
        return tuple(
            MediaTensor(rule.name, values[rule.content](), rule.field, rule.keep_on_cpu) for rule in self.tensors
        )


def _int64(numbers: tuple[int, ...] | int) -> TensorValue:
    """A vector, or a scalar with no dimension."""
    if isinstance(numbers, int):
        return TensorValue("int64", (), struct.pack("<q", numbers))
    return TensorValue("int64", (len(numbers),), struct.pack(f"<{len(numbers)}q", *numbers))
