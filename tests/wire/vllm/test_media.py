"""What media must be like to be sent. The rows are what was seen to end, deafen or mislead real engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import ContextLengthExceeded, InvalidRequest, MediaMismatch
from smg_trio.core.media import MediaFeature, MediaTensor, PixelForm
from smg_trio.core.requests import GenerationRequest, LoraAdapter, SamplingParams
from smg_trio.core.tensors import TensorValue
from smg_trio.testing.codec import codec_for as engine_codec
from smg_trio.testing.engine_core import EngineCore
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.pictures import qwen_picture, qwen_tensors
from smg_trio.testing.script import LengthScript
from smg_trio.testing.vision import VisionModel
from smg_trio.wire.codec import codec_for

VLLM = codec_for(EngineProtocol.VLLM)
RAW, DONE = PixelForm.UINT8, PixelForm.NORMALISED
INFO = EngineInfo(max_model_len=4000, max_num_batched_tokens=2048, dtype="bfloat16", engine_version="0.32.0")
VOCAB = 1024
GRID = (1, 4, 6)
LENGTH = 6


def picture(seed: int = 0, offset: int = 1, **changes: Any) -> MediaFeature:
    """A picture of six tokens, raw."""
    return replace(qwen_picture(seed, offset, grid=GRID, forms=(RAW,)), **changes)


def asked(*media: MediaFeature, prompt_tokens: int = 40, **fields: Any) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=4)
    return GenerationRequest(
        **{"request_id": "r", "prompt_token_ids": [6] * prompt_tokens, "media": media, "sampling": sampling} | fields
    )


def with_tensor(name: str, **changes: Any) -> MediaFeature:
    """A picture one of whose tensors is not as it should be."""
    tensors = [replace(one, **changes) if one.name == name else one for one in qwen_tensors(0, GRID, RAW)]
    return picture(tensors={RAW: tuple(tensors)})


def without(name: str) -> MediaFeature:
    return picture(tensors={RAW: tuple(one for one in qwen_tensors(0, GRID, RAW) if one.name != name)})


def pixels(dtype: str, *shape: int, size: int) -> TensorValue:
    return TensorValue(dtype, shape, bytes(size))


def int64(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


PATCHES, WIDTH = 24, 1176
SHORT = pixels("uint8", PATCHES, WIDTH, size=PATCHES * WIDTH - 1)
WRONG = {
    "tensor bytes do not match the shape": [with_tensor("pixel_values", value=SHORT)],
    "length larger than the vectors": [picture(length=9)],
    "length and vectors larger than the tensors give": [picture(length=9, embeds=9)],
    "is_embed shorter than length": [picture(is_embed=b"\1" * 5, embeds=5)],
    "is_embed longer than length": [picture(is_embed=b"\1" * 7)],
    "is_embed of something else": [picture(is_embed=b"\1\1\1\1\1\2")],
    "field factory of the grid": [with_tensor("image_grid_thw", field="shared")],
    "field factory of the pixels": [with_tensor("pixel_values", field="batched")],
    "overlapping ranges": [picture(0, 1), picture(1, 6)],
    "grid that does not match": [with_tensor("image_grid_thw", value=TensorValue("int64", (3,), int64(1, 4, 4)))],
    "grid of no patches": [with_tensor("image_grid_thw", value=TensorValue("int64", (3,), int64(0, 4, 6)))],
    "grid of two numbers": [with_tensor("image_grid_thw", value=TensorValue("int64", (2,), int64(4, 6)))],
    "grid of another dtype": [with_tensor("image_grid_thw", value=TensorValue("int32", (3,), bytes(12)))],
    "no grid": [without("image_grid_thw")],
    "no pixels": [without("pixel_values")],
    "nothing": [picture(tensors={RAW: ()})],
    "row width": [with_tensor("pixel_values", value=pixels("uint8", PATCHES, 1175, size=PATCHES * 1175))],
    "row width that is no square": [with_tensor("pixel_values", value=pixels("uint8", 24, 1179, size=24 * 1179))],
    "unknown dtype": [with_tensor("pixel_values", value=pixels("uint9", PATCHES, WIDTH, size=PATCHES * WIDTH))],
    "unknown factory": [with_tensor("pixel_values", field="stacked")],
    "unknown tensor": [picture(tensors={RAW: (*qwen_tensors(0, GRID, RAW), MediaTensor("x", SHORT, "flat"))})],
    "a tensor twice": [picture(tensors={RAW: qwen_tensors(0, GRID, RAW) * 2})],
    "length smaller": [picture(length=3)],
    "length and vectors smaller": [picture(length=3, embeds=3)],
    "is_embed all false": [picture(is_embed=bytes(6))],
    "another modality": [picture(modality="video")],
    "unknown modality": [picture(modality="foo")],
    "range past the end": [picture(0, 35)],
    "range before the beginning": [picture(0, -1)],
    "empty range": [picture(length=0, embeds=0)],
    "not sorted": [picture(1, 11), picture(0, 1)],
    "one identifier for two pictures": [picture(0, 1), picture(1, 11, identifier=picture(0).identifier)],
    "no identifier": [picture(identifier="")],
    "two forms": [replace(picture(), tensors={RAW: qwen_tensors(0, GRID, RAW), DONE: qwen_tensors(0, GRID, DONE)})],
    "no form": [picture(tensors={})],
    "normalised pixels as raw ones": [picture(tensors={RAW: qwen_tensors(0, GRID, DONE)})],
    "raw pixels as normalised ones": [picture(tensors={DONE: qwen_tensors(0, GRID, RAW)})],
    "a view that is not of bytes": [
        with_tensor("pixel_values", value=TensorValue("uint8", (24, 1176), memoryview(bytes(24 * 1176)).cast("H")))
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_would_harm_an_engine_or_mislead_it_is_never_sent(what: str) -> None:
    with pytest.raises(MediaMismatch) as caught:
        VLLM.check(asked(*WRONG[what]), INFO, VOCAB)
    assert caught.value.status == 500
    assert "request r " in caught.value.message
    assert "item " in caught.value.detail
    assert caught.value.detail not in caught.value.message


def test_pixels_must_be_of_the_engines_dtype() -> None:
    done = picture(tensors={DONE: qwen_tensors(0, GRID, DONE)})
    VLLM.check(asked(done), INFO, VOCAB)
    VLLM.check(asked(done), replace(INFO, dtype=""), VOCAB)
    with pytest.raises(MediaMismatch):
        VLLM.check(asked(done), replace(INFO, dtype="float16"), VOCAB)


def whole(*shape: int, embeds: int, prompt_tokens: int = 40) -> GenerationRequest:
    value = pixels("uint8", *shape, size=shape[0] * shape[1] * shape[2])
    tensors = {RAW: (MediaTensor("pixel_values", value, "batched"),)}
    return asked(picture(tensors=tensors, length=embeds, embeds=embeds), prompt_tokens=prompt_tokens)


def test_whole_pictures_have_three_colours() -> None:
    VLLM.check(whole(3, 28, 56, embeds=8), INFO, VOCAB)
    for shape in ((4, 28, 56), (3, 0, 56)):
        with pytest.raises(MediaMismatch):
            VLLM.check(whole(*shape, embeds=8), INFO, VOCAB)


def tiles(count: int, *, embeds: int = 12, **numbers: list[int]) -> GenerationRequest:
    """A picture in tiles of 14 x 14; `numbers`: the tensors beside the pixels."""
    value = pixels("uint8", count, 3, 14, 14, size=count * 588)
    others = [
        MediaTensor(
            name,
            TensorValue("int64", (2,) if len(values) == 2 else (), int64(*values)),
            "shared" if name == "image_token_id" else "batched",
            keep_on_cpu=True,
        )
        for name, values in numbers.items()
    ]
    tensors = {RAW: (MediaTensor("pixel_values", value, "flat"), *others)}
    return asked(picture(tensors=tensors, length=embeds, embeds=embeds))


def test_tiles_agree_with_what_is_said_of_them() -> None:
    VLLM.check(tiles(3, num_patches=[3]), INFO, VOCAB)
    VLLM.check(tiles(3, patches_per_image=[3], aspect_ratios=[2, 1]), INFO, VOCAB)
    VLLM.check(tiles(1, patches_per_image=[1], aspect_ratios=[1, 1]), INFO, VOCAB)
    VLLM.check(tiles(3, image_num_patches=[3], image_token_id=[6]), INFO, VOCAB)
    for wrong in (
        tiles(3, num_patches=[2]),
        tiles(3, num_patches=[3], embeds=13),
        tiles(3, patches_per_image=[3], aspect_ratios=[3, 1]),
        tiles(3, patches_per_image=[3], aspect_ratios=[0, 2]),
        tiles(2, patches_per_image=[2], aspect_ratios=[1, 1]),
        tiles(3, image_num_patches=[3], image_token_id=[7]),
        tiles(3, num_patches=[3], image_token_id=[6]),
        tiles(3, patches_per_image=[3]),
        tiles(3),
    ):
        with pytest.raises(MediaMismatch):
            VLLM.check(wrong, INFO, VOCAB)


def test_an_item_that_the_engine_cannot_encode_in_one_step_is_the_clients_to_shrink() -> None:
    grid = (1, 100, 100)
    large = qwen_picture(0, 1, grid=grid, forms=(RAW,))
    with pytest.raises(InvalidRequest, match="image 1 takes 2500 tokens, more than the 2048") as caught:
        VLLM.check(asked(large, prompt_tokens=3000), INFO, VOCAB)
    assert (caught.value.status, caught.value.param) == (400, "messages")
    # The engine makes room for the model's largest item.
    VLLM.check(asked(replace(large, max_embeds=2500), prompt_tokens=3000), INFO, VOCAB)
    VLLM.check(asked(large, prompt_tokens=3000), replace(INFO, max_num_batched_tokens=0), VOCAB)


def test_the_expanded_prompt_must_fit_the_context_and_the_vocabulary() -> None:
    with pytest.raises(ContextLengthExceeded):
        VLLM.check(asked(picture(), prompt_tokens=4000), INFO, VOCAB)
    with pytest.raises(InvalidRequest, match="out-of-vocab"):
        VLLM.check(asked(picture(), prompt_token_ids=[6] * 39 + [VOCAB]), INFO, VOCAB)


def test_with_an_adapter_the_encoders_cache_is_its_own() -> None:
    adapter = LoraAdapter(name="adapter", adapter_id=1, path="/p")
    feature = picture()
    [sent] = msgpack.unpackb(VLLM.encode_add(asked(feature, lora=adapter))[1], strict_map_key=False)[2]
    assert sent["identifier"] == f"adapter:{feature.identifier}"
    assert sent["mm_hash"] == feature.identifier


def test_slices_and_batch_sizes_count_the_items_that_have_the_tensor() -> None:
    video = picture(
        2,
        21,
        modality="video",
        tensors={
            RAW: tuple(
                replace(one, name={"pixel_values": "pixel_values_videos", "image_grid_thw": "video_grid_thw"}[one.name])
                for one in qwen_tensors(2, GRID, RAW)
            )
        },
    )
    request = asked(picture(0, 1), picture(1, 11), video)
    VLLM.check(request, INFO, VOCAB)
    sent = msgpack.unpackb(VLLM.encode_add(request)[1], strict_map_key=False)[2]
    fields = [feature["data"] for feature in sent]
    assert fields[0]["pixel_values"]["field"][1]["slices"] == [[[0, 24, None]], [[24, 48, None]]]
    assert fields[2]["pixel_values_videos"]["field"][1]["slices"] == [[[0, 24, None]]]


# ---- laws -----------------------------------------------------------------------------------------------


def engine() -> EngineCore:
    """As careless as the real one: see `smg_trio.testing.vision`."""
    options = EngineOptions(vision=VisionModel(), vocab_size=VOCAB, max_model_len=4000)
    return EngineCore(options, engine_codec(options), lambda request: LengthScript())


def seen_by(core: EngineCore, request: GenerationRequest) -> list[tuple[tuple[int, ...], str]]:
    """What the model of a living engine saw: positions and pictures, in the order of the positions."""
    core.receive([bytes(frame) for frame in VLLM.encode_add(request)], 0.0)
    assert core.doom is None
    assert core.deaf is None
    sight = core.record.received[-1].sight
    assert not sight.stuck
    return [(picture.positions, picture.digest) for picture in sight.pictures]


GRIDS = st.tuples(st.just(1), st.integers(1, 4).map(lambda n: 2 * n), st.integers(1, 4).map(lambda n: 2 * n))
PICTURES = st.lists(st.tuples(st.integers(0, 3), GRIDS, st.integers(0, 3)), min_size=1, max_size=4)


def laid_out(chosen: list[tuple[int, Any, int]]) -> tuple[list[MediaFeature], int]:
    """Pictures one after the other, with gaps of text; and the prompt's length."""
    media, end = [], 0
    for seed, grid, gap in chosen:
        feature = qwen_picture(seed, end + gap, grid=grid, forms=(RAW,))
        media.append(feature)
        end = feature.offset + feature.length
    return media, end + 1


@given(PICTURES)
@settings(deadline=None, max_examples=50)
def test_what_is_right_is_sent_and_seen_where_it_is(chosen: list[tuple[int, Any, int]]) -> None:
    media, length = laid_out(chosen)
    request = asked(*media, prompt_tokens=length)
    VLLM.check(request, INFO, VOCAB)
    alone = [seen_by(engine(), asked(one, prompt_tokens=length))[0] for one in media]
    assert seen_by(engine(), request) == alone
    assert [positions for positions, _ in alone] == [tuple(range(m.offset, m.offset + m.length)) for m in media]


CHANGES = st.one_of(
    st.fixed_dictionaries({"offset": st.integers(-2, 60)}),
    st.fixed_dictionaries({"length": st.integers(0, 20)}),
    st.integers(0, 20).flatmap(lambda n: st.fixed_dictionaries({"length": st.just(n), "embeds": st.just(n)})),
    st.fixed_dictionaries({"embeds": st.integers(0, 20)}),
    st.fixed_dictionaries({"is_embed": st.binary(max_size=20) | st.lists(st.booleans(), max_size=20).map(bytes)}),
    st.fixed_dictionaries({"modality": st.sampled_from(["image", "video", "audio", "foo"])}),
    st.fixed_dictionaries({"identifier": st.sampled_from(["", "a", qwen_picture(0, grid=GRID).identifier])}),
    st.fixed_dictionaries({"tensors": st.sampled_from([one[0].tensors for one in WRONG.values()])}),
)


@given(PICTURES, st.integers(0, 3), CHANGES, st.randoms(use_true_random=False), st.booleans())
@settings(deadline=None, max_examples=300)
def test_whatever_passes_harms_no_engine_and_puts_no_picture_in_a_wrong_place(
    chosen: list[tuple[int, Any, int]], which: int, change: dict[str, Any], random: Any, shuffles: bool
) -> None:
    media, length = laid_out(chosen)
    changed = media[which % len(media)] = replace(media[which % len(media)], **change)
    if shuffles:
        random.shuffle(media)
    request = asked(*media, prompt_tokens=length)
    try:
        VLLM.check(request, INFO, VOCAB)
    except (MediaMismatch, InvalidRequest):
        return
    seen = seen_by(engine(), request)
    places = [[m.offset + i for i in range(m.length) if m.is_embed is None or m.is_embed[i]] for m in media]
    assert [list(positions) for positions, _ in seen] == places
    # Each is seen as if it were alone, by an engine that has seen nothing yet.
    for feature, sight in zip(media, seen, strict=True):
        assert seen_by(engine(), asked(feature, prompt_tokens=length)) == [sight]
    assert changed.embeds == len(places[media.index(changed)])
