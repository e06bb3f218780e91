"""What is looked at before media go to a vLLM engine, which looks at nearly nothing itself.

Seen with 0.27.1 and 0.32.0: bytes that do not fill their shape make an engine deaf; a range longer than the encoder's
output, ranges that overlap or a tensor that is missing end it; ranges out of order, a wrong offset or one identifier
for two pictures give wrong answers without a word. What fails here is therefore a fault of the gateway, all but an
item that is too large for the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from smg_trio.core.errors import InvalidRequest, MediaMismatch
from smg_trio.core.media import MediaFeature, MediaTensor, Modality, PixelForm
from smg_trio.wire.tensors import ITEM_SIZES
from smg_trio.wire.vllm.media import tensors_of

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.requests import GenerationRequest
    from smg_trio.core.tensors import TensorValue

_MODALITIES: Final = frozenset(get_args(Modality))
_FLOATS: Final = frozenset({"float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class _Layout:
    """The tensors that some models take for one item.

    Attributes:
        pixels: the name of the tensor that holds the item itself.
        field, dims: how that is batched, and its number of dimensions.
        others: shapes of the int64 tensors that go with it, all of which must be there.
        shared: those of them that are one for all items; each of the rest is the item's own.
        free: names that may be there beside them, whatever they hold.
    """

    pixels: str
    field: str
    dims: int
    others: Mapping[str, tuple[int, ...]]
    shared: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    modality: Modality = "image"


_TOKEN_ID: Final = frozenset({"image_token_id"})
_LAYOUTS: Final = (
    # Qwen2-VL, Qwen2.5-VL, Qwen3-VL: rows of patches; pictures, and frames of a video.
    _Layout("pixel_values", "flat", 2, {"image_grid_thw": (3,)}),
    _Layout(
        "pixel_values_videos",
        "flat",
        2,
        {"video_grid_thw": (3,)},
        free=frozenset({"second_per_grid_ts", "timestamps"}),
        modality="video",
    ),
    # LLaVA, Pixtral, Mistral 3: the whole picture.
    _Layout("pixel_values", "batched", 3, {}),
    # Tiles or crops: Gemma 3, Llama 4, InternVL.
    _Layout("pixel_values", "flat", 4, {"num_patches": ()}),
    _Layout("pixel_values", "flat", 4, {"patches_per_image": (), "aspect_ratios": (2,)}),
    _Layout("pixel_values", "flat", 4, {"image_num_patches": (), "image_token_id": ()}, _TOKEN_ID),
    _Layout("pixel_values_flat", "flat", 4, {"image_num_patches": (), "image_token_id": ()}, _TOKEN_ID),
    # Phi-4-mm.
    _Layout(
        "input_image_embeds",
        "batched",
        4,
        {"image_sizes": (2,), "num_img_tokens": ()},
        free=frozenset({"image_attention_mask"}),
    ),
)
_GRIDS: Final = ("image_grid_thw", "video_grid_thw")
_TILE_COUNTS: Final = ("num_patches", "patches_per_image", "image_num_patches")
_COLOURS: Final = 3
_MOST_FRAMES_PER_PATCH: Final = 2
_COMPARED_BYTES: Final = 4096
"""Of two tensors that should be the same; the whole of them would hold the loop."""


class _Wrong(Exception):
    """What is wrong with an item."""


def check_media(request: GenerationRequest, info: EngineInfo) -> None:
    """Look through the media of a request, which hold one form each: the one for this engine.

    Raises:
        MediaMismatch: they do not fit the prompt, each other or themselves.
        InvalidRequest: an item takes more tokens than the engine can encode.
    """
    end = 0
    seen: dict[str, MediaFeature] = {}
    for number, feature in enumerate(request.media, 1):
        try:
            end = _check_position(feature, end, len(request.prompt_token_ids))
            _check_embeds(feature)
            _check_tensors(feature, request.prompt_token_ids, info)
            _check_identifier(feature, seen)
        except _Wrong as error:
            raise MediaMismatch(request.request_id, f"item {number} ({feature.modality}): {error}") from None
        _check_budget(feature, number, info)


def _check_position(feature: MediaFeature, end: int, prompt_length: int) -> int:
    """The end of the item's range, which begins at `end` or later."""
    offset, length = feature.offset, feature.length
    if feature.modality not in _MODALITIES:
        raise _Wrong("unknown modality")
    if length < 1 or offset < end:
        raise _Wrong(f"range of {length} tokens at {offset} is out of order, or begins before {end}")
    if offset + length > prompt_length:
        raise _Wrong(f"range of {length} tokens at {offset} passes the end of a prompt of {prompt_length}")
    return offset + length


def _check_embeds(feature: MediaFeature) -> None:
    mask, length = feature.is_embed, feature.length
    places = length
    if mask is not None:
        places = mask.count(1)
        if len(mask) != length or mask.count(0) + places != length:
            raise _Wrong(f"mask of {len(mask)} for a range of {length} tokens")
    if places != feature.embeds or not places:
        raise _Wrong(f"{places} places for {feature.embeds} vectors")


def _check_identifier(feature: MediaFeature, seen: dict[str, MediaFeature]) -> None:
    if not feature.identifier or not feature.identifier.isascii():
        raise _Wrong("no identifier")
    other = seen.setdefault(feature.identifier, feature)
    if other is not feature and not _looks_alike(other, feature):
        raise _Wrong("identifier of another item")


def _looks_alike(one: MediaFeature, other: MediaFeature) -> bool:
    if (one.modality, one.embeds) != (other.modality, other.embeds):
        return False
    pairs = zip(tensors_of(one), tensors_of(other), strict=False)
    return all(_begins_alike(tensor.value, its.value) for tensor, its in pairs)


def _begins_alike(one: TensorValue, other: TensorValue) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.data is other.data or one.data[:_COMPARED_BYTES] == other.data[:_COMPARED_BYTES]


def _check_budget(feature: MediaFeature, number: int, info: EngineInfo) -> None:
    if not info.max_num_batched_tokens:
        return
    # An engine encodes an item in one step or never: the request would wait permanently.
    most = max(info.max_num_batched_tokens, feature.max_embeds)
    if feature.embeds > most:
        raise InvalidRequest(
            f"{feature.modality} {number} takes {feature.embeds} tokens, more than the {most} that the engine encodes "
            "at once. Send a smaller one, or start the engine with a larger --max-num-batched-tokens.",
            param="messages",
        )


def _check_tensors(feature: MediaFeature, prompt: Sequence[int], info: EngineInfo) -> None:
    if len(feature.tensors) != 1:
        raise _Wrong(f"{len(feature.tensors)} forms for one engine")
    [(form, tensors)] = feature.tensors.items()
    named = {tensor.name: tensor for tensor in tensors}
    if len(named) != len(tensors):
        raise _Wrong("two tensors of one name")
    for tensor in tensors:
        _check_bytes(tensor)
    layout = _layout_of(named, feature.modality)
    pixels = named[layout.pixels].value
    _check_dtype(pixels, form, info)
    _check_others(named, layout)
    if 0 in pixels.shape:
        raise _Wrong(f"{layout.pixels} is empty")
    numbers = {name: _integers(named[name].value) for name in layout.others}
    if layout.dims == 2:
        _check_patches(pixels, numbers, feature)
    elif layout.pixels != "input_image_embeds" and pixels.shape[-3] != _COLOURS:
        raise _Wrong(f"{layout.pixels} has {pixels.shape[-3]} colours")
    elif layout.dims == 4:
        _check_tiles(pixels, numbers, feature, prompt)


def _check_bytes(tensor: MediaTensor) -> None:
    value = tensor.value
    size = ITEM_SIZES.get(value.dtype)
    if size is None or min(value.shape, default=0) < 0:
        raise _Wrong(f"{tensor.name} is {value.dtype} {value.shape}")
    data = value.data
    if isinstance(data, memoryview) and (data.ndim != 1 or data.itemsize != 1 or not data.c_contiguous):
        raise _Wrong(f"{tensor.name} is no view of bytes")
    if len(data) != math.prod(value.shape) * size:
        raise _Wrong(f"{tensor.name} has {len(data)} bytes for {value.dtype} {value.shape}")


def _layout_of(named: Mapping[str, MediaTensor], modality: Modality) -> _Layout:
    for layout in _LAYOUTS:
        pixels = named.get(layout.pixels)
        if (
            layout.modality != modality
            or pixels is None
            or (pixels.field, len(pixels.value.shape)) != (layout.field, layout.dims)
        ):
            continue
        if layout.others.keys() <= named.keys() <= {layout.pixels, *layout.others, *layout.free}:
            return layout
    shapes = ", ".join(f"{name} ({tensor.field} {tensor.value.shape})" for name, tensor in named.items())
    raise _Wrong(f"no model takes {shapes or 'nothing'}")


def _check_dtype(pixels: TensorValue, form: PixelForm, info: EngineInfo) -> None:
    if form is PixelForm.UINT8:
        fits = pixels.dtype == "uint8"
    else:
        # An engine casts nothing where it does not normalise: the first layer would fail.
        fits = pixels.dtype == info.dtype if info.dtype in _FLOATS else pixels.dtype in _FLOATS
    if not fits:
        raise _Wrong(f"pixels are {pixels.dtype} in form {form} for an engine of {info.dtype or 'unknown dtype'}")


def _check_others(named: Mapping[str, MediaTensor], layout: _Layout) -> None:
    for name, shape in layout.others.items():
        tensor = named[name]
        field = "shared" if name in layout.shared else "batched"
        if (tensor.field, tensor.value.dtype, tensor.value.shape) != (field, "int64", shape):
            raise _Wrong(f"{name} is {tensor.field} {tensor.value.dtype} {tensor.value.shape}")


def _integers(value: TensorValue) -> list[int]:
    data = bytes(value.data)
    return [int.from_bytes(data[start : start + 8], "little", signed=True) for start in range(0, len(data), 8)]


def _check_patches(pixels: TensorValue, numbers: Mapping[str, list[int]], feature: MediaFeature) -> None:
    rows, width = pixels.shape
    [grid] = (numbers[name] for name in _GRIDS if name in numbers)
    if min(grid) < 1 or math.prod(grid) != rows:
        raise _Wrong(f"{rows} patches for a grid of {grid}")
    if feature.embeds * feature.patches_per_embed != rows:
        raise _Wrong(f"{feature.embeds} vectors of {rows} patches")
    # A patch has colours x frames x side x side values.
    frames = [count for count in range(1, _MOST_FRAMES_PER_PATCH + 1) if width % (_COLOURS * count) == 0]
    if not any(_is_square(width // (_COLOURS * count)) for count in frames):
        raise _Wrong(f"patches of {width} values")


def _check_tiles(
    pixels: TensorValue, numbers: Mapping[str, list[int]], feature: MediaFeature, prompt: Sequence[int]
) -> None:
    tiles = pixels.shape[0]
    for name in _TILE_COUNTS:
        if name in numbers and numbers[name] != [tiles]:
            raise _Wrong(f"{name} is {numbers[name][0]} for {tiles} tiles")
    if "aspect_ratios" in numbers:
        rows, columns = numbers["aspect_ratios"]
        # All but a picture of one tile have another one that shows the whole.
        if min(rows, columns) < 1 or tiles != (rows * columns + 1 if rows * columns > 1 else 1):
            raise _Wrong(f"{tiles} tiles for {rows} x {columns}")
    if "num_img_tokens" in numbers and numbers["num_img_tokens"] != [feature.embeds]:
        raise _Wrong(f"num_img_tokens is {numbers['num_img_tokens'][0]} for {feature.embeds} vectors")
    if "num_img_tokens" not in numbers and feature.embeds % tiles:
        raise _Wrong(f"{feature.embeds} vectors of {tiles} tiles")
    if "image_token_id" in numbers:
        _check_placeholders(numbers["image_token_id"][0], feature, prompt)


def _check_placeholders(token: int, feature: MediaFeature, prompt: Sequence[int]) -> None:
    """Models that look for their placeholders by its id must find as many as there are vectors."""
    found = prompt[feature.offset : feature.offset + feature.length].count(token)
    if found != feature.embeds:
        raise _Wrong(f"{found} placeholders of id {token} for {feature.embeds} vectors")


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number
