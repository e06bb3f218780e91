"""Effective settings as text: every one, its value, and where it came from. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from smg_trio.settings.settings import options

if TYPE_CHECKING:
    from smg_trio.settings.sources import Layer, Sourced


def settings_text(layers: Layer) -> str:
    """Every setting, its value and its origin, as TOML that can be fed back; secrets are only said to be there."""
    lines: list[str] = []
    group = ""
    for option in options():
        if option.metadata["group"] != group:
            group = option.metadata["group"]
            lines += [""] if lines else []
            lines.append(f"# ---- {group} ----")
        lines.append(_setting_line(option, layers[option.name]))
    return "\n".join(lines) + "\n"


def _setting_line(option: dataclasses.Field[Any], sourced: Sourced) -> str:
    origin = _on_one_line(sourced.origin)
    if option.metadata["secret"] and sourced.value:
        hidden = '["********"]' if isinstance(sourced.value, tuple) else '"********"'
        return f"# {option.name} = {hidden}  # {origin}; not shown"
    if sourced.value is None:
        return f"# {option.name} is not set  # {origin}"
    return f"{option.name} = {_toml(sourced.value)}  # {origin}"


def _on_one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return '"' + "".join(map(_toml_character, value)) + '"'


def _toml_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    # A half of a surrogate pair, as undecodable words of a command line have it, is no text in TOML.
    code = ord(character)
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code < 0xE000 else f"\\U{code:08X}"
