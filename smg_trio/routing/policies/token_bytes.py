"""Token ids as bytes, four each: what hashes and prefix trees work on, since bytes are compared and sliced in C."""

from __future__ import annotations

import struct
from collections.abc import Sequence

TOKEN_BYTES = 4


def token_bytes(token_ids: Sequence[int]) -> bytes | None:
    """The ids as little-endian 32-bit numbers; None if one does not fit (no vocabulary has such)."""
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        return None
