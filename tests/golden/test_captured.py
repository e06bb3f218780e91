"""Frames recorded from real engine runs: what engines sent is all understood."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smg_trio.core.engines import EngineProtocol
from smg_trio.wire.codec import codec_for, is_dead_sentinel
from smg_trio.wire.handshake import decode_handshake, decode_registration

CAPTURED = Path(__file__).parent / "captured"
RUNS = sorted(CAPTURED.glob("*.jsonl.xz"))


def protocol_of(run: Path) -> EngineProtocol:
    return EngineProtocol.TOKENSPEED if run.name.startswith("ts-") else EngineProtocol.VLLM


def from_engine(run: Path, socket: str) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    with lzma.open(run, "rt") as lines:
        for line in lines:
            message = json.loads(line)
            if message["sock"] == socket and message["dir"] == "engine->gw":
                yield message, [bytes.fromhex(frame) for frame in message["frames"]]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name.partition(".")[0])
def test_everything_a_real_engine_said_is_understood(run: Path) -> None:
    codec = codec_for(protocol_of(run))
    seen = 0
    for _, frames in from_engine(run, "output"):
        seen += 1
        if not is_dead_sentinel(frames):
            batch = codec.decode_outputs(frames)
            assert all(output.token_ids == [int(i) for i in output.token_ids] for _, output in batch.outputs)
    for _, frames in from_engine(run, "handshake"):
        seen += 1
        assert decode_handshake(frames[1]).status in {"HELLO", "READY"}
    for _, frames in from_engine(run, "input"):
        seen += 1
        assert decode_registration(frames[1], protocol_of(run)).max_model_len > 0
    assert seen > 0


def test_a_real_run_finishes_every_request_it_shows_tokens_of() -> None:
    codec = codec_for(EngineProtocol.VLLM)
    finished: set[str] = set()
    for _, frames in from_engine(CAPTURED / "v0320-lockstep-dp2.jsonl.xz", "output"):
        for request_id, output in codec.decode_outputs(frames).outputs:
            assert request_id not in finished
            if output.finish_reason is not None:
                finished.add(request_id)
    assert finished
