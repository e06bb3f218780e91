"""Pixels against what vLLM's front end made of the same files, and the laws of the resize."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from smg_trio.media.families import Recipe
from smg_trio.media.families.plans import BestCanvas, CentreCrop, FitLongest, SmartResize, Stretch, TileGrid
from smg_trio.media.pixels.decode import CannotDecode, open_image, to_rgb, upright, upright_size
from smg_trio.media.pixels.resize import Filter, _integer_weights, resize
from smg_trio.media.pixels.tensors import cut_tiles
from smg_trio.media.pixels.values import value_table
from tests.conftest import shared_path
from tests.media.captures import GOLDEN, IMAGES, MAX_PIXELS, digest, pixels_of

EXPECTED = json.loads((GOLDEN / "media" / "expected_pixels.json").read_text())["images"]
INTERNVL_CHAT = json.loads((GOLDEN / "media" / "expected_internvl_chat.json").read_text())

CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
QWEN2 = Recipe(
    rule=SmartResize(28, 3136, 200704), filter="bicubic", arrangement="patches", patch=14, merge=2, temporal=2, **CLIP
)
QWEN3 = Recipe(
    rule=SmartResize(32, 65536, 16777216),
    filter="bicubic",
    arrangement="patches",
    patch=16,
    merge=2,
    temporal=2,
    **HALF,
)
LLAVA = Recipe(rule=CentreCrop(336, 336, 336), filter="bicubic", **CLIP)
SIGLIP = Recipe(rule=Stretch(384, 384), filter="bicubic", **HALF)
GEMMA3 = Recipe(rule=Stretch(896, 896), filter="bilinear", **HALF)
PIXTRAL = Recipe(rule=FitLongest(1024, 16, 16), filter="bicubic", **CLIP)


def digests(expected: dict[str, Any]) -> list[tuple[Recipe, str, str | None]]:
    """Recipe, dtype and digest of what the file has; a digest may be missing."""
    return [
        (QWEN2, "uint8", expected.get("qwen2_vl_tiny", {}).get("uint8_patches_sha256")),
        (QWEN2, "bfloat16", expected.get("qwen2_vl_tiny", {}).get("bfloat16_sha256")),
        (QWEN3, "uint8", expected.get("qwen3_vl_default", {}).get("uint8_patches_sha256")),
        (LLAVA, "float32", expected.get("llava_clip336_f32_sha256")),
        (SIGLIP, "float32", expected.get("siglip384_bicubic_f32_sha256")),
        (GEMMA3, "float32", expected.get("gemma3_896_bilinear_f32_sha256")),
        (PIXTRAL, "float32", expected.get("pixtral_1024_p16", {}).get("f32_sha256")),
    ]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_pixel_is_that_of_vllms_own_front_end(name: str) -> None:
    file = (IMAGES / name).read_bytes()
    checked = 0
    for recipe, dtype, expected in digests(EXPECTED[name]):
        if expected is not None:
            assert digest(pixels_of(file, recipe, dtype)) == expected, (recipe.rule, dtype)
            checked += 1
    assert checked >= 2
    width, height = EXPECTED[name]["rgb"]["size_wh"]
    assert upright_size(open_image(file, MAX_PIXELS)) == (width, height)


def check_frames(paths: Iterable[Path]) -> None:
    """Each tensor frame of requests that vLLM's own server sent; an image that the engine had already got has none."""
    for path in paths:
        capture = json.loads(path.read_text())
        dtype = "uint8" if capture["vllm_version"] == "0.32.0" else "bfloat16"
        frames = capture["aux_sha256"]
        sent = capture["images"][len(capture["images"]) - len(frames) :]
        assert [digest(pixels_of((IMAGES / name).read_bytes(), QWEN2, dtype)) for name in sent] == frames


def test_every_frame_that_was_sent_comes_out_again() -> None:
    check_frames(sorted((GOLDEN / "vectors" / "multimodal").glob("v0*.json")))


def test_every_frame_of_the_reference_material_comes_out_again() -> None:
    check_frames(sorted(shared_path("vectors", "multimodal").glob("v0*.json")))


@pytest.mark.skipif(
    PIL.__version__ != INTERNVL_CHAT["pillow"], reason="the original InternVL resizes as the version of Pillow does"
)
@pytest.mark.parametrize("name", sorted(INTERNVL_CHAT["images"]))
def test_the_original_internvl_has_the_pixels_of_vllms_own_processor(name: str) -> None:
    recipe = Recipe(
        rule=TileGrid(112, 1, 6, original=True),
        filter="bicubic",
        kernel="pillow",
        arithmetic="stepwise",
        arrangement="tiles",
        **IMAGENET,
    )
    expected = INTERNVL_CHAT["images"][name]
    for dtype in ("float32", "bfloat16"):
        pixels = pixels_of((IMAGES / name).read_bytes(), recipe, dtype)
        assert list(pixels.shape) == expected["shape"]
        assert digest(pixels) == expected[f"{dtype}_sha256"]


def plainly_resized(image: Any, width: int, height: int, filter: Filter) -> Any:
    """The same in whole numbers, one weight after the other."""
    for axis, size in ((1, width), (0, height)):
        if image.shape[axis] == size:
            continue
        lows, weights, precision = _integer_weights(image.shape[axis], size, filter)
        taken = np.moveaxis(image, axis, 0).astype(np.int64)
        sums = np.full((size, *taken.shape[1:]), 1 << (precision - 1), np.int64)
        for tap in range(weights.shape[1]):
            inputs = taken[np.minimum(lows + tap, len(taken) - 1)]
            sums += inputs * weights[:, tap].reshape(-1, 1, 1)
        image = np.moveaxis(np.clip(sums >> precision, 0, 255).astype(np.uint8), 0, axis)
    return image.transpose(2, 0, 1)


def resized_array(image: Any, width: int, height: int, filter: Filter) -> Any:
    return resize(lambda top, bottom: image[top:bottom], (image.shape[1], image.shape[0]), (width, height), filter)


sides = st.integers(1, 90) | st.sampled_from([255, 257, 600])


@settings(deadline=None, max_examples=60)
@given(st.data(), sides, sides, sides, sides, st.sampled_from(["bicubic", "bilinear"]))
def test_floating_point_resizes_exactly_as_whole_numbers_do(
    data: st.DataObject, width: int, height: int, new_width: int, new_height: int, filter: Filter
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    if data.draw(st.booleans()):
        image = random.integers(0, 256, (height, width, 3), np.uint8)
    else:
        image = (random.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    resized = resized_array(image, new_width, new_height, filter)
    assert resized.shape == (3, new_height, new_width)
    assert np.array_equal(resized, plainly_resized(image, new_width, new_height, filter))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 255))
def test_one_colour_stays_that_colour(width: int, height: int, colour: int) -> None:
    image = np.full((height, width, 3), colour, np.uint8)
    assert (resized_array(image, 30, 20, "bicubic") == colour).all()
    assert np.array_equal(resized_array(image, width, height, "bicubic"), image.transpose(2, 0, 1))


def test_two_passes_of_pillow_differ_by_two_levels_at_most() -> None:
    random = np.random.default_rng(1)
    image = Image.fromarray(random.integers(0, 256, (120, 200, 3), np.uint8))
    plan = QWEN2.rule.plan(200, 120)
    exact = cut_tiles(image, QWEN2, plan).astype(int)
    fast = Recipe.from_plain({**QWEN2.to_plain(), "kernel": "pillow_passes"})
    difference = np.abs(exact - cut_tiles(image, fast, plan))
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.02


def test_tiles_are_cut_row_by_row_and_the_whole_image_comes_last() -> None:
    image = Image.new("RGB", (112, 56), (10, 0, 0))
    image.paste((200, 0, 0), (56, 0, 112, 56))
    recipe = Recipe(rule=TileGrid(56, 1, 4), filter="bicubic", arrangement="tiles", **HALF)
    tiles = cut_tiles(image, recipe, recipe.rule.plan(112, 56))
    assert tiles.shape == (3, 3, 56, 56)
    assert tiles[0, 0].max() <= 200
    assert tiles[0, 0, :, :40].max() == 10
    assert tiles[1, 0, :, 20:].min() == 200
    assert (tiles[2, 0, 0, 0], tiles[2, 0, 0, -1]) == (10, 200)


def test_a_canvas_larger_than_the_image_is_black_at_the_right_and_below() -> None:
    recipe = Recipe(rule=BestCanvas(56, 4), filter="bilinear", arrangement="tiles", **HALF)
    image = Image.new("RGB", (40, 30), (255, 255, 255))
    tiles = cut_tiles(image, recipe, recipe.rule.plan(40, 30))
    assert tiles.shape == (1, 3, 56, 56)
    assert tiles[0, :, :42].min() == 255
    assert tiles[0, :, 42:].max() == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_each_value_of_the_table_is_near_the_true_one(dtype: str) -> None:
    table = value_table("fused", CLIP["mean"], CLIP["std"], 1 / 255, dtype)
    if dtype == "bfloat16":
        table = (table.astype(np.uint32) << 16).view(np.float32)
    true = (np.arange(256) / 255 - np.array(CLIP["mean"])[:, None]) / np.array(CLIP["std"])[:, None]
    assert np.abs(table.astype(np.float64) - true).max() < {"bfloat16": 0.01, "float16": 0.002, "float32": 1e-6}[dtype]


def test_another_dtype_has_no_table() -> None:
    with pytest.raises(ValueError, match="float64"):
        value_table("fused", CLIP["mean"], CLIP["std"], 1 / 255, "float64")


def file_of(image: Image.Image, format: str, **options: Any) -> bytes:
    saved = io.BytesIO()
    image.save(saved, format, **options)
    return saved.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_in_the_header_is_that_of_the_upright_image(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.new("RGB", (30, 20))
    for format in ("JPEG", "PNG", "WEBP", "TIFF"):
        file = file_of(image, format, exif=exif)
        assert upright_size(open_image(file, MAX_PIXELS)) == upright(open_image(file, MAX_PIXELS)).size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16", "F", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    assert to_rgb(Image.new(mode, (3, 2))).mode == "RGB"


def test_what_is_transparent_becomes_white() -> None:
    image = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    assert [to_rgb(image).getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (10, 20, 30)]


def test_too_many_pixels_are_refused_by_the_header() -> None:
    file = file_of(Image.new("1", (3000, 2000)), "PNG")
    assert open_image(file, 6_000_000).size == (3000, 2000)
    with pytest.raises(CannotDecode, match="3000x2000 exceeds 5999999 pixels"):
        open_image(file, 5_999_999)


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (file_of(Image.new("RGB", (64, 64)), "PNG")[:60], "truncated|broken"),
        (file_of(Image.effect_noise((200, 200), 90), "JPEG")[:5000], "truncated"),
    ],
)
def test_what_is_no_whole_image_is_refused(file: bytes, problem: str) -> None:
    with pytest.raises(CannotDecode, match=problem):
        upright(open_image(file, MAX_PIXELS))
