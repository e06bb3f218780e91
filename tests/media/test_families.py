"""Families against what vLLM's own processors made: prompts, positions and every tensor, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.core.errors import InvalidRequest, UnsupportedFeature
from smg_trio.media.expansion import expand
from smg_trio.media.families import Recipe, find_family
from smg_trio.media.families.plans import TileGrid
from smg_trio.media.items import ProcessedItem
from tests.conftest import shared_path
from tests.media.captures import (
    GOLDEN,
    IMAGES,
    captured_features,
    captures,
    encoder,
    family_of,
    form_of,
    pixels_of,
)
from tests.media.captures import digest as digest_of

OURS = captures(GOLDEN / "vectors" / "multimodal")


def name_of(capture: dict[str, Any]) -> str:
    return f"{capture['family']}-{capture['case']}"


def check(capture: dict[str, Any], images: Path) -> None:
    """The whole capture comes out again."""
    family = family_of(capture)
    items = list(made(capture, images))
    expanded = expand(capture["unexpanded_ids"], items, family)
    assert expanded.token_ids == capture["prompt_token_ids"]
    assert [
        {"offset": one.offset, "length": one.length, "is_embed": None if one.is_embed is None else list(one.is_embed)}
        for one in expanded.features
    ] == capture["positions"]
    assert Recipe.from_plain(json.loads(json.dumps(family.recipe))) == family.image
    assert all(item.layout.embeds <= family.max_embeds for item in items)


def made(capture: dict[str, Any], images: Path) -> Iterator[ProcessedItem]:
    """Each item, after its tensors were compared with those of the capture."""
    family = family_of(capture)
    for name, feature, aux in zip(capture["images"], captured_features(capture), capture["aux"], strict=True):
        [dtype] = [
            element["data"][0] for tensor, element in feature["data"].items() if tensor.startswith("pixel_values")
        ]
        pixels = pixels_of((images / name).read_bytes(), family.image, dtype)
        assert digest_of(pixels) == aux["sha256"]
        width, height = SIZES[name]
        layout = family.layout("image", width, height)
        assert pixels.shape == layout.pixels_shape
        tensors = family.media_tensors(layout, pixels)
        assert {tensor.name for tensor in tensors} == feature["data"].keys()
        for tensor in tensors:
            captured_dtype, shape, payload = feature["data"][tensor.name]["data"]
            factory, details = feature["data"][tensor.name]["field"]
            assert (tensor.value.dtype, list(tensor.value.shape)) == (captured_dtype, shape)
            assert (tensor.field, tensor.keep_on_cpu) == (factory, details["keep_on_cpu"])
            if not isinstance(payload, int):
                assert tensor.value.data == payload.data
        yield ProcessedItem("image", name, layout, {form_of(dtype): tensors})


SIZES = {"plain_rgb.png": (96, 64), "palette_alpha.png": (96, 64), "exif_rot6.jpg": (64, 96)}


@pytest.mark.parametrize("capture", OURS, ids=name_of)
def test_a_captured_prompt_and_its_tensors_come_out_again(capture: dict[str, Any]) -> None:
    check(capture, IMAGES)


def test_all_captures_of_the_reference_material_come_out_again() -> None:
    for capture in captures(shared_path("vectors", "multimodal")):
        check(capture, IMAGES)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama"},
        {"model_type": "qwen2_vl"},
        {"model_type": "phi4mm", "vision_config": {}},
        {"model_type": ["qwen2_vl"], "vision_config": {}},
    ],
)
def test_a_model_of_no_family_has_none(config: dict[str, Any]) -> None:
    assert find_family(config, {}, encoder({})) is None


def qwen(**preprocessor: Any) -> Any:
    config = {"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 6}
    return find_family(config, preprocessor, encoder({}))


def test_what_the_files_leave_out_are_the_defaults_of_transformers() -> None:
    family = qwen()
    assert (family.image.rule.min_pixels, family.image.rule.max_pixels) == (3136, 28 * 28 * 1280)
    assert (family.max_embeds, family.placeholder_ids("image")) == (1280, (6,))
    assert family.layout("image", 1000, 700).embeds == (700 // 28) * round(1000 / 28)
    assert family.recipe["arrangement"] == "patches"


def test_either_spelling_of_the_bounds_counts_and_the_plain_one_first() -> None:
    size = {"shortest_edge": 50176, "longest_edge": 200704}
    for preprocessor in ({"size": size}, {"min_pixels": 50176, "max_pixels": 200704}):
        assert qwen(**preprocessor).image.rule == qwen(size=size).image.rule
    assert qwen(size=size, max_pixels=100352).image.rule.max_pixels == 100352
    assert qwen(image_processor={"size": size}).image.rule.max_pixels == 200704


@pytest.mark.parametrize("preprocessor", [{"do_resize": False}, {"do_normalize": False}, {"resample": 1}])
def test_a_step_that_is_not_built_is_refused_by_name(preprocessor: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature, match=next(iter(preprocessor))):
        qwen(**preprocessor)


def test_a_tokenizer_without_the_placeholder_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="image_pad"):
        find_family({"model_type": "qwen2_vl", "vision_config": {}}, {}, encoder({}))


def test_a_modality_that_the_family_does_not_take_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="audio"):
        qwen().layout("audio", 10, 10)
    with pytest.raises(UnsupportedFeature, match="audio"):
        qwen().placeholder("audio")


@given(st.sampled_from(OURS), st.integers(1, 5000), st.integers(1, 5000))
def test_a_layout_fits_its_tensors_and_its_family(capture: dict[str, Any], width: int, height: int) -> None:
    """What the engine is told agrees in itself, for any size that is not refused."""
    family = family_of(capture)
    try:
        layout = family.layout("image", width, height)
    except InvalidRequest:
        assert max(width, height) > 200 * min(width, height)
        return
    ids = layout.token_ids
    mask = layout.is_embed if layout.is_embed is not None else bytes([1]) * len(ids)
    assert len(mask) == len(ids)
    assert layout.embeds == sum(mask)
    assert all(id_ == family.replacement.embed_id for id_, flag in zip(ids, mask, strict=True) if flag)
    if family.image.arrangement == "patches":
        assert layout.pixels_shape[0] == layout.grid[1] * layout.grid[2] == layout.embeds * family.patches_per_embed
        # Slightly over where a side would be less than one merge block.
        assert layout.embeds <= family.max_embeds or min(layout.grid[1:]) == family.image.merge
    else:
        assert layout.embeds <= family.max_embeds
    if family.image.arrangement == "tiles":
        assert layout.pixels_shape[0] == layout.tiles


def test_the_original_internvl_matches_its_placeholder_as_a_sequence() -> None:
    config = {
        "model_type": "internvl_chat",
        "vision_config": {"image_size": 448, "patch_size": 14},
        "max_dynamic_patch": 12,
    }
    special = {"<img>": 1, "</img>": 2, "<IMG_CONTEXT>": 3}
    family = find_family(config, {}, encoder(special))
    assert family is not None
    assert family.placeholder("image") == "<image>"
    assert family.placeholder_ids("image") == encoder({})("<image>")
    item = ProcessedItem("image", "i", family.layout("image", 900, 448), {})
    assert item.layout.tiles == 3
    prompt = list(encoder({})("Look <imag <image> end"))
    expanded = expand(prompt, [item], family)
    ids = [1, *[3] * 768, 2]
    assert expanded.token_ids == [*encoder({})("Look <imag "), *ids, *encoder({})(" end")]
    assert (expanded.features[0].offset, expanded.features[0].length, expanded.features[0].embeds) == (11, 770, 768)
    assert isinstance(family.image.rule, TileGrid)
    assert family.max_embeds == 13 * 256
