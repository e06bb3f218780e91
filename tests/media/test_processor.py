"""Sources in, items out: in order, once per file, within memory, and each refusal names the part."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from PIL import Image

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.media import MediaSource, PixelForm
from smg_trio.media import budget
from smg_trio.media.errors import InvalidMedia, MediaMemoryFull, MediaTooLarge
from smg_trio.media.expansion import expand
from smg_trio.media.families import Family, find_family
from smg_trio.media.hooks import MediaHooks
from smg_trio.media.processor import MediaProcessor
from smg_trio.media.reader import MediaReader
from smg_trio.settings.settings import Settings
from tests.media.captures import IMAGES, digest, encoder, pixels_of

RAW, BOTH = frozenset({PixelForm.UINT8}), frozenset(PixelForm)
PNG, JPEG = (IMAGES / "plain_rgb.png").read_bytes(), (IMAGES / "exif_rot6.jpg").read_bytes()


def qwen() -> Family:
    config = {"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 6}
    found = find_family(config, {"min_pixels": 3136, "max_pixels": 200704}, encoder({}))
    assert found is not None
    return found


FAMILY = qwen()


@dataclass
class Told:
    """What the hooks heard."""

    refused: list[str] = field(default_factory=list)
    looked_up: list[bool] = field(default_factory=list)
    processed: list[str] = field(default_factory=list)

    @property
    def hooks(self) -> MediaHooks:
        return MediaHooks(
            refused=lambda _, code: self.refused.append(code),
            looked_up=self.looked_up.append,
            processed=lambda modality, _: self.processed.append(modality),
        )


@asynccontextmanager
async def processing(told: Told | None = None, **settings: Any) -> AsyncIterator[MediaProcessor]:
    made, hooks = Settings(**settings), (told or Told()).hooks
    processor = MediaProcessor(MediaReader(made, hooks), made, hooks)
    async with trio.open_nursery() as nursery:
        await nursery.start(processor.run)
        yield processor
        nursery.cancel_scope.cancel()


def part(file: bytes, number: int = 0) -> MediaSource:
    url = "data:image/png;base64," + base64.b64encode(file).decode()
    return MediaSource("image", url, f"messages[0].content[{number}]")


async def test_items_come_in_order_and_equal_files_are_processed_once() -> None:
    told = Told()
    async with processing(told) as processor:
        with processor.budget.hold() as hold:
            items = await processor.process([part(PNG), part(JPEG, 1), part(PNG, 2)], FAMILY, BOTH, "model", hold=hold)
            assert hold.held == items[0].nbytes + items[1].nbytes
            assert items[0] is items[2]
            assert (told.processed, told.looked_up) == (["image"] * 2, [False, False])
            for item, file in zip(items, (PNG, JPEG), strict=False):
                for form, dtype in ((PixelForm.UINT8, "uint8"), (PixelForm.NORMALISED, "bfloat16")):
                    [pixels] = [one for one in item.tensors[form] if one.name == "pixel_values"]
                    assert digest(pixels.value) == digest(pixels_of(file, FAMILY.image, dtype))
            expanded = expand([1, 6, 2, 6, 6], items, FAMILY)
            assert [one.embeds for one in expanded.features] == [6, 6, 6]
        assert processor.budget.used == 0


async def test_an_item_of_the_cache_is_not_processed_again_unless_a_form_is_missing() -> None:
    told = Told()
    async with processing(told) as processor:
        with processor.budget.hold() as hold:
            [first] = await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)
            [again] = await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)
            [both] = await processor.process([part(PNG)], FAMILY, BOTH, "model", hold=hold)
            [other] = await processor.process([part(PNG)], FAMILY, RAW, "another", hold=hold)
            [half] = await processor.process([part(PNG)], FAMILY, BOTH, "model", hold=hold, dtype="float16")
        assert again is first
        assert told.looked_up == [False, True, False, False, False]
        assert both.identifier == first.identifier
        assert len({first.identifier, other.identifier, half.identifier}) == 3
        assert half.tensors[PixelForm.NORMALISED][0].value.dtype == "float16"


async def test_without_a_cache_nothing_is_kept() -> None:
    told = Told()
    async with processing(told, mm_cache_bytes=0) as processor:
        for _ in range(2):
            with processor.budget.hold() as hold:
                await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)
    assert told.looked_up == [False, False]


async def test_sizes_alone_are_measured_without_tensors() -> None:
    async with processing() as processor:
        with processor.budget.hold() as hold:
            measured = await processor.measure([part(PNG), part(JPEG, 1)], FAMILY, hold=hold)
            items = await processor.process([part(PNG), part(JPEG, 1)], FAMILY, RAW, "model", hold=hold)
    assert [one.layout for one in measured] == [one.layout for one in items]
    assert not any(one.tensors for one in measured)


def flat(width: int, height: int) -> bytes:
    saved = io.BytesIO()
    Image.new("1", (width, height)).save(saved, "PNG")
    return saved.getvalue()


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"not an image", "not an image in one of the formats"),
        (PNG[:200], "truncated|broken"),
        (flat(201, 1), "absolute aspect ratio must be smaller than 200"),
        (flat(2000, 1001), "2000x1001 exceeds 2000000 pixels"),
    ],
)
async def test_a_refusal_names_the_part_and_ends_the_others(file: bytes, problem: str) -> None:
    told = Told()
    async with processing(told, mm_max_pixels=2_000_000) as processor:
        with processor.budget.hold() as hold, pytest.raises(InvalidMedia, match=problem) as caught:
            await processor.process([part(PNG), part(file, 1)], FAMILY, RAW, "model", hold=hold)
        assert (caught.value.status, caught.value.param) == (400, "messages[0].content[1]")
        assert str(caught.value).startswith("messages[0].content[1]: ")
        assert told.refused == ["invalid_media"]
        assert processor.budget.used == 0
        with processor.budget.hold() as hold:
            await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)


async def test_a_dtype_that_no_engine_has_is_refused() -> None:
    async with processing() as processor:
        with processor.budget.hold() as hold, pytest.raises(UnsupportedFeature, match="float64"):
            await processor.process([part(PNG)], FAMILY, BOTH, "model", hold=hold, dtype="float64")


async def test_tensors_larger_than_the_budget_are_413() -> None:
    async with processing(mm_max_inflight_bytes=20_000) as processor:
        with processor.budget.hold() as hold, pytest.raises(MediaTooLarge):
            await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)
        assert processor.budget.used == 0


async def test_tensors_that_find_no_room_are_429_and_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "PATIENCE_S", 0.05)
    async with processing(mm_max_inflight_bytes=60_000, mm_cache_bytes=0) as processor:
        with processor.budget.hold() as other:
            # Room for the file, but not for its tensors.
            await other.add(29_000, "messages[0]")
            await other.add(25_000, "messages[0]")
            with processor.budget.hold() as hold, pytest.raises(MediaMemoryFull):
                await hold.add(1, "messages[0]")
                await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)
        with processor.budget.hold() as hold:
            await processor.process([part(PNG)], FAMILY, RAW, "model", hold=hold)


async def test_fast_pixels_are_other_items_than_exact_ones() -> None:
    names = []
    for kind in ("exact", "fast"):
        async with processing(mm_resize=kind) as processor:
            with processor.budget.hold() as hold:
                [item] = await processor.process([part(JPEG)], FAMILY, RAW, "model", hold=hold)
                names.append(item.identifier)
    assert names[0] != names[1]
