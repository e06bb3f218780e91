"""JSON texts that models write, read without turning their numbers into Python's.

A model may write ``1e999``, which no double holds, or an integer of more digits than Python converts. Neither may be
lost or become ``Infinity``, so what only needs to be looked at is read with its numbers as the text that stands there.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


class NumberText(str):
    """A number as it was written."""

    __slots__ = ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_int=NumberText, parse_float=NumberText, parse_constant=_refuse)


def load_exact(text: str) -> Any:
    """A JSON text's value, numbers as `NumberText`.

    Raises:
        ValueError: it is not JSON, also for ``NaN`` and ``Infinity``.
        RecursionError: it nests too deeply.
    """
    return _decoder.decode(text)


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value, not nested too deeply."""
    try:
        _decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
