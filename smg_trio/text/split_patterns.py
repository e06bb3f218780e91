"""A tokenizer file's split patterns, written for Python's ``re``. Pure.

The files hold Oniguruma's dialect. What they use of it is little, and all of it is translated exactly or not at all:
properties become the characters that the library finds for them, so a translated pattern does the same as there for
every text in which `character_classes.UNKNOWN_CHARACTER` finds nothing.
"""

from __future__ import annotations

import re
from typing import Final

from smg_trio.text.character_classes import WHITE_SPACE, members

_WORD: Final = re.compile(
    r"(?P<property>\\p\{(?P<name>\w+)\})"
    r"|(?P<space>\\s)|(?P<no_space>\\S)|\\(?P<control>[rntfv])|\\(?P<escaped>[^\w\s])"
    r"|(?P<open>\[\^?)|(?P<close>\])"
    r"|(?P<group>\(\?(?::|i:|!|=)|\))|(?P<or>\|)|(?P<repeat>[?*+]\+?|\{\d+(?:,\d*)?\}(?!\+))"
    r"|(?P<literal>[^\\.^$(){}\[\]|?*+])|(?P<in_class>[.^$(){}|?*+])",
    re.DOTALL,
)


def translate(pattern: str) -> re.Pattern[str] | None:
    """A pattern whose `findall` gives the pieces that a split at every match leaves, matches and what lies between.

    None if the pattern uses anything that is not translated here, or could match nothing at all.
    """
    written = _write(pattern)
    if written is None:
        return None
    try:
        # The last alternative is what lies between two matches; most patterns leave nothing to it.
        compiled = re.compile(f"(?:{written})|(?:(?!{written})[\\s\\S])+")
        return None if re.match(written, "") else compiled
    except re.error:
        return None


def _write(pattern: str) -> str | None:
    parts: list[str] = []
    place, in_class = 0, False
    while place < len(pattern):
        word = _WORD.match(pattern, place)
        written = None if word is None else (_in_class(word) if in_class else _outside(word))
        if word is None or written is None:
            return None
        parts.append(written)
        in_class = (in_class or word["open"] is not None) and word["close"] is None
        place = word.end()
    # A set operation, which Python has not.
    return None if in_class or "&&" in pattern else "".join(parts)


def _outside(word: re.Match[str]) -> str | None:
    kind = word.lastgroup
    if kind in ("open", "group", "or", "repeat"):
        return word[0]
    if kind == "no_space":
        return f"[^{WHITE_SPACE}]"
    if kind in ("close", "in_class"):
        return None
    inner = _in_class(word)
    return f"[{inner}]" if inner is not None and kind in ("name", "property", "space") else inner


def _in_class(word: re.Match[str]) -> str | None:
    if word["property"]:
        return members(word["name"])
    if word["space"]:
        return WHITE_SPACE
    if word["control"]:
        return word[0]
    if word["escaped"]:
        return re.escape(word["escaped"])
    if word["close"] or word[0] == "-":
        return word[0]
    if word["open"] or word["no_space"] or word["group"] not in (None, ")"):
        return None
    return re.escape(word[0])
