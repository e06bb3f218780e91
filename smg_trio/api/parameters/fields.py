"""Readers: one JSON value in, one typed value out, or an `InvalidRequest` that names the parameter.

A reader is called with the value and the parameter's path (``messages[2].content``). Endpoints are tables
of readers: `read_fields` looks only at the keys a body has, so a short body costs little. JSON ``null``
is the same as an absent key, and unknown keys are ignored, as vLLM's server does.

Numbers are read as generously as vLLM's request models read them (pydantic's lax mode): ``5.0`` and
``"5"`` are integers, ``"0.5"`` is a number, ``"true"`` and ``1`` are booleans. One difference on purpose:
a boolean is not a number.

What a reader takes is also known as a JSON schema (`schema_of`), which the OpenAPI document is made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isfinite
from typing import Any, TypeVar

from smg_trio.core.errors import InvalidRequest
from smg_trio.core.heavy_json import weight

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
R = TypeVar("R", bound=Reader)
Schema = dict[str, Any]

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
_SHOWN_CHARS = 48
_TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE_WORDS = frozenset({"false", "f", "no", "n", "off", "0"})


_SCHEMAS: dict[Reader, Schema] = {}


def described(schema: Schema) -> Callable[[R], R]:
    """Decorator of a reader that is defined once: the JSON schema of what it takes."""

    def register(reader: R) -> R:
        _SCHEMAS[reader] = schema
        return reader

    return register


def refuse(param: str, problem: str) -> InvalidRequest:
    """An `InvalidRequest` in the one wording all refusals share; ``problem`` completes the sentence."""
    return InvalidRequest(f"Invalid value for '{param}': {problem}.", param=param)


def describe(value: object) -> str:
    """A value as an error message may show it: short, and of arrays and objects only the kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "an array"
    shown = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge integer"
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


@described({"type": "integer"})
def integer(value: Any, param: str) -> int:
    """An integer of 64 bits (what the engine's wire can carry)."""
    number = value if type(value) is int else _lax_int(value)
    if number is None:
        raise refuse(param, f"expected an integer, got {describe(value)}")
    if not INT64_MIN <= number <= INT64_MAX:
        raise refuse(param, "the integer does not fit 64 bits")
    return number


def _lax_int(value: object) -> int | None:
    if isinstance(value, float):
        return int(value) if isfinite(value) and value == int(value) else None
    if not isinstance(value, str):
        return None
    digits, point, zeros = value.strip().partition(".")
    if point and (not digits or not zeros or zeros.strip("0")):
        return None
    try:
        return int(digits)
    except ValueError:
        return None


@described({"type": "number"})
def number(value: Any, param: str) -> float:
    """A finite number."""
    if type(value) is not float:
        value = _lax_float(value, param)
    if not isfinite(value):
        raise refuse(param, "must be a finite number")
    return float(value)


def _lax_float(value: object, param: str) -> float:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise refuse(param, f"expected a number, got {describe(value)}")


@described({"type": "boolean"})
def boolean(value: Any, param: str) -> bool:
    """A boolean, or one of the words and numbers that stand for one."""
    if type(value) is bool:
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        word = value.lower()
        if word in _TRUE_WORDS:
            return True
        if word in _FALSE_WORDS:
            return False
    raise refuse(param, f"expected a boolean, got {describe(value)}")


@described({"type": "string"})
def string(value: Any, param: str) -> str:
    """A string; numbers are not turned into text."""
    if isinstance(value, str):
        return value
    raise refuse(param, f"expected a string, got {describe(value)}")


@described({"type": "string", "minLength": 1})
def filled_string(value: Any, param: str) -> str:
    """A string that is not empty."""
    if not string(value, param):
        raise refuse(param, "must not be an empty string")
    return str(value)


@described({"type": "object"})
def mapping(value: Any, param: str) -> dict[str, Any]:
    """An object."""
    if isinstance(value, dict):
        return value
    raise refuse(param, f"expected an object, got {describe(value)}")


@described({"type": "array"})
def array(value: Any, param: str) -> list[Any]:
    """An array."""
    if isinstance(value, list):
        return value
    raise refuse(param, f"expected an array, got {describe(value)}")


def array_of(reader: Callable[[Any, str], T], *, maximum: int | None = None) -> Callable[[Any, str], list[T]]:
    """Reader of an array whose items ``reader`` reads; at most ``maximum`` items."""
    return partial(_read_array, reader, maximum)


def _read_array(reader: Callable[[Any, str], T], maximum: int | None, value: Any, param: str) -> list[T]:
    items = array(value, param)
    if maximum is not None and len(items) > maximum:
        raise refuse(param, f"at most {maximum} items are allowed, got {len(items)}")
    return [reader(item, f"{param}[{index}]") for index, item in enumerate(items)]


def within(
    reader: Callable[[Any, str], Any],
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    above: float | None = None,
) -> Reader:
    """Reader of a number in ``minimum..maximum`` (inclusive), or strictly ``above`` a bound."""
    return partial(_read_within, reader, minimum, maximum, above)


def _read_within(
    reader: Reader, minimum: float | None, maximum: float | None, above: float | None, value: Any, param: str
) -> Any:
    found = reader(value, param)
    if minimum is not None and found < minimum:
        raise refuse(param, f"must be at least {minimum:g}, got {describe(found)}")
    if maximum is not None and found > maximum:
        raise refuse(param, f"must be at most {maximum:g}, got {describe(found)}")
    if above is not None and found <= above:
        raise refuse(param, f"must be greater than {above:g}, got {describe(found)}")
    return found


def one_of(words: Iterable[str]) -> Callable[[Any, str], str]:
    """Reader of a string out of a closed list."""
    return partial(_read_one_of, tuple(words))


def _read_one_of(allowed: tuple[str, ...], value: Any, param: str) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    listed = ", ".join(f"'{word}'" for word in allowed)
    raise refuse(param, f"must be one of {listed}, got {describe(value)}")


@described({"type": "integer", "minimum": 0})
def token_id(value: Any, param: str) -> int:
    """A token id >= 0; whether the vocabulary has it is checked where the vocabulary is known."""
    found = integer(value, param)
    if found < 0:
        raise refuse(param, f"token ids must not be negative, got {found}")
    return found


def take(obj: Mapping[str, Any], key: str, reader: Callable[[Any, str], T], *, prefix: str = "") -> T | None:
    """Read one key; None where it is absent or null."""
    value = obj.get(key)
    return None if value is None else reader(value, prefix + key)


def read_fields(obj: Mapping[str, Any], readers: Mapping[str, Reader], prefix: str = "") -> dict[str, Any]:
    """Read every key that is present, not null and known, into a new dict."""
    found = {}
    for key, value in obj.items():
        if value is not None and (reader := readers.get(key)) is not None:
            found[key] = reader(value, prefix + key)
    return found


MAX_PASSED_THROUGH = 262_144
"""Characters of a value that is passed through to the engine, each value in it counted as eight more."""


def wire_safe(value: Any, param: str) -> Any:
    """Any JSON value that msgpack can carry: integers of -2**63 .. 2**64-1, at any depth."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, int) and not INT64_MIN <= node < 1 << 64:
            raise refuse(param, "integers must be between -2**63 and 2**64 - 1")
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return value


@described({"type": "object"})
def wire_mapping(value: Any, param: str) -> dict[str, Any]:
    """An object that msgpack can carry."""
    if weight(mapping(value, param), MAX_PASSED_THROUGH) > MAX_PASSED_THROUGH:
        raise refuse(param, f"at most {MAX_PASSED_THROUGH} characters are allowed")
    return dict(wire_safe(value, param))


def schema_of(reader: Reader) -> Schema:
    """What a reader takes, as a JSON schema; empty (any value) where that is not described."""
    if not isinstance(reader, partial):
        return _SCHEMAS.get(reader, {})
    if reader.func is _read_one_of:
        return {"enum": list(reader.args[0])}
    if reader.func is _read_array:
        items, maximum = reader.args
        return {"type": "array", "items": schema_of(items), **_given(maxItems=maximum)}
    number_, minimum, maximum, above = reader.args
    return {**schema_of(number_), **_given(minimum=minimum, maximum=maximum, exclusiveMinimum=above)}


def _given(**keywords: float | None) -> Schema:
    return {name: value for name, value in keywords.items() if value is not None}


def object_schema(readers: Mapping[str, Reader], required: Iterable[str] = (), **others: Schema) -> Schema:
    """The JSON schema of an object whose fields these readers read, and others; what is not required may be null."""
    needed = tuple(required)
    fields = {**others, **{name: schema_of(reader) for name, reader in readers.items()}, **others}
    names = [*needed, *(name for name in fields if name not in needed)]
    properties = {name: fields[name] if name in needed else _or_null(fields[name]) for name in names}
    return {"type": "object", "required": list(needed), "properties": properties}


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "type" not in schema:
        return schema
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}
