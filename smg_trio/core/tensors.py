"""Tensors on their way to an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor ready for the wire (prompt embeddings, multimodal inputs).

    Attributes:
        dtype: element type in torch's words without byte order, for example ``float32``.
        shape: sizes per dimension.
        data: the elements, little-endian, C order; a view is one of single bytes in one dimension. What it shows is
            read when the message leaves, so nobody may change it after the request has begun.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
