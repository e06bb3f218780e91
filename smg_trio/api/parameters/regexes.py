"""Is this pattern a regex in any dialect? Python's compiler stands in for the engines'.

Engines read Rust's, Python's or ECMA's dialect, so most of what Python refuses may be fine there. Only
faults of structure count: an open group or set, a repeat of nothing, a range that runs backwards.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, Final

from smg_trio.api.parameters.fields import refuse, string

MAX_REGEX_CHARS = 262_144
"""As for every constraint; real ones are a thousandth of it."""
MAX_REGEX_DEPTH = 64
"""Groups within groups, as for schemas: what compiles a regex recurses into them."""
_PIECES = re.compile(r"\\.?|\[(?:\\.?|[^\]\\])*(?:\]|\Z)|[()]", re.DOTALL)
"""Escapes and sets, which hide parentheses, and parentheses. It cannot fail within a piece, so it never goes back."""
_CHECKED_CHARS = 10_000
_BROKEN_ANYWHERE = (
    "missing )",
    "unbalanced parenthesis",
    "unterminated character set",
    "nothing to repeat",
    "min repeat greater than max repeat",
)


def _parser() -> Callable[[str], object]:
    """What reads a pattern and compiles nothing. It has no public name; where it has gone, patterns are compiled."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:
        return re.compile
    parse: Callable[[str], object] = getattr(parser, "parse", re.compile)
    return parse


_take_apart: Final = _parser()


def check_regex(value: Any, param: str) -> str:
    """A regex that is not broken in every dialect; very long ones are left to the engine.

    Raises:
        InvalidRequest: no string, a NUL character, groups nested too deeply, or a fault of structure.
    """
    pattern = string(value, param)
    if len(pattern) > MAX_REGEX_CHARS:
        raise refuse(param, f"at most {MAX_REGEX_CHARS} characters are allowed")
    if "\x00" in pattern:
        raise refuse(param, "must not hold a NUL character")
    check_regex_depth(pattern, param)
    if len(pattern) <= _CHECKED_CHARS:
        _parse(pattern, param)
    return pattern


def check_regex_depth(pattern: str, param: str) -> None:
    """Refuse a regex whose groups nest deeper than `MAX_REGEX_DEPTH`."""
    if pattern.count("(") <= MAX_REGEX_DEPTH:
        return
    depth = 0
    for piece in _PIECES.finditer(pattern):
        text = piece[0]
        depth += (text == "(") - (text == ")" and depth > 0)
        if depth > MAX_REGEX_DEPTH:
            raise refuse(param, f"the groups of a regex may nest at most {MAX_REGEX_DEPTH} levels")


def _parse(pattern: str, param: str) -> None:
    """Take the pattern apart; what the library would then make of it can take far longer, and shows nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _take_apart(pattern)
    except re.error as exc:
        if exc.msg.startswith(_BROKEN_ANYWHERE):
            raise refuse(param, f"the regex does not compile: {exc.msg}") from exc
    except (RecursionError, OverflowError) as exc:
        raise refuse(param, "the regex is too complex") from exc
