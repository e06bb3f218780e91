"""One item of a request after it was processed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.media import MediaTensor, Modality, PixelForm
    from smg_trio.media.families import ItemLayout


@dataclass(frozen=True)
class ProcessedItem:
    """An image or video, ready to be put into a prompt and sent.

    Attributes:
        identifier: equal for equal bytes, model and recipe, and for nothing else.
        layout: how it stands in the prompt.
        tensors: what the engine gets, for each form that was asked for; empty where only the size was wanted.
    """

    modality: Modality
    identifier: str
    layout: ItemLayout
    tensors: Mapping[PixelForm, tuple[MediaTensor, ...]]

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the tensors hold."""
        return sum(len(tensor.value.data) for tensors in self.tensors.values() for tensor in tensors)
