"""Ids of tool calls where a family has its own form for them and the model did not write one.

Everywhere else the API makes ids of its own form (``call_…``, ``toolu_…``).
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from functools import partial
from typing import Final

MakeCallId = Callable[[int, str], str]
"""Index of the call in its answer and name of the function to an id."""

_MISTRAL_ALPHABET: Final = string.ascii_letters + string.digits
_MISTRAL_LENGTH: Final = 9


def _kimi_k2(earlier: int, index: int, name: str) -> str:
    return f"functions.{name}:{earlier + index}"


def _mistral(earlier: int, index: int, name: str) -> str:
    """Mistral's templates refuse ids that are not nine letters or digits."""
    del earlier, index, name
    return "".join(secrets.choice(_MISTRAL_ALPHABET) for _ in range(_MISTRAL_LENGTH))


_STYLES: Final[dict[str, Callable[[int, int, str], str]]] = {"kimik2": _kimi_k2, "mistral": _mistral}


def call_ids(parser: str | None, earlier: int = 0) -> MakeCallId | None:
    """What makes ids for the family of this tool-call parser; None where the API's own form will do.

    Args:
        earlier: calls that the conversation holds already (Kimi counts on over all turns).
    """
    style = _STYLES.get(parser or "")
    return partial(style, earlier) if style else None
