"""Media on its way from a request to an engine: what a client sent, and what an engine is sent for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smg_trio.core.requests import TensorValue

Modality = Literal["image", "video", "audio"]


class PixelForm(StrEnum):
    """Which pixel values an engine wants.

    vLLM 0.32 normalises inside the engine for some families (``v1/worker/gpu/mm``: ``FusedMMInputNorm``) and then
    takes what was resized as it is; all others take values that were normalised and cast to the engine's dtype.
    """

    UINT8 = "uint8"
    NORMALISED = "normalised"


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One picture, video or sound of a request, not yet read.

    Attributes:
        location: an ``http(s)`` URL, a ``data:`` URL, or bare base64 where `bare_base64` says so.
        where: the part that holds it, for errors: ``messages[3].content[1]``.
    """

    modality: Modality
    location: str
    where: str
    bare_base64: bool = False


@dataclass(frozen=True, slots=True)
class MediaTensor:
    """One input tensor of an engine's processor for one item, already cut to that item.

    Attributes:
        field: how the engine puts the items of a batch together (vLLM 0.32, ``multimodal/inputs.py``).
        keep_on_cpu: whether the tensor stays in the host's memory.
    """

    name: str
    value: TensorValue
    field: Literal["batched", "flat", "shared"]
    keep_on_cpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFeature:
    """One item at its place in the expanded prompt.

    Attributes:
        identifier: hash over everything that the encoder's output depends on; equal identifiers are one item to an
            engine's caches.
        offset, length: the range of the prompt's tokens that stands for the item.
        is_embed: one byte (0 or 1) for each token of the range; None where each of them takes a vector.
        embeds: vectors that the encoder will make; the number of ones in `is_embed`, or `length`.
        tensors: what the engine computes them from, for each form that was prepared.
    """

    modality: Modality
    identifier: str
    offset: int
    length: int
    is_embed: bytes | None
    embeds: int
    tensors: Mapping[PixelForm, tuple[MediaTensor, ...]]
