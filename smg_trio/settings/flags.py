"""One option as a field of `Settings` and as a flag of the command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any


def option(
    default: Any,
    help: str,
    group: str,
    *,
    flags: Sequence[str] = (),
    metavar: str | None = None,
    choices: Sequence[str] | None = None,
    secret: bool = False,
    guards: bool = False,
) -> Any:
    """A field. `secret`: never shown. `guards`: empty is refused, not taken for unset, which would leave it open."""
    metadata: Mapping[str, Any] = {
        "help": help,
        "group": group,
        "flags": tuple(flags),
        "metavar": metavar,
        "choices": choices,
        "secret": secret,
        "guards": guards,
    }
    if isinstance(default, (list, tuple)):
        return field(default=tuple(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def flags_of(setting: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Every command-line flag of a field, its own first."""
    return (flag_of(setting.name), *setting.metadata["flags"])


def argument_keywords(setting: dataclasses.Field[Any]) -> dict[str, Any]:
    """What `argparse` is told about a field beside its flags. What is not given is not among the parsed either."""
    metadata = setting.metadata
    keywords: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS, "help": _help_of(setting)}
    if isinstance(setting.default, bool):
        return keywords | {"action": argparse.BooleanOptionalAction}
    number = isinstance(setting.default, (int, float))
    keywords["metavar"] = metadata["metavar"] or ("NAME" if metadata["choices"] else "N" if number else "TEXT")
    if metadata["choices"]:
        keywords["choices"] = metadata["choices"]
    elif isinstance(setting.default, tuple):
        keywords |= {"action": "extend", "nargs": "+"}
    elif isinstance(setting.default, (int, float)):
        keywords["type"] = type(setting.default)
    return keywords


def _help_of(setting: dataclasses.Field[Any]) -> str:
    text: str = setting.metadata["help"].replace("%", "%%")
    if setting.metadata["choices"]:
        text += f" One of {', '.join(setting.metadata['choices'])}."
    if setting.default is None or setting.default == ():
        return text
    if isinstance(setting.default, bool):
        return f"{text} (default: {'on' if setting.default else 'off'})"
    shown = " ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    return f"{text} (default: {shown})"
