"""What a message to an engine is about, without decoding it as a whole; for those who only hand it on."""

from __future__ import annotations

from typing import Final

import msgpack

_ADD: Final = b"\x00"
_ABORT: Final = b"\x01"


def added_id(frames: list[bytes]) -> str | None:
    """The id of the request that the message adds, None if it adds none.

    It is the first element of vLLM's payload, and the second of TokenSpeed's, whose first names the record.
    """
    if len(frames) < 2 or frames[0] != _ADD:
        return None
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(frames[1])
    try:
        length = unpacker.read_array_header()
        first = unpacker.unpack()
        if first == "TokenizedGenerateReqInput" and length > 1:
            first = unpacker.unpack()
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    return first if isinstance(first, str) else None


def aborted_ids(frames: list[bytes]) -> list[str]:
    """The ids of the requests that the message aborts; [] if it aborts none."""
    if len(frames) < 2 or frames[0] != _ABORT:
        return []
    try:
        ids = msgpack.unpackb(frames[1])
    except (ValueError, msgpack.exceptions.UnpackException):
        return []
    return [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []
