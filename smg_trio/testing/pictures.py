"""Hand-made media for tests: features as the gateway prepares them, of a Qwen2-VL, from a number instead of a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from hashlib import blake2b, shake_128

from smg_trio.core.media import MediaFeature, MediaTensor, PixelForm
from smg_trio.core.tensors import TensorValue
from smg_trio.testing.vision import QWEN_PATCH_VALUES, QWEN_PATCHES_PER_VECTOR

BOTH_FORMS = (PixelForm.UINT8, PixelForm.NORMALISED)


def qwen_tensors(seed: int, grid: Sequence[int], form: PixelForm) -> tuple[MediaTensor, ...]:
    """The tensors of a picture of ``grid`` (frames, rows, columns) of patches; other seeds, other pixels."""
    patches = math.prod(grid)
    dtype, size = ("uint8", 1) if form is PixelForm.UINT8 else ("bfloat16", 2)
    raw = bytearray(shake_128(b"%d" % seed).digest(patches * QWEN_PATCH_VALUES * size))
    if size == 2:  # finite: the highest bit of the exponent is clear
        raw[1::2] = bytes(byte & 0xBF for byte in raw[1::2])
    pixels = TensorValue(dtype, (patches, QWEN_PATCH_VALUES), memoryview(bytes(raw)))
    numbers = TensorValue("int64", (3,), b"".join(number.to_bytes(8, "little") for number in grid))
    return (
        MediaTensor("pixel_values", pixels, "flat"),
        MediaTensor("image_grid_thw", numbers, "batched", keep_on_cpu=True),
    )


def qwen_picture(
    seed: int = 0,
    offset: int = 1,
    *,
    grid: Sequence[int] = (1, 4, 6),
    forms: Collection[PixelForm] = BOTH_FORMS,
) -> MediaFeature:
    """A picture at ``offset`` of the prompt, where it takes a quarter as many tokens as it has patches."""
    length = math.prod(grid) // QWEN_PATCHES_PER_VECTOR
    return MediaFeature(
        modality="image",
        identifier=blake2b(b"%d %r" % (seed, tuple(grid)), digest_size=16).hexdigest(),
        offset=offset,
        length=length,
        is_embed=None,
        embeds=length,
        tensors={form: qwen_tensors(seed, grid, form) for form in forms},
    )
