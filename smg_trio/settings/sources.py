"""Where settings come from: defaults, a TOML file, ``SMG_TRIO_*`` variables and the command line; the last one wins.

Every value keeps its origin, so that a complaint can say where the wrong one stands. Pure: file and environment come in
as text and mapping.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from smg_trio.core.errors import ConfigError
from smg_trio.settings.checks import check_settings
from smg_trio.settings.flags import flag_of, flags_of
from smg_trio.settings.settings import Settings, options

PREFIX: Final = "SMG_TRIO_"
CONFIG_VARIABLE: Final = "SMG_TRIO_CONFIG"
"""Names the file where no ``--config`` does."""
_KUBERNETES: Final = re.compile(r"SMG_TRIO_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)")
"""What Kubernetes puts into every pod beside a service named smg-trio."""
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_FIELDS: Final = {option.name: option for option in options()}


def _kinds() -> dict[str, type]:
    kinds: dict[str, type] = {}
    for name, hint in get_type_hints(Settings).items():
        (kind,) = {part for part in get_args(hint) if part is not NoneType and part is not Ellipsis} or {hint}
        kinds[name] = tuple if isinstance(_FIELDS[name].default, tuple) else kind
    return kinds


_KINDS: Final = _kinds()
_KIND_WORDS: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
}


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value and where it came from: ``default``, a flag, a variable, or ``file: key``."""

    value: Any
    origin: str


Layer = Mapping[str, Sourced]
"""What one source says, by field name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A source that was read: what it says, and what in it was not understood."""

    layer: Layer
    problems: Sequence[ConfigError] = ()

    def checked(self) -> Layer:
        """The layer. Raises the first problem."""
        for problem in self.problems:
            raise problem
        return self.layer


def defaults() -> Layer:
    """What holds where nothing is said."""
    return {option.name: Sourced(option.default, "default") for option in options()}


def layer_of_flags(given: Mapping[str, Any]) -> Layer:
    """What a command line gave, by field name; lists become tuples, other names are left out."""
    return {
        name: Sourced(tuple(value) if isinstance(value, list) else value, flag_of(name))
        for name, value in given.items()
        if name in _FIELDS
    }


def merged(*layers: Layer) -> dict[str, Sourced]:
    """One above the other, the last one on top."""
    result: dict[str, Sourced] = {}
    for layer in layers:
        result |= layer
    return result


def settings_of(layers: Layer) -> Settings:
    """The settings, checked. Raises ConfigError, which names a value's origin where that is no flag."""
    settings = Settings(**{name: sourced.value for name, sourced in layers.items()})
    try:
        check_settings(settings)
    except ConfigError as error:
        raise with_origin(error, layers) from None
    return settings


def with_origin(error: ConfigError, layers: Layer) -> ConfigError:
    """The same complaint with the origin of the value it is about."""
    sourced = layers.get(error.option.removeprefix("--").replace("-", "_"))
    if sourced is None or sourced.origin == "default" or sourced.origin.startswith("-"):
        return error
    return ConfigError(error.option, error.problem, error.remedy or f"Change {sourced.origin}.", origin=sourced.origin)


# ---- file -------------------------------------------------------------------------------------------------


def read_toml(text: str, file: str) -> Reading:
    """What a TOML file with this text says: a key per setting, named as its field, at the top level.

    `file` is its name for messages. Raises ConfigError if it is no TOML; other problems are all in the reading.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--config", f"{file} is not valid TOML: {error}.", "Quote string values.") from None
    layer: dict[str, Sourced] = {}
    problems: list[ConfigError] = []
    for key, value in document.items():
        name = key.replace("-", "_")
        if name in layer:
            problems.append(ConfigError(flag_of(name), "is given twice.", "Keep one.", origin=f"{file}: {key}"))
        elif name not in _FIELDS:
            problems.append(_unknown_key(key, value, file))
        elif isinstance(checked := _toml_value(name, value, f"{file}: {key}"), ConfigError):
            problems.append(checked)
        else:
            layer[name] = Sourced(checked, f"{file}: {key}")
    return Reading(layer, problems)


def _unknown_key(key: str, value: Any, file: str) -> ConfigError:
    if isinstance(value, dict):
        remedy = "There are no tables: write every setting at the top level."
    else:
        remedy = _did_you_mean(_nearest(key.replace("-", "_"))) or "`config show` lists all settings."
    return ConfigError("--config", f"{file} has the unknown key {key!r}.", remedy)


def _nearest(name: str) -> str | None:
    aliases = {
        flag.removeprefix("--").replace("-", "_"): option.name for option in options() for flag in flags_of(option)
    }
    found = get_close_matches(name, aliases, n=1)
    return aliases[found[0]] if found else None


def _did_you_mean(name: str | None) -> str:
    return f"Did you mean {name}?" if name else ""


def _toml_value(name: str, value: Any, origin: str) -> Any:
    """The value as the field's type, or what is wrong with it."""
    kind = _KINDS[name]
    if kind is tuple and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if _FIELDS[name].metadata["metavar"] == "N|auto" and type(value) is int:
        return str(value)
    if type(value) is not kind or kind is tuple:
        remedy = f"For example {name} = {_toml_example(name)}."
        return ConfigError(flag_of(name), f"must be {_KIND_WORDS[kind]}{_shown(name, value)}.", remedy, origin=origin)
    return _of_choices(name, value, origin)


def _toml_example(name: str) -> str:
    examples = {bool: "true", int: "1", float: "1.5", str: '"text"', tuple: '["text"]'}
    default = _FIELDS[name].default
    if default and not isinstance(default, (bool, tuple)):
        return f'"{default}"' if isinstance(default, str) else str(default)
    return examples[_KINDS[name]]


def _shown(name: str, value: Any) -> str:
    return "" if _FIELDS[name].metadata["secret"] else f", got {value!r}"


def _of_choices(name: str, value: Any, origin: str) -> Any:
    choices = _FIELDS[name].metadata["choices"]
    if choices and value not in choices:
        near = get_close_matches(str(value), choices, n=1)
        remedy = f"{_did_you_mean(near[0] if near else None)} It is one of {', '.join(choices)}.".lstrip()
        return ConfigError(flag_of(name), f"{value!r} is not among its values.", remedy, origin=origin)
    return value


# ---- environment ------------------------------------------------------------------------------------------


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + name.upper()


def read_environment(environment: Mapping[str, str]) -> tuple[Reading, list[str]]:
    """What ``SMG_TRIO_*`` variables say, and warnings about those that say nothing.

    An empty variable counts as unset, except where that would leave the gateway open.
    """
    layer: dict[str, Sourced] = {}
    problems: list[ConfigError] = []
    warnings: list[str] = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if variable == "SMG_TRIO_PORT" and "://" in text:
            warnings.append(
                f"{variable}={text} is Kubernetes' link to a service of this name, not a port: ignored. "
                "Set enableServiceLinks: false in the pod, or give --port."
            )
        elif name not in _FIELDS or variable != variable_of(name):
            if not _KUBERNETES.fullmatch(variable):
                near = _nearest(name)
                hint = _did_you_mean(variable_of(near) if near else None)
                warnings.append(f"the environment variable {variable} is not a setting: ignored. {hint}".rstrip())
        elif text.strip() or _FIELDS[name].metadata["guards"]:
            value = _variable_value(name, text, variable)
            if isinstance(value, ConfigError):
                problems.append(value)
            else:
                layer[name] = Sourced(value, variable)
    return Reading(layer, problems), warnings


def _variable_value(name: str, text: str, variable: str) -> Any:
    """The text as the field's type, or what is wrong with it."""
    kind = _KINDS[name]
    if not text.strip():
        return ConfigError(flag_of(name), "is empty.", f"Unset {variable}, or give it a value.", origin=variable)
    try:
        value = _parsed(kind, text.strip())
    except ValueError:
        remedy = f"Change {variable} or unset it."
        return ConfigError(flag_of(name), f"must be {_KIND_WORDS[kind]}{_shown(name, text)}.", remedy, origin=variable)
    return _of_choices(name, value, variable)


def _parsed(kind: type, text: str) -> Any:
    if kind is tuple:
        return tuple(word for word in re.split(r"[,\s]+", text) if word)
    if kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    return kind(text)
