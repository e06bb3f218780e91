"""Broken images of all kinds: each is refused or decoded, and none ends the process that decodes them."""

from __future__ import annotations

import os

from .image_runs import run_images

IMAGES = int(os.environ.get("SMG_TRIO_FUZZ_IMAGES", "300"))
"""How many; `scripts/fuzz_images.py` takes more."""
SEED = int(os.environ.get("SMG_TRIO_FUZZ_SEED", "1"))


async def test_no_broken_image_ends_the_process() -> None:
    results = await run_images(IMAGES, SEED)
    assert not results.wrong
    assert results.answers["decoded"] > IMAGES // 20
    assert results.answers.total() == IMAGES
