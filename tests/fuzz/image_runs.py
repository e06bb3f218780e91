"""Many broken images through the helper process, and what came of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import trio

from smg_trio.core.errors import InvalidRequest
from smg_trio.media.families import Family, find_family
from smg_trio.media.helper_process import HelperPool, ItemRefused

from .images import broken_image

MAX_PIXELS = 40_000_000
CONFIGS = (
    ({"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 6}, {"max_pixels": 200_704}),
    ({"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 14}, "image_token_index": 6}, {}),
    ({"model_type": "llama4", "vision_config": {"image_size": 112}}, {"size": {"height": 112, "width": 112}}),
    ({"model_type": "internvl_chat", "vision_config": {"image_size": 112, "patch_size": 14}}, {}),
)


@dataclass
class Results:
    """What came of the images.

    Attributes:
        answers: how often each kind of answer was given.
        wrong: what must not happen, with the image's number.
        replaced: processes that an image ended or kept busy for too long.
    """

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    replaced: int = 0


def families() -> list[Family]:
    found = [find_family(config, preprocessor, lambda text: (len(text),)) for config, preprocessor in CONFIGS]
    return [family for family in found if family is not None]


async def run_images(count: int, seed: int) -> Results:
    """Each is a refusal or an answer that fits its size."""
    results = Results()
    known = families()
    pool = HelperPool(max_pixels=MAX_PIXELS)
    async with trio.open_nursery() as nursery:
        await nursery.start(pool.run)
        for number in range(count):
            file = broken_image(Random(seed * 1_000_003 + number))
            before = pool.replaced
            await _one(pool, known[number % len(known)], file, number, results)
            if pool.replaced != before:
                results.wrong.append(f"{number}: a process ended ({file[:40]!r}…)")
        results.replaced = pool.replaced
        nursery.cancel_scope.cancel()
    return results


async def _one(pool: HelperPool, family: Family, file: bytes, number: int, results: Results) -> None:
    try:
        async with pool.ask(file, recipe=family.recipe, dtypes=["uint8", "bfloat16"]) as answer:
            layout = family.layout("image", answer.width, answer.height)
            results.answers["decoded"] += 1
            for value in answer.tensors.values():
                if value.shape != layout.pixels_shape:
                    results.wrong.append(f"{number}: {value.shape} for {layout.pixels_shape}")
    except (ItemRefused, InvalidRequest) as error:
        words = "exceeds a number of pixels" if "exceeds" in str(error) else str(error)
        results.answers[words if "aspect ratio" not in words else "aspect ratio"] += 1
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the run looks for
        results.wrong.append(f"{number}: {error!r}")
