"""Tensor triples."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_trio.core.tensors import TensorValue
from smg_trio.wire.packing import MALFORMED, Malformed
from smg_trio.wire.tensors import ITEM_SIZES, decode_rows, decode_tensor, encode_tensor

STRUCT_CODES = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


def test_the_same_values_come_inline_and_from_a_frame() -> None:
    data = struct.pack("<6i", *range(6))
    assert decode_rows(["<i4", [2, 3], data], [b""]) == [[0, 1, 2], [3, 4, 5]]
    assert decode_rows(["int32", [2, 3], 2], [b"payload", b"", data]) == [[0, 1, 2], [3, 4, 5]]


def test_numpy_byte_orders_are_honoured() -> None:
    assert decode_tensor([">i4", [1], b"\0\0\1\0"], [])[1] == [256]
    assert decode_tensor(["<i4", [1], b"\0\1\0\0"], [])[1] == [256]
    assert decode_tensor(["|b1", [2], b"\0\1"], [])[1] == [False, True]


def test_bfloat16_is_the_upper_half_of_a_float() -> None:
    values = [1.0, -2.5, float("inf"), 0.0]
    data = b"".join(struct.pack("<f", value)[2:] for value in values)
    assert decode_tensor(["bfloat16", [2, 2], data], []) == ([2, 2], values)


def test_one_dimension_is_one_column_and_a_scalar_is_no_table() -> None:
    assert decode_rows(["<i4", [2], struct.pack("<2i", 7, 8)], []) == [[7], [8]]
    assert decode_tensor(["<i4", [], struct.pack("<i", 7)], []) == ([], [7])
    assert decode_rows(["<f4", [0, 5], b""], []) == []
    with pytest.raises(Malformed):
        decode_rows(["<i4", [], struct.pack("<i", 7)], [])


@pytest.mark.parametrize(
    "triple",
    [
        None, [], ["<i4", [1]], ["<i4", 1, b"\0" * 4], ["<i4", [-1], b""], ["<i4", [1.0], b"\0" * 4],
        ["<i4", [True], b"\0" * 4], ["complex64", [1], b"\0" * 8], [None, [1], b"\0" * 4],
        [["<i4"], [1], b"\0" * 4], ["<i4", [2], b"\0" * 4], ["<i4", [1], b"\0" * 5], ["<i4", [1], 0],
        ["<i4", [1], -1], ["<i4", [1], 2], ["<i4", [1], True], ["<i4", [1], {"handle": 1}],
        ["bfloat16", [1], b"\0"], ["<i4", [1 << 62] * 400, b""],
    ],
)  # fmt: skip
def test_a_broken_triple_is_malformed(triple: Any) -> None:
    with pytest.raises(MALFORMED):
        decode_tensor(triple, [b"\0" * 4, b"\0" * 4])


def test_256_bytes_go_to_a_frame_and_less_stays_inline() -> None:
    auxiliary: list[bytes] = []
    small = encode_tensor(TensorValue("uint8", (255,), b"s" * 255), auxiliary)
    assert small == ["uint8", [255], msgpack.ExtType(3, b"s" * 255)]
    assert auxiliary == []
    first = encode_tensor(TensorValue("uint8", (256,), b"a" * 256), auxiliary)
    second = encode_tensor(TensorValue("uint8", (1, 300), b"b" * 300), auxiliary)
    assert (first[2], second[2]) == (1, 2)
    assert auxiliary == [b"a" * 256, b"b" * 300]


@settings(max_examples=60)
@given(st.sampled_from(sorted(STRUCT_CODES)), st.integers(0, 9), st.integers(1, 9), st.data())
def test_what_is_encoded_decodes_to_the_same_values(dtype: str, rows: int, columns: int, data: st.DataObject) -> None:
    count = rows * columns
    raw = data.draw(st.binary(min_size=count * ITEM_SIZES[dtype], max_size=count * ITEM_SIZES[dtype]))
    auxiliary: list[bytes] = []
    triple = encode_tensor(TensorValue(dtype, (rows, columns), raw), auxiliary)
    if isinstance(triple[2], msgpack.ExtType):
        triple[2] = triple[2].data
    shape, values = decode_tensor(triple, [b"", *auxiliary])
    assert shape == [rows, columns]
    # NaN differs from itself, so the bytes are compared.
    assert struct.pack(f"<{count}{STRUCT_CODES[dtype]}", *values) == normal(dtype, raw, count)


def normal(dtype: str, raw: bytes, count: int) -> bytes:
    layout = f"<{count}{STRUCT_CODES[dtype]}"
    return struct.pack(layout, *struct.unpack(layout, raw))
