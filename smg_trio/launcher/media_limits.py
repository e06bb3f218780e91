"""How many images and videos a request may have, said once for vLLM's engines and the gateway. Pure.

The engine takes its memory by ``--limit-mm-per-prompt`` and enforces nothing; the gateway enforces ``--limit-mm``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from smg_trio.core.errors import ConfigError
from smg_trio.settings.media import media_limits

_FLAG: Final = "--limit-mm-per-prompt"


def limits_of_engine(words: Sequence[str]) -> tuple[str, ...] | None:
    """What the engine's flag says, as ``--limit-mm`` would; None where the flag is not there.

    Both forms that vLLM 0.32 takes are read: JSON, and one word per modality (``--limit-mm-per-prompt.image 4``).

    Raises:
        ConfigError: neither form.
    """
    found: dict[str, Any] = {}
    for name, value in _values(words):
        if name:
            found[name] = _number(value)
        else:
            found |= _from_json(value)
    return tuple(f"{name}={count}" for name, count in found.items() if name in _MODALITIES) or None


def limits_for_engine(limits: Sequence[str]) -> list[str]:
    """``--limit-mm`` as words of an engine's command line."""
    return [_FLAG, json.dumps(dict(media_limits(limits)), separators=(",", ":"))]


def _values(words: Sequence[str]) -> list[tuple[str, str]]:
    """Modality ("" for the flag itself) and value of each mention."""
    values = []
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        name = name.replace("_", "-")
        if name == _FLAG or name.startswith(f"{_FLAG}."):
            if not separator:
                value = words[index + 1] if index + 1 < len(words) else ""
            values.append((name.removeprefix(_FLAG).removeprefix(".").partition(".")[0], value))
    return values


def _from_json(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(_FLAG, f"is not a JSON object: {text!r}.", """Write '{"image":4}'.""")
    return {name: _number(value) for name, value in found.items()}


def _number(value: Any) -> int:
    """A count; vLLM also takes an object with one, beside the sizes that it makes room for."""
    if isinstance(value, Mapping):
        value = value.get("count", 999)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(_FLAG, f"{value!r} is no number of images or videos.", """Write '{"image":4}'.""") from None


_MODALITIES: Final = tuple(media_limits(()))
