"""Prompts and tensors captured from vLLM 0.32's own processors, and the images that they were made of."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack

from smg_trio.core.media import PixelForm
from smg_trio.core.tensors import TensorValue
from smg_trio.media.families import Family, find_family
from smg_trio.media.families.base import Recipe
from smg_trio.media.pixels.decode import open_image, to_rgb, upright
from smg_trio.media.pixels.tensors import cut_tiles, tensor_pieces, tensor_size

GOLDEN = Path(__file__).parents[1] / "golden"
IMAGES = GOLDEN / "media" / "images"
MAX_PIXELS = 100_000_000


def captures(directory: Path) -> list[dict[str, Any]]:
    """All captured prompts of families."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("family_*.json"))]


def encoder(special: dict[str, int]) -> Any:
    """A tokenizer that knows the special tokens, longest first; every other character is a number of its own."""
    longest_first = sorted(special, key=len, reverse=True)

    def encode(text: str) -> tuple[int, ...]:
        ids: list[int] = []
        while text:
            found = next((word for word in longest_first if text.startswith(word)), text[0])
            ids.append(special.get(found, 1_000_000 + ord(found[0])))
            text = text[len(found) :]
        return tuple(ids)

    return encode


def family_of(capture: dict[str, Any]) -> Family:
    found = find_family(capture["model_config"], capture["preprocessor_config"], encoder(capture["special_ids"]))
    assert found is not None
    return found


def pixels_of(file: bytes, recipe: Recipe, dtype: str) -> TensorValue:
    """What the helper process makes of a file, in this process."""
    image = to_rgb(upright(open_image(file, MAX_PIXELS)))
    plan = recipe.rule.plan(*image.size)
    shape = recipe.pixels_shape(plan)
    pieces = [piece.tobytes() for piece in tensor_pieces(cut_tiles(image, recipe, plan), recipe, dtype)]
    data = b"".join(pieces)
    assert len(data) == tensor_size(shape, dtype)
    return TensorValue(dtype, shape, data)


def digest(value: TensorValue) -> str:
    return sha256(value.data).hexdigest()


def captured_features(capture: dict[str, Any]) -> list[dict[str, Any]]:
    """As they were on the wire, decoded."""
    decoded: list[dict[str, Any]] = msgpack.unpackb(bytes.fromhex(capture["frame0_hex"]), strict_map_key=False)
    return decoded


def form_of(dtype: str) -> PixelForm:
    return PixelForm.UINT8 if dtype == "uint8" else PixelForm.NORMALISED
