"""Parameters written as plain text, turned into a JSON object piece by piece, typed by the tool's schema.

Strings stream as they come. Everything else is short by nature and waits for its end, because only then is
it certain that it is a number, a list or the like; text that is not of a declared type stays a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from smg_trio.parsers.json_reader import ValueReader, escape, quoted

ANY_TYPE: Final = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_SPELLINGS: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
}
_TYPE_NAMES: Final[dict[type, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
}
_WORDS: Final = {
    "true": ("true", "boolean"),
    "false": ("false", "boolean"),
    "null": ("null", "null"),
    "none": ("null", "null"),
}
_NULL = re.compile(r"\s*(?:n(?:u(?:l(?:l\s*)?)?)?)?", re.IGNORECASE)


def schema_types(schema: object) -> frozenset[str]:
    """JSON types a value under `schema` may have; all of them where it does not say."""
    if not isinstance(schema, Mapping):
        return ANY_TYPE
    declared = schema.get("type")
    names: set[str] = set()
    if isinstance(declared, str):
        names.add(declared)
    elif isinstance(declared, list):
        names.update(map(str, declared))
    elif isinstance(schema.get("enum"), list):
        names.update(_TYPE_NAMES.get(type(value), "string") for value in schema["enum"])
    elif "const" in schema:
        names.add(_TYPE_NAMES.get(type(schema["const"]), "string"))
    else:
        names.update(*map(schema_types, _alternatives(schema)))
    if schema.get("nullable") is True and names:
        names.add("null")
    known = frozenset(_SPELLINGS.get(name.lower(), name.lower()) for name in names) & ANY_TYPE
    return known or ANY_TYPE


def _alternatives(schema: Mapping[str, Any]) -> list[object]:
    return [item for key in ("anyOf", "oneOf", "allOf") for item in schema.get(key) or ()]


def cast(text: str, types: Iterable[str]) -> str:
    """`text` as JSON of one of `types`; as a JSON string where it is none of them."""
    allowed = frozenset(types)
    value = text.strip()
    word = _WORDS.get(value.lower())
    if word is not None and word[1] in allowed:
        return word[0]
    as_written = _sound_json(value, allowed)
    return quoted(text) if as_written is None else as_written


def _sound_json(value: str, allowed: frozenset[str]) -> str | None:
    """`value` as JSON text (from JSON or a Python literal) if its type is allowed, else None."""
    if not value or (value[0] not in "{[(" and not allowed & {"integer", "number", "string"}):
        return None
    if value[0] in "\"'":
        # A quoted string stays as written where it may be text with quotes around it.
        return None
    candidate = value if _json_type(value) else _from_literal(value)
    kind = _json_type(candidate) if candidate else None
    if kind == "integer" and "integer" not in allowed:
        kind = "number"
    elif kind == "number" and "number" not in allowed and float(candidate or "nan").is_integer():
        kind = "integer"
    return candidate if kind in allowed else None


def _json_type(value: str) -> str | None:
    try:
        return _TYPE_NAMES[type(_decoder.decode(value))]
    except (ValueError, RecursionError):
        return None


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)


def _any_integer(digits: str) -> int:
    """Only types are looked at, and there may be more digits than Python converts."""
    del digits
    return 0


_decoder = json.JSONDecoder(parse_int=_any_integer, parse_constant=_reject)


def _from_literal(value: str) -> str | None:
    """A Python list, dict or tuple as JSON text."""
    if value[0] not in "{[(":
        return None
    reader = ValueReader()
    end = reader.read(value, 0)
    return reader.take() if reader.done and end == len(value) else None


def _cut_value(text: str, types: frozenset[str]) -> str:
    """What `cast` would have made of a value that goes on, without its end."""
    value = text.strip()
    if value[:1] in ("{", "[") and types & {"object", "array"}:
        reader = ValueReader()
        reader.read(value, 0)
        if not (reader.failed or reader.done):
            return reader.take() + reader.flush()
    whole = cast(text, types)
    return whole[:-1] if whole[0] == '"' else whole


class ArgumentWriter:
    """Builds the arguments of one call from its parameters.

    Args:
        emit: takes the JSON text as it becomes certain.
        schema: the tool's parameter schema; {} where it is not declared.
        framed: one newline in front of a value and one behind it belong to the markup.
    """

    __slots__ = (
        "_at_start",
        "_emit",
        "_framed",
        "_held",
        "_holds",
        "_key",
        "_newline",
        "_properties",
        "_started",
        "_types",
    )

    def __init__(self, emit: Callable[[str], object], schema: Mapping[str, Any], framed: bool) -> None:
        self._emit = emit
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._framed = framed
        self._key = "{"
        self._started = False
        self._held: list[str] = []
        self._holds = False
        self._types = ANY_TYPE
        self._at_start = False
        self._newline = False

    def declares(self, key: str) -> bool:
        """Whether the tool has a parameter of this name."""
        return key in self._properties

    def begin(self, key: str, types: Iterable[str] | None = None) -> None:
        """A parameter begins. `types`: what the markup itself says of its type, None if nothing."""
        self._key = (", " if self._started else "{") + quoted(key) + ": "
        self._started = True
        self._types = schema_types(self._properties.get(key)) if types is None else frozenset(types)
        self._holds = self._types != {"string"}
        self._held.clear()
        self._at_start = True
        self._newline = False
        if not self._holds:
            self._emit(self._key + '"')

    def put(self, key: str, value: str | None) -> None:
        """A whole parameter whose JSON is known; None: nothing, it was cut off."""
        if value is not None:
            self._emit((", " if self._started else "{") + quoted(key) + ": " + value)
            self._started = True

    def text(self, piece: str) -> None:
        """More of the value."""
        if self._framed:
            piece = self._unframed(piece)
        if piece:
            self._take(piece)

    def _take(self, piece: str) -> None:
        if not self._holds:
            self._emit(escape(piece))
            return
        self._held.append(piece)
        if self._types == {"string", "null"}:
            self._release_string()

    def _unframed(self, piece: str) -> str:
        if self._at_start and piece:
            self._at_start = False
            piece = piece.removeprefix("\n")
        if self._newline and piece:
            piece = "\n" + piece
            self._newline = False
        if piece.endswith("\n"):
            self._newline = True
            return piece[:-1]
        return piece

    def _release_string(self) -> None:
        """Stops holding a string that can no longer be ``null``."""
        text = "".join(self._held)
        if not _NULL.fullmatch(text):
            self._holds = False
            self._held.clear()
            self._emit(self._key + '"' + escape(text))

    def end(self) -> None:
        """The value has ended."""
        if self._holds:
            self._emit(self._key + cast("".join(self._held), self._types))
        else:
            self._emit('"')
        self._holds = False

    def cut(self) -> None:
        """The text has ended inside a value: what is held of it comes out, cut off as the text is."""
        if self._newline:
            self._newline = False
            self._take("\n")
        if self._holds and self._held:
            self._emit(self._key + _cut_value("".join(self._held), self._types))
        self._holds = False

    def close(self) -> None:
        """The call has ended."""
        self._emit("}" if self._started else "{}")
