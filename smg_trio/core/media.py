"""Media on its way from a request to an engine: what a client sent, and what an engine is sent for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from smg_trio.core.tensors import TensorValue

Modality = Literal["image", "video", "audio"]


class PixelForm(StrEnum):
    """Which pixel values an engine wants.

    vLLM 0.32 normalises inside the engine for some families (``v1/worker/gpu/mm``: ``FusedMMInputNorm``) and then
    takes what was resized as it is; all others take values that were normalised and cast to the engine's dtype.
    """

    UINT8 = "uint8"
    NORMALISED = "normalised"


@dataclass(slots=True, unsafe_hash=True)
class MediaSource:
    """One picture, video or sound of a request, not yet read.

    Attributes:
        location: an ``http(s)`` URL, a ``data:`` URL, or bare base64 where `bare_base64` says so; "" once it is
            forgotten.
        where: the part that holds it, for errors: ``messages[3].content[1]``.
    """

    modality: Modality
    location: str
    where: str
    bare_base64: bool = False

    def forget(self) -> None:
        """It is not read any more: it may hold megabytes, and the request lives until its answer has ended."""
        self.location = ""


class MediaPart(dict[str, Any]):
    """A part of a message's content that holds media: ``{"type": "image"}``, which is what chat templates look for.

    Attributes:
        source: what the part holds.
    """

    __slots__ = ("source",)

    def __init__(self, source: MediaSource) -> None:
        super().__init__(type=source.modality)
        self.source = source


def media_in(messages: Iterable[Mapping[str, Any]]) -> list[MediaSource]:
    """The media of a conversation, in order."""
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    return [part.source for content in contents for part in content if type(part) is MediaPart]


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
        max_embeds: vectors of the largest item that the model takes; 0 if that is not known. Engines make room for
            as many at least, however small their token budget is.
        patches_per_embed: where the tensors are rows of patches (Qwen), how many of them make one vector: the square of
            the config's ``spatial_merge_size``, which is 2 in all models so far.
    """

    modality: Modality
    identifier: str
    offset: int
    length: int
    is_embed: bytes | None
    embeds: int
    tensors: Mapping[PixelForm, tuple[MediaTensor, ...]]
    max_embeds: int = 0
    patches_per_embed: int = 4
