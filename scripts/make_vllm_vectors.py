"""Write the golden vectors of a vLLM version with that version's own classes.

Run it with a Python in which that version can be imported; its compiled parts are not needed, so the files of a wheel
laid over another version's dependencies will do (``PYTHONPATH=unpacked-wheel``). Every vector of an older version is
read with the real decoder and written with the real encoder; what is new in the version is made here.

    python scripts/make_vllm_vectors.py tests/golden/vectors/vllm-0.32.0 tests/golden/vectors/vllm-0.33.0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from vllm import __version__
from vllm.outputs import RequestError
from vllm.pooling_params import LateChunkingParams, PoolingParams
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    FinishReason,
)
from vllm.v1.engine.utils import EngineHandshakeMetadata
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

ADD = b"\x00"
AS_THEY_ARE = {"out_engine_dead", "req_add_short_prefix"}
"""Not made by an encoder: a raw frame, and an array that was cut by hand."""
ERRORS = {
    "out_error_paused": RequestError("engine_paused", "Generation is paused. Please retry after it resumes.", True),
    "out_error_validation": RequestError("validation_error", "Invalid structured outputs: no such rule"),
    "out_error_other": RequestError("internal", "the worker lost the request"),
}
POOLING = {
    "req_pool_token_embed": PoolingParams(task="token_embed", skip_reading_prefix_cache=True),
    "req_pool_late_chunking": PoolingParams(
        task="token_embed", skip_reading_prefix_cache=True, late_chunking_params=LateChunkingParams(chunk_size=4)
    ),
}


def rewritten(name: str, frames: list[bytes]) -> list[bytes]:
    """The same message, as this version writes it."""
    if name in AS_THEY_ARE:
        return frames
    if name.startswith("registration"):
        ready = msgspec.msgpack.decode(frames[0], type=EngineCoreReadyResponse)
        return [msgspec.msgpack.encode(dataclasses.replace(ready, vllm_version=__version__))]
    if name.startswith("hs_init"):
        return [msgspec.msgpack.encode(msgspec.msgpack.decode(frames[0], type=EngineHandshakeMetadata))]
    if name.startswith("hs_"):
        return [msgspec.msgpack.encode(msgspec.msgpack.decode(frames[0]))]
    if name.startswith("req_"):
        decoder = MsgpackDecoder(EngineCoreRequest) if frames[0] == ADD else MsgpackDecoder()
        return [frames[0], *map(bytes, MsgpackEncoder().encode(decoder.decode(frames[1:])))]
    return written(MsgpackDecoder(EngineCoreOutputs).decode(frames))


def written(outputs: EngineCoreOutputs) -> list[bytes]:
    """An output message as the output thread writes it."""
    return list(map(bytes, MsgpackEncoder().encode_into(outputs, bytearray())))


def made() -> Iterator[tuple[str, str, list[bytes]]]:
    """Name, description and frames of what older versions do not have."""
    for name, error in ERRORS.items():
        output = EngineCoreOutput("req-1", [], finish_reason=FinishReason.ERROR, error=error)
        outputs = EngineCoreOutputs(outputs=[output], finished_requests={"req-1"}, timestamp=1234.5)
        yield name, f"error finish with the engine's words: {error.code}", written(outputs)
    for name, pooling in POOLING.items():
        request = EngineCoreRequest("req-1", [1, 2, 3], None, None, pooling, 1700000000.5, None, None, None)
        yield name, "ADD with pooling parameters", [ADD, *map(bytes, MsgpackEncoder().encode(request))]


def save(folder: Path, name: str, head: dict[str, Any], frames: list[bytes]) -> None:
    """Write one vector."""
    value = {"name": name, **head, "frames_hex": [frame.hex() for frame in frames]}
    (folder / f"{name}.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")


def main() -> None:
    """Read a folder, write a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", type=Path)
    parser.add_argument("newer", type=Path)
    asked = parser.parse_args()
    asked.newer.mkdir(exist_ok=True)
    for path in sorted(asked.older.glob("*.json")):
        vector = json.loads(path.read_text())
        frames = [bytes.fromhex(frame) for frame in vector["frames_hex"]]
        head = {
            key: vector[key] for key in ("description", "socket", "direction", "routing_identity_hex") if key in vector
        }
        save(asked.newer, vector["name"], head, rewritten(vector["name"], frames))
    for name, description, frames in made():
        from_engine = name.startswith("out_")
        head = {
            "description": description,
            "socket": "output PULL" if from_engine else "input ROUTER",
            "direction": "engine->gateway" if from_engine else "gateway->engine",
        }
        save(asked.newer, name, head if from_engine else head | {"routing_identity_hex": "0000"}, frames)


if __name__ == "__main__":
    main()
