"""A tool call written as a JSON object: ``{"name": …, "arguments": {…}}``, in either key order.

The call begins as soon as its name is certain; the arguments' own text is passed on as it comes. Arguments
that are themselves a JSON text inside a string are decoded, absent or null ones are ``{}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smg_trio.core.exact_json import is_json
from smg_trio.parsers.text_cursor import Steps, read_value, skip_space

if TYPE_CHECKING:
    from smg_trio.parsers.base import ToolParser

_CUT_ESCAPE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")


def _any_name(name: str) -> bool:
    return bool(name)


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Which keys of the object mean what, and what makes a call of it.

    Attributes:
        only: a key beside these proves that the object is no call; None: any key may stand there.
        eager: the name makes the call; otherwise the arguments' key must have come, or the object's end.
        accepts: whether a name may be a call's at all.
        alone: whether a name makes a call when the object ends without arguments.
    """

    name: frozenset[str] = frozenset({"name"})
    arguments: frozenset[str] = frozenset({"arguments", "parameters"})
    only: frozenset[str] | None = None
    eager: bool = True
    accepts: Callable[[str], bool] = _any_name
    alone: Callable[[str], bool] = _any_name


MARKED_CALL = CallKeys()


@dataclass(slots=True)
class _Found:
    """What of the object has been read: `begun` once the call was announced."""

    name: str | None = None
    arguments: str | None = None
    begun: bool = False
    done_arguments: bool = False


def read_call(parser: ToolParser, keys: CallKeys = MARKED_CALL) -> Steps[bool]:
    """Reads one object whose ``{`` has been read. The caller keeps the cursor.

    Returns:
        True: a call was announced (and has ended, whole, closed where it broke, or cut with the text).
        False: it is no call; nothing was said, and what was read is in the cursor's record.
    """
    cursor = parser.cursor
    found = _Found()
    while True:
        char = yield from skip_space(cursor)
        if char == ",":
            cursor.skip_to(cursor.pos + 1)
            continue
        if char == "}":
            cursor.skip_to(cursor.pos + 1)
            return _end_of_object(parser, keys, found)
        if found.begun:
            cursor.keep()
        sound = yield from _read_member(parser, keys, found, char)
        if not sound:
            break
    if not found.begun:
        return False
    if cursor.pos < len(cursor.text) or not cursor.closed:
        _end_arguments(parser, found)
        parser.content(cursor.kept())
    elif found.arguments:
        parser.arguments(_cut_short(found.arguments))
    parser.end_call()
    return True


def read_keyed_call(parser: ToolParser) -> Steps[bool]:
    """Reads ``{"NAME": {…}}`` (several members are several calls); result and rest as in `read_call`."""
    cursor = parser.cursor
    any_call = False
    while True:
        char = yield from skip_space(cursor)
        name = yield from _read_string(parser, char)
        if not name or (yield from skip_space(cursor)) != ":":
            return any_call
        cursor.skip_to(cursor.pos + 1)
        if (yield from skip_space(cursor)) != "{":
            return any_call
        parser.begin_call(name)
        any_call = True
        yield from parser.stream_arguments()
        char = yield from skip_space(cursor)
        if char in ("}", ","):
            cursor.skip_to(cursor.pos + 1)
        if char != ",":
            return True


def _read_member(parser: ToolParser, keys: CallKeys, found: _Found, char: str) -> Steps[bool]:
    cursor = parser.cursor
    key = yield from _read_string(parser, char)
    if key is None or (keys.only is not None and key not in keys.only):
        return False
    char = yield from skip_space(cursor)
    if char != ":":
        return False
    cursor.skip_to(cursor.pos + 1)
    char = yield from skip_space(cursor)
    if key in keys.name and found.name is None:
        found.name = yield from _read_string(parser, char)
        if not found.name or not keys.accepts(found.name):
            return False
        if keys.eager or found.done_arguments:
            _announce(parser, found)
        return True
    if key in keys.arguments and not found.done_arguments:
        return (yield from _read_arguments(parser, found, char))
    return (yield from read_value(cursor, _ignore))


def _announce(parser: ToolParser, found: _Found) -> None:
    if found.name and not found.begun:
        found.begun = True
        parser.begin_call(found.name)
        if found.arguments is not None:
            _end_arguments(parser, found)


def _read_arguments(parser: ToolParser, found: _Found, char: str) -> Steps[bool]:
    found.done_arguments = True
    _announce(parser, found)
    if found.begun:
        parser.cursor.drop()
    if found.begun and char in ("{", "["):
        complete = yield from parser.stream_arguments()
        found.arguments = ""
        return complete
    held: list[str] = []
    complete = yield from read_value(parser.cursor, held.append)
    if found.begun or complete:
        found.arguments = _unwrapped("".join(held))
        _announce(parser, found)
    if found.begun and complete:
        _end_arguments(parser, found)
    return complete


def _end_of_object(parser: ToolParser, keys: CallKeys, found: _Found) -> bool:
    if found.name and keys.alone(found.name):
        _announce(parser, found)
    if not found.begun:
        return False
    _end_arguments(parser, found)
    return True


def _end_arguments(parser: ToolParser, found: _Found) -> None:
    """Says what was held of the arguments, or ``{}`` if there are none; once."""
    if found.arguments != "":
        parser.arguments(found.arguments or "{}")
        found.arguments = ""
    parser.end_call()


def _unwrapped(value: str) -> str:
    """Arguments that stand in a string, as the JSON they hold; ``null`` as no arguments."""
    if value in ("null", '""'):
        return "{}"
    if not value.startswith('"'):
        return value
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return inner if isinstance(inner, str) and is_json(inner) else value


def _cut_short(value: str) -> str:
    """Arguments that the end of the text cut off: what a string holds of an object, anything else as it is."""
    if not value.startswith('"'):
        return value
    try:
        inner = str(json.loads(_CUT_ESCAPE.sub(r"\1", value) + '"'))
    except ValueError:
        return value
    return inner if inner.lstrip().startswith("{") else value


def _read_string(parser: ToolParser, char: str) -> Steps[str | None]:
    """A string that begins with `char` here, decoded; None if it is none or does not end."""
    if char not in ('"', "'"):
        return None
    held: list[str] = []
    complete = yield from read_value(parser.cursor, held.append)
    return str(json.loads("".join(held))) if complete else None


def _ignore(piece: str) -> None:
    del piece
