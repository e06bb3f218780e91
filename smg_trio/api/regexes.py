"""Is this pattern a regex in any dialect? Python's compiler stands in for the engines'.

Engines read Rust's, Python's or ECMA's dialect, so most of what Python refuses may be fine there. Only
faults of structure count: an open group or set, a repeat of nothing, a range that runs backwards.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from smg_trio.api.fields import refuse, string

_CHECKED_CHARS = 10_000
_BROKEN_ANYWHERE = (
    "missing )",
    "unbalanced parenthesis",
    "unterminated character set",
    "nothing to repeat",
    "min repeat greater than max repeat",
)


def check_regex(value: Any, param: str) -> str:
    """A regex that is not broken in every dialect; very long ones are left to the engine.

    Raises:
        InvalidRequest: no string, a NUL character, or a fault of structure.
    """
    pattern = string(value, param)
    if "\x00" in pattern:
        raise refuse(param, "must not hold a NUL character")
    if len(pattern) <= _CHECKED_CHARS:
        _compile(pattern, param)
    return pattern


def _compile(pattern: str, param: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error as exc:
        if exc.msg.startswith(_BROKEN_ANYWHERE):
            raise refuse(param, f"the regex does not compile: {exc.msg}") from exc
    except (RecursionError, OverflowError) as exc:
        raise refuse(param, "the regex is too complex") from exc
