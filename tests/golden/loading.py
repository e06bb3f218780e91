"""Reads the vectors: frames made by the real encoders of each engine version."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

VECTORS = Path(__file__).parent / "vectors"
STRICTNESS = sorted((Path(__file__).parent / "strictness").glob("*.txt"))
"""What vLLM's own decoder took and refused, line by line; a file per version."""
VLLM_VERSIONS = ("vllm-0.27.1", "vllm-0.32.0", "vllm-0.33.0")
TOKENSPEED_VERSIONS = ("tokenspeed-0.1.0", "tokenspeed-0.1.1")
STRUCT_CODES = {
    "<i4": "i", "<i8": "q", "<f4": "f", "<f2": "e", "int32": "i", "int64": "q", "float32": "f",
}  # fmt: skip


@dataclass(frozen=True)
class Vector:
    """One message as the engine (or its own front end) encodes it."""

    folder: str
    name: str
    frames: list[bytes]
    identity: bytes | None

    def generic(self) -> Any:
        """The payload as plain msgpack, tensor extensions left as they are."""
        payload = self.frames[1] if self.name.startswith("req_") else self.frames[0]
        return msgpack.unpackb(payload, strict_map_key=False)

    def tensor(self, triple: list[Any]) -> list[list[Any]]:
        """A triple as rows, read independently of the package."""
        dtype, shape, data = triple
        raw = data.data if isinstance(data, msgpack.ExtType) else self.frames[data]
        columns = shape[1] if len(shape) == 2 else 1
        flat = [value for (value,) in struct.iter_unpack("<" + STRUCT_CODES[dtype], raw)]
        return [flat[i * columns : (i + 1) * columns] for i in range(shape[0])]


def load(folder: str, name: str) -> Vector:
    """Read one vector."""
    raw = json.loads((VECTORS / folder / f"{name}.json").read_text())
    identity = raw.get("routing_identity_hex")
    return Vector(
        folder,
        name,
        [bytes.fromhex(frame) for frame in raw["frames_hex"]],
        None if identity is None else bytes.fromhex(identity),
    )


def vectors(prefix: str, folders: tuple[str, ...]) -> list[Vector]:
    """Every vector of these folders whose name starts with ``prefix``."""
    return [
        load(folder, path.stem) for folder in folders for path in sorted((VECTORS / folder).glob(f"{prefix}*.json"))
    ]


def label(vector: Vector) -> str:
    """The id of a parametrised test."""
    return f"{vector.folder}-{vector.name}"
