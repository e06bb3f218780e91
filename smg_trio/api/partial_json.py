"""Tool-call arguments that may have been cut off: as much of the object as was said for certain.

A body has to show an object where a stream shows pieces of text. The official clients of streams read a cut
text in the same way, so an answer that ran into its token limit looks alike in both forms. The object stays text:
what is certain is shown as the model wrote it, numbers that no double holds included.
"""

from __future__ import annotations

import re
from typing import Final

from smg_trio.core.exact_json import load_exact

_TOKEN: Final = re.compile(
    r'[ \t\n\r]*(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<scalar>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\d.eE+-])|true|false|null)"
    r"|(?P<mark>[][{}:,]))"
)
_CLOSER: Final = {"{": "}", "[": "]"}
_MAX_DEPTH: Final = 128


def partial_object(text: str) -> str:
    """JSON text of the object that ``text`` is or begins; members that are not complete are left out.

    ``{}`` if there is no object.
    """
    if _is_object(text):
        return text
    closed = _closed_prefix(text)
    return closed if _is_object(closed) else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(load_exact(text), dict)
    except (ValueError, RecursionError):
        return False


def _closed_prefix(text: str) -> str:
    """The longest beginning that ends in a whole value, with what is open closed."""
    closers: list[str] = []
    whole, position = "", 0
    is_value = True  # whether a scalar here is a value; in an object it may be a key
    while (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        mark = token["mark"]
        if mark in ("{", "["):
            closers.append(_CLOSER[mark])
        elif mark in ("}", "]") and (not closers or closers.pop() != mark):
            break
        if mark in ("{", "[", "}", "]") or (mark is None and is_value):
            whole = text[:position] + "".join(reversed(closers))
        is_value = mark in (":", "[") or (mark == "," and closers[-1:] == ["]"])
        if not 0 < len(closers) <= _MAX_DEPTH:
            break
    return whole
