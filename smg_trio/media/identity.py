"""What makes two items the same one, for the caches of gateway and engines.

An engine keeps what its encoder made of an item under the identifier alone, for all requests of all clients. So it
covers everything that the result depends on, and nothing that a client chose but the file itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_FORMAT = "smg-trio media 1"


def identifier(file: bytes, *, modality: str, family: str, recipe: Mapping[str, Any], model: str, dtype: str) -> str:
    """64 hexadecimal digits: BLAKE2b over the file and over what shapes its tensors.

    Args:
        recipe: as plain numbers.
        dtype: of normalised values.
    """
    head = json.dumps([_FORMAT, model, family, modality, dtype, recipe], sort_keys=True).encode()
    digest = hashlib.blake2b(len(head).to_bytes(8, "little"), digest_size=32)
    digest.update(head)
    digest.update(file)
    return digest.hexdigest()
