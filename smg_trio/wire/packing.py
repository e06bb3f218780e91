"""msgpack as both engine protocols use it: one packer, one unpacker, one kind of failure.

Only msgpack's C extension is accepted. Its Python fallback is some 40 times slower, which would not
show in any test but would stall every stream, so its absence is an import error.

Extension types (vLLM and TokenSpeed share them): 3 is raw tensor bytes; 1 and 2 are pickles, which an
engine sends only if its operator allowed insecure serialization, and which are always refused here.

Mirrors ``CUSTOM_TYPE_*`` of vLLM 0.32.0's `vllm/v1/serial_utils.py`; TokenSpeed 0.1.1's
`tokenspeed/runtime/engine/zmq_msgpack.py` has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgpack

if msgpack.Packer.__module__ == "msgpack.fallback":
    raise ImportError(
        "msgpack's C extension is missing: install msgpack from a binary wheel, or build it with a "
        "C compiler and without MSGPACK_PUREPYTHON set."
    )

Frame: TypeAlias = bytes | memoryview
"""One part of a message that is sent. A view is of single bytes in one dimension."""

TENSOR_EXT: Final = 3
"""Extension type of inline tensor bytes."""

MAX_FRAME_BYTES: Final = 1 << 30
"""Largest frame that is decoded. Element counts inside it are bounded by its size (msgpack's default)."""


class Malformed(ValueError):
    """What was wrong with a frame, in words that hold no payload bytes."""


MALFORMED: Final = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
    msgpack.UnpackException,
)
"""What decoding foreign bytes may raise; callers turn all of it into ``ProtocolViolation``."""


def describe(error: BaseException) -> str:
    """The reason of a decode failure without any payload bytes."""
    if isinstance(error, Malformed):
        return str(error)
    return f"malformed message ({type(error).__name__})"


def pack(value: object, default: Callable[[Any], Any] | None = None) -> bytes:
    """Encode ``value``; ``default`` turns objects msgpack does not know into ones it does (else: mappings to maps)."""
    packed: bytes = _packer.pack(value) if default is None else _packb(value, default=default)
    return packed


def unpack(frame: bytes) -> Any:
    """Decode one frame: arrays as list, maps as dict with any hashable key, ext 3 as bytes.

    Raises:
        any of `MALFORMED`.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise Malformed(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _unpackb(frame, strict_map_key=False, ext_hook=_tensor_bytes_only)


def unpack_map(frame: bytes) -> dict[Any, Any]:
    """Decode a frame that must be a map. Raises any of `MALFORMED`."""
    value = unpack(frame)
    if type(value) is not dict:
        raise Malformed("expected a map")
    return value


def _tensor_bytes_only(code: int, data: bytes) -> bytes:
    if code == TENSOR_EXT:
        return data
    raise Malformed(f"msgpack extension type {code} is not accepted")


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot encode a {type(value).__name__}")


_unpackb: Final = msgpack.unpackb
_packb: Final = msgpack.packb
# A packer of one's own call takes a buffer of 256 KB for every message. Only the loop's thread packs.
_packer: Final = msgpack.Packer(default=_as_dict)


def expect_map(value: Any) -> dict[str, Any]:
    """The value, which has to be a map. Raises Malformed."""
    if type(value) is not dict:
        raise Malformed("expected a map")
    return value
