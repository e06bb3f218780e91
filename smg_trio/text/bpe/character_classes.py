r"""What ``\p{L}`` and its like stand for, as the library sees them.

Engines for regular expressions bring the character table of some Unicode version, and versions differ: a letter of a
young script is a letter to one and nothing to the other. So the library is asked itself, for all characters of the
basic plane and for emoji; texts with others are better left to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
r"""All of ``\s`` in Oniguruma and in Rust's ``regex``. Python's own has U+001C to U+001F too."""

_FOLDS_TO_ASCII: Final = "\u0130\u0131\u017f\u212a"
"""Letters that some engines take for an ASCII letter of another case."""
_PLANES: Final = (range(0xD800), range(0xE000, 0x10000), range(0x1F000, 0x1FB00))
_KNOWN: Final = "".join(chr(code) for plane in _PLANES for code in plane if chr(code) not in _FOLDS_TO_ASCII)

UNKNOWN_CHARACTER: Final = re.compile(rf"[{_FOLDS_TO_ASCII}\ud800-\udfff\U00010000-\U0001efff\U0001fb00-\U0010ffff]")
"""Finds a character that is in no class."""


def members(name: str) -> str | None:
    """Characters with a property (``L``, ``Lu``, ``Han``), as ranges for use within a class.

    None if there are none, or the property does not exist.
    """
    return matching(rf"\p{{{name}}}")


@lru_cache(maxsize=64)
def matching(expression: str) -> str | None:
    """Characters that an expression for one character matches, as ranges for use within a class; None if none does."""
    try:
        finder = Split(Regex(f"(?:{expression})+"), "removed", invert=True)
    except Exception:  # noqa: BLE001 - the library raises no other
        return None
    return _as_ranges("".join(piece for piece, _ in finder.pre_tokenize_str(_KNOWN))) or None


def _as_ranges(chars: Iterable[str]) -> str:
    """`chars` in ascending order."""
    ranges: list[list[int]] = []
    for code in map(ord, chars):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)
