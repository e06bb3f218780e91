"""A gateway with a vision model under test, and pictures to send it."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripts import make_vision_model
from smg_trio.testing.commands import EngineRequest
from smg_trio.testing.vision import VisionModel
from tests.e2e.harness import COUNTING, Bench, Says, open_gateway

IMAGE_PAD = "<|image_pad|>"
START, END = "<|vision_start|>", "<|vision_end|>"


def png(width: int, height: int, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\x00" + bytes(colour) * width) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + encoded(data)


RED, BLUE = png(56, 56), png(112, 56, (20, 20, 220))
RED_TOKENS, BLUE_TOKENS = 4, 8


def image(data: bytes) -> dict[str, Any]:
    """A part of a chat message."""
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@asynccontextmanager
async def open_vision_gateway(
    tmp_path: Path, says: Says = COUNTING, *, engine: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    """As `harness.open_gateway`, with the model of `scripts.make_vision_model` and engines that can see."""
    async with open_gateway(
        tmp_path,
        says,
        special_tokens=make_vision_model.SPECIAL_TOKENS,
        model_config=dict(make_vision_model.CONFIG),
        model_files=make_vision_model.files(),
        engine={"vision": VisionModel()} | (engine or {}),
        **settings,
    ) as bench:
        yield bench


def prompt(bench: Bench, request: EngineRequest | None = None) -> str:
    """The prompt of a request (by default the last) as the engine got it, each run of placeholders as ``[N]``."""
    ids = list((request or bench.engine.received[-1]).prompt_token_ids)
    pad = bench.model.id_of(IMAGE_PAD)
    tokenizer = bench.gateway.catalog.find("").text.tokenizer
    pieces: list[str] = []
    start = 0
    while start < len(ids):
        stop = start + 1
        while stop < len(ids) and (ids[stop] == pad) == (ids[start] == pad):
            stop += 1
        run = ids[start:stop]
        pieces.append(f"[{len(run)}]" if run[0] == pad else tokenizer.decode(run, skip_special_tokens=False))
        start = stop
    return "".join(pieces)


def turn(bench: Bench, request: EngineRequest | None = None) -> str:
    """What the last user's turn of the prompt says."""
    return prompt(bench, request).rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def digests(request: EngineRequest) -> Sequence[str]:
    """What the model saw, picture by picture."""
    return [picture.digest for picture in request.sight.pictures]
