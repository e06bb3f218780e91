"""Media of requests, read back from what vLLM's own front end sent and written again: to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.media import PixelForm
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.wire.codec import codec_for
from tests.conftest import shared_path
from tests.golden.captured_media import Captured, media_element, read

VLLM = codec_for(EngineProtocol.VLLM)
OURS = Path(__file__).parent / "vectors" / "multimodal"
INFO = EngineInfo(max_model_len=4096, max_num_batched_tokens=2048, dtype="bfloat16")
NIL = b"\xc0"


def written(captured: Captured) -> tuple[bytes, list[Any]]:
    """The same media by our encoder, after its check."""
    request = GenerationRequest(
        request_id="r",
        prompt_token_ids=captured.prompt,
        media=captured.media,
        sampling=SamplingParams(max_tokens=4),
    )
    VLLM.check(request, INFO, None)
    _, payload, *frames = VLLM.encode_add(request)
    return media_element(bytes(payload)), frames


@pytest.mark.parametrize("path", sorted(OURS.glob("*.json")), ids=lambda path: path.stem)
def test_media_are_written_as_vllms_own_front_end_writes_them(path: Path) -> None:
    captured = read(path)
    features, frames = written(captured)
    assert features == captured.features
    assert frames == captured.auxiliary


def test_all_captured_media_are_written_the_same() -> None:
    paths = sorted(shared_path("vectors", "multimodal").glob("*.json"))
    whole = 0
    for path in paths:
        captured = read(path)
        features, frames = written(captured)
        assert frames == captured.auxiliary, path.stem
        # An item without data is one that the sender takes to be cached: we send data always.
        if NIL not in {value[:1] for value in _data_of(captured)}:
            assert features == captured.features, path.stem
            whole += 1
    assert whole >= len(paths) - 4


def _data_of(captured: Captured) -> list[bytes]:
    return [msgpack.packb(feature["data"]) for feature in msgpack.unpackb(captured.features, strict_map_key=False)]


def test_large_tensors_leave_as_the_very_objects_that_they_are() -> None:
    captured = read(OURS / "v0320_interleaved.json")
    media = captured.media
    request = GenerationRequest(
        request_id="r", prompt_token_ids=captured.prompt, media=media, sampling=SamplingParams(max_tokens=1)
    )
    sent = VLLM.encode_add(request)[2:]
    assert [id(frame) for frame in sent] == [id(feature.tensors[PixelForm.UINT8][0].value.data) for feature in media]
