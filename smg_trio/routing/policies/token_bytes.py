"""Token ids as bytes, four each: what hashes and prefix trees work on, since bytes are compared and sliced in C.

Text stands for itself: four bytes of it are about a token, too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

TOKEN_BYTES = 4


def token_bytes(token_ids: Sequence[int]) -> bytes | None:
    """The ids as little-endian 32-bit numbers; None if one does not fit (no vocabulary has such). Bytes stay bytes."""
    if isinstance(token_ids, bytes):
        return token_ids
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        return None
