"""MiniMax M3: calls as nested elements, each tag behind the marker ``]<]minimax[>[``.

An element is named after its argument. One with child elements is an object, or an array where its schema says so (or
where all its children are called ``item``). Text arguments stream; anything else waits for its end, because only then
is it certain what it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.json_reader import quoted
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Steps, ahead, expect, read_head, read_until, skip_space
from smg_trio.parsers.typed_parameters import ANY_TYPE, ArgumentWriter, cast, schema_types

_NAMESPACE: Final = "]<]minimax[>["
_BLOCK_OPEN: Final = _NAMESPACE + "<tool_call>"
_BLOCK_CLOSE: Final = _NAMESPACE + "</tool_call>"
_INVOKE: Final = _NAMESPACE + "<invoke name="
_INVOKE_END: Final = _NAMESPACE + "</invoke>"
_ELEMENT: Final = _NAMESPACE + "<"
_ELEMENT_END: Final = _NAMESPACE + "</"
_MARKERS: Final = (_BLOCK_OPEN, _BLOCK_CLOSE, _INVOKE, _INVOKE_END, _NAMESPACE)
_IDLE: Final = scanner_for(_BLOCK_OPEN, _INVOKE)
_OWED: Final = scanner_for(_BLOCK_OPEN, _INVOKE, _BLOCK_CLOSE, _INVOKE_END)
_TAG_END: Final = scanner_for(">")
_MARK: Final = scanner_for(_NAMESPACE)
_NAME_LIMIT: Final = 200
_MOST_DEPTH: Final = 64


class NestedXmlParser(ToolParser):
    """Parser of MiniMax M3's calls."""

    def __init__(self, tools: ToolSchemas | None = None) -> None:
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return frozenset(_MARKERS)

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        cursor = self.cursor
        while True:
            marker = yield from self.content_until(_OWED if self.calls else _IDLE)
            if marker is None:
                return
            if marker == _BLOCK_OPEN:
                cursor.keep(marker)
                yield from skip_space(cursor)
                if not (yield from expect(cursor, _INVOKE)):
                    self.give_back(_MARKERS)
                    continue
            elif marker == _INVOKE:
                cursor.keep(marker)
            else:
                continue
            yield from self._read_calls()

    def _read_calls(self) -> Steps[None]:
        """Calls one behind the other; the marker of the first has been read."""
        cursor = self.cursor
        while True:
            head, marker = yield from read_head(cursor, _TAG_END, _NAME_LIMIT)
            name = head.strip().strip("\"'")
            if marker is None or not re.fullmatch(r"[\w.:/\-]+", name):
                self.give_back(_MARKERS)
                return
            self.begin_call(name)
            yield from self._read_arguments(self.tools.get(name) or {})
            self.end_call()
            cursor.keep()
            yield from skip_space(cursor)
            found = yield from expect(cursor, _INVOKE, _BLOCK_CLOSE)
            if found == _BLOCK_CLOSE:
                cursor.drop()
                return
            if found != _INVOKE:
                self.give_back(_MARKERS)
                return

    def _read_arguments(self, schema: Mapping[str, Any]) -> Steps[None]:
        cursor = self.cursor
        writer = ArgumentWriter(self.arguments, schema, framed=False)
        properties = schema.get("properties")
        while True:
            char = yield from skip_space(cursor)
            if not char:
                return
            found = yield from ahead(cursor, _INVOKE_END, _BLOCK_CLOSE, _ELEMENT_END, _ELEMENT)
            if found != _ELEMENT:
                writer.close()
                yield from expect(cursor, _INVOKE_END)
                return
            name = yield from self._read_tag()
            own = properties.get(name) if isinstance(properties, Mapping) else None
            yield from self._read_argument(writer, name, own)

    def _read_tag(self) -> Steps[str]:
        """``]<]minimax[>[<NAME>``, which stands here; its name."""
        self.cursor.skip_to(self.cursor.pos + len(_ELEMENT))
        name, _ = yield from read_head(self.cursor, _TAG_END, _NAME_LIMIT)
        return name.strip()

    def _read_argument(self, writer: ArgumentWriter, name: str, schema: Any) -> Steps[None]:
        types = schema_types(schema)
        if types == {"string"}:
            writer.begin(name)
            if (yield from self._read_text(name, writer.text)):
                writer.end()
            return
        held: list[str] = []
        value = yield from self._read_element(name, schema, 0, held)
        writer.put(name, value)
        if value is None:
            writer.begin(name)
            writer.text("".join(held))
            writer.cut()

    def _read_text(self, name: str, emit: Any) -> Steps[bool]:
        """Text up to the closing tag of `name`, which is read; False where the text ended."""
        while True:
            marker = yield from read_until(self.cursor, _MARK, emit)
            if marker is None:
                return False
            if (yield from expect(self.cursor, f"</{name}>")):
                return True
            emit(marker)

    def _read_element(self, name: str, schema: Any, depth: int, held: list[str]) -> Steps[str | None]:
        """JSON of the element whose opening tag has been read; None where the text ended. `held`: what was read."""
        children: list[tuple[str, str]] = []
        text: list[str] = []
        while True:
            start = len(held)
            marker = yield from read_until(self.cursor, _MARK, held.append)
            text.extend(held[start:])
            if marker is None:
                return None
            if (yield from expect(self.cursor, f"</{name}>")):
                return _json_of(children, "".join(text), schema)
            tag = yield from self._read_child_tag(depth)
            if not tag:
                text.append(marker)
                held.append(marker)
                continue
            child = yield from self._read_element(tag, _child_schema(schema, tag), depth + 1, held)
            if child is None:
                return None
            children.append((tag, child))

    def _read_child_tag(self, depth: int) -> Steps[str]:
        """``<NAME>`` behind the marker; "" (and nothing read) if it does not stand here."""
        cursor = self.cursor
        found = yield from ahead(cursor, "</", "<")
        if found != "<" or depth >= _MOST_DEPTH:
            return ""
        cursor.skip_to(cursor.pos + 1)
        name, _ = yield from read_head(cursor, _TAG_END, _NAME_LIMIT)
        return name.strip()


def _child_schema(schema: Any, name: str) -> Any:
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("items", schema.get("additionalProperties"))


def _json_of(children: list[tuple[str, str]], text: str, schema: Any) -> str:
    types = schema_types(schema)
    if not children:
        empty = {frozenset({"array"}): "[]", frozenset({"object"}): "{}"}.get(types - {"null"})
        return empty if empty and not text.strip() else cast(text, types)
    if text.strip():
        children = [*children, ("$text", quoted(text))]
    is_list = "array" in types and (types != ANY_TYPE or all(name == "item" for name, _ in children))
    if is_list and ("object" not in types or all(name == "item" for name, _ in children)):
        return "[" + ", ".join(value for _, value in children) + "]"
    members: dict[str, list[str]] = {}
    for name, value in children:
        members.setdefault(name, []).append(value)
    return "{" + ", ".join(f"{quoted(name)}: {_collected(values)}" for name, values in members.items()) + "}"


def _collected(values: list[str]) -> str:
    """A name that comes several times stands for a list."""
    return values[0] if len(values) == 1 else "[" + ", ".join(values) + "]"
