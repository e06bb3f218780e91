"""Reads captured media: what vLLM's own front end sent for pictures, as our features again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from smg_trio.core.media import MediaFeature, MediaTensor, PixelForm
from smg_trio.core.tensors import TensorValue


@dataclass(frozen=True)
class Captured:
    """What was on the wire: the features alone as msgpack, and the frames after the payload."""

    name: str
    prompt: list[int]
    features: bytes
    auxiliary: list[bytes]

    @property
    def media(self) -> tuple[MediaFeature, ...]:
        decoded = msgpack.unpackb(self.features, strict_map_key=False)
        return tuple(self._feature(feature) for feature in decoded if feature["data"] is not None)

    def _feature(self, feature: dict[str, Any]) -> MediaFeature:
        tensors = tuple(
            MediaTensor(name, self._value(element["data"]), element["field"][0], element["field"][1]["keep_on_cpu"])
            for name, element in feature["data"].items()
        )
        position = feature["mm_position"]
        mask = None if position["is_embed"] is None else bytes(self._value(position["is_embed"]).data)
        raw = any(tensor.value.dtype == "uint8" for tensor in tensors)
        return MediaFeature(
            modality=feature["modality"],
            identifier=feature["identifier"],
            offset=position["offset"],
            length=position["length"],
            is_embed=mask,
            embeds=position["length"] if mask is None else mask.count(1),
            tensors={PixelForm.UINT8 if raw else PixelForm.NORMALISED: tensors},
        )

    def _value(self, triple: list[Any]) -> TensorValue:
        dtype, shape, data = triple
        inline = isinstance(data, msgpack.ExtType)
        return TensorValue(dtype, tuple(shape), data.data if inline else memoryview(self.auxiliary[data - 1]))


def media_element(payload: bytes) -> bytes:
    """The third element of a request, as it stands there."""
    reader = msgpack.Unpacker(strict_map_key=False)
    reader.feed(payload)
    reader.read_array_header()
    reader.skip()
    reader.skip()
    start = reader.tell()
    reader.skip()
    return payload[start : reader.tell()]


def read(path: Path) -> Captured:
    """A captured message, or the features of one."""
    vector = json.loads(path.read_text())
    if "frame0_hex" in vector:
        # Frames that are not in the file: any bytes of their length will do.
        frames = [bytes(frame["bytes"]) for frame in vector["aux"]]
        frames = [bytes.fromhex(frame) for frame in vector.get("aux_hex", ())] or frames
        return Captured(path.stem, vector["prompt_token_ids"], bytes.fromhex(vector["frame0_hex"]), frames)
    _, payload, *frames = map(bytes.fromhex, vector["frames_hex"])
    prompt = msgpack.unpackb(payload, strict_map_key=False)[1]
    return Captured(path.stem, prompt, media_element(payload), frames)
