"""JSON values to text and bytes, as every answer shows them. Pure."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any


def encode_text(text: str) -> bytes:
    """JSON text to UTF-8. A lone surrogate (a model can make one) becomes ``?``: it is no text."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dump(value: Any) -> str:
    """Any JSON value as text, compact, characters as they are; a float that JSON has no number for is ``null``."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_finite(value))


def _finite(value: Any) -> Any:
    """The value with null for infinities and NaN: an engine, or a client whose words are repeated, may send some."""
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def dump_or_null(value: Any) -> str:
    """As `dump`, without a cost for what is nearly always None."""
    return "null" if value is None else dump(value)
