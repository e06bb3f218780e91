"""Tensors on the wire: ``[dtype, shape, data]`` triples, alike for vLLM and TokenSpeed.

``data`` is either the bytes themselves (msgpack extension 3; engines use it below 256 bytes and for
scalars) or the index of an auxiliary frame of the same message, where frame 0 is the payload. A
receiver must accept both at any size. numpy writes dtypes with a byte order (``<i4``), torch without
(``int32``). No numpy here: what is needed of a tensor is a Python list, which `struct` makes directly.

Mirrors vLLM 0.32.0's `vllm/v1/serial_utils.py` (``MsgpackEncoder._encode_tensor``, ``_encode_ndarray``) and TokenSpeed
0.1.1's `tokenspeed/runtime/engine/zmq_msgpack.py` (``MsgpackSendSocket``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgpack

from smg_trio.wire.packing import TENSOR_EXT, Frame, Malformed

if TYPE_CHECKING:
    from smg_trio.core.tensors import TensorValue

INLINE_BELOW_BYTES: Final = 256
"""Engines inline tensors smaller than this (vLLM's zero-copy threshold); so does `encode_tensor`."""

# bfloat16 is no struct format and handled apart.
_TORCH_DTYPES: Final = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "bool": "?",
}
_NUMPY_DTYPES: Final = {
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "b1": "?",
}
# dtype name -> (byte order, struct format).
_FORMATS: Final[dict[str, tuple[str, str]]] = {
    **{name: ("<", code) for name, code in _TORCH_DTYPES.items()},
    **{
        order + name: (">" if order == ">" else "<", code)
        for name, code in _NUMPY_DTYPES.items()
        for order in ("<", ">", "|", "=")
    },
}
_BFLOAT16: Final = "bfloat16"
ITEM_SIZES: Final[dict[str, int]] = {
    _BFLOAT16: 2,
    **{name: struct.calcsize("<" + code) for name, code in _TORCH_DTYPES.items()},
}
"""Bytes per element of the dtypes that can be sent."""


def decode_tensor(value: Any, frames: Sequence[bytes]) -> tuple[list[int], list[Any]]:
    """Decode a triple.

    Args:
        value: the decoded triple; further elements are ignored.
        frames: all frames of the message; the payload is frame 0.

    Returns:
        The shape, and the elements flat in C order as int, float or bool.

    Raises:
        Malformed: not a triple, unknown dtype, missing frame, or data that does not fill the shape.
    """
    if type(value) is not list or len(value) < 3:
        raise Malformed("expected a tensor triple")
    dtype, shape, data = value[:3]
    if type(shape) is not list:
        raise Malformed("tensor shape is not a list of sizes")
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise Malformed("tensor shape is not a list of sizes")
        count *= size
    if type(data) is not bytes:
        data = _auxiliary_bytes(data, frames)
    if dtype == _BFLOAT16:
        return shape, _bfloat16_elements(count, data)
    elements = _elements_of(dtype, count)
    if len(data) != elements.size:
        raise _wrong_size(elements.size, data)
    return shape, list(elements.unpack(data))


def decode_rows(value: Any, frames: Sequence[bytes]) -> list[list[Any]]:
    """Decode a triple of shape [rows, columns] (or [rows]: one column) into one list per row."""
    shape, flat = decode_tensor(value, frames)
    if not 1 <= len(shape) <= 2:
        raise Malformed(f"expected a tensor of one or two dimensions, got {len(shape)}")
    if not flat:
        return []
    columns = shape[1] if len(shape) == 2 else 1
    if columns == len(flat):
        return [flat]
    return [flat[start : start + columns] for start in range(0, len(flat), columns)]


def encode_tensor(tensor: TensorValue, auxiliary: list[Frame]) -> list[Any]:
    """The triple of a tensor; large data is appended to ``auxiliary``, the frames after the payload, uncopied."""
    shape = list(tensor.shape)
    if not shape or len(tensor.data) < INLINE_BELOW_BYTES:
        return [tensor.dtype, shape, msgpack.ExtType(TENSOR_EXT, bytes(tensor.data))]
    auxiliary.append(tensor.data)
    return [tensor.dtype, shape, len(auxiliary)]


def _auxiliary_bytes(data: Any, frames: Sequence[bytes]) -> bytes:
    # Index 0 would be the payload itself; bool is an int but no index.
    if type(data) is int and 0 < data < len(frames):
        return frames[data]
    if type(data) is int:
        raise Malformed(f"tensor data in frame {data} of a message of {len(frames)} frames")
    raise Malformed("tensor data is neither inline nor a frame index")


@lru_cache(maxsize=256)
def _elements_of(dtype: str, count: int) -> struct.Struct:
    """Log probabilities come in the same few shapes with every token, so this is mostly known."""
    layout = _FORMATS.get(dtype)
    if layout is None:
        raise Malformed("tensor of an unknown dtype")
    order, code = layout
    return struct.Struct(f"{order}{count}{code}")


def _bfloat16_elements(count: int, data: bytes) -> list[float]:
    # A bfloat16 is the upper half of a float32.
    if len(data) != count * 2:
        raise _wrong_size(count * 2, data)
    padded = bytearray(count * 4)
    padded[2::4] = data[::2]
    padded[3::4] = data[1::2]
    return list(struct.unpack(f"<{count}f", padded))


def _wrong_size(expected: int, data: bytes) -> Malformed:
    return Malformed(f"tensor of {expected} bytes has {len(data)} bytes of data")
