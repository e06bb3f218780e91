"""Calls that a constraint made: a list of ``{"name", "parameters"}``, or the arguments of one named function.

Where the named function takes plain text that is held to a grammar, the whole answer is that text.

Without a constraint (an engine that has none) the same text may come out broken. What is not such JSON is content.
"""

from __future__ import annotations

from collections.abc import Set

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.call_object import CallKeys, read_call
from smg_trio.parsers.json_reader import escape, quoted
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Steps, peek, read_until, skip_space

_GAP_LIMIT = 64
_NOTHING = scanner_for()


class ForcedListParser(ToolParser):
    """Parser of the list. Only declared names are calls; one object without a list is read as well."""

    has_markers = False

    def __init__(self, tools: ToolSchemas | None = None) -> None:
        super().__init__(tools)
        names: Set[str] = self.tools.keys()
        self._keys = CallKeys(accepts=names.__contains__, alone=names.__contains__)

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        cursor = self.cursor
        cursor.keep()
        opener = yield from skip_space(cursor)
        if opener == "[":
            cursor.skip_to(cursor.pos + 1)
            yield from skip_space(cursor)
        while (yield from self._read_item()):
            cursor.keep()
            separator = yield from skip_space(cursor)
            if separator in (",", "]"):
                cursor.skip_to(cursor.pos + 1)
            if separator != ",":
                cursor.drop()
                yield from skip_space(cursor)
                break
            yield from skip_space(cursor)
        else:
            self.content(cursor.kept())
        yield from read_until(cursor, _NOTHING, self.content)

    def _read_item(self) -> Steps[bool]:
        """One call; False: something else stands here, and what was read of it is kept."""
        cursor = self.cursor
        if (yield from skip_space(cursor)) != "{":
            return False
        cursor.skip_to(cursor.pos + 1)
        return (yield from read_call(self, self._keys))


class ForcedCallParser(ToolParser):
    """Parser of the arguments alone.

    Args:
        name: the function that the request named.
    """

    has_markers = False

    def __init__(self, name: str, tools: ToolSchemas | None = None) -> None:
        self._name = name
        super().__init__(tools)

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        cursor = self.cursor
        cursor.keep()
        if (yield from skip_space(cursor)) == "{" and (yield from self._is_object()):
            self.begin_call(self._name)
            yield from self.stream_arguments()
            yield from skip_space(cursor)
        else:
            self.content(cursor.kept())
        yield from read_until(cursor, _NOTHING, self.content)

    def _is_object(self) -> Steps[bool]:
        """Whether a key or the end of the object follows the brace that stands here; nothing is read."""
        cursor = self.cursor
        while True:
            rest = cursor.text[cursor.pos + 1 : cursor.pos + 1 + _GAP_LIMIT]
            if key := rest.lstrip():
                return key[0] in ('"', "}")
            if cursor.closed or len(rest) == _GAP_LIMIT:
                return True
            yield


class ForcedTextParser(ToolParser):
    """Parser of the text alone, which becomes the only argument of a function.

    Args:
        name: the function that the request named. Its schema has one property.
    """

    has_markers = False

    def __init__(self, name: str, tools: ToolSchemas | None = None) -> None:
        self._name = name
        super().__init__(tools)

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        yield from peek(self.cursor)
        schema = self.tools.get(self._name) or {}
        key = next(iter(schema.get("properties") or ()), "input")
        self.begin_call(self._name)
        self.arguments("{" + quoted(key) + ': "')
        yield from read_until(self.cursor, _NOTHING, lambda text: self.arguments(escape(text)))
        self.arguments('"}')
        self.end_call()
