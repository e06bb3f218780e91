"""Calls as XML-like markup: an element for the call, one for each parameter, values as plain text.

Covers Qwen3-Coder, Seed-OSS, GLM 4.5 to 5, MiniMax M2, DeepSeek V3.2 and V4 (DSML), Step 3 and Kimi K3's
calls. A closing parameter marker counts only where the markup goes on behind it, so a value may hold the
text of one; a missing one is made good by the next marker that makes sense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from smg_trio.parsers.base import ToolParser, ToolSchemas
from smg_trio.parsers.call_object import read_call
from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import (
    Steps,
    ahead,
    expect,
    head_ahead,
    peek,
    read_head,
    read_name,
    read_until,
    skip_space,
)
from smg_trio.parsers.typed_parameters import ANY_TYPE, ArgumentWriter, schema_types

_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_HEAD_LIMIT = 300


@dataclass(frozen=True, slots=True)
class XmlFormat:
    """One family.

    Attributes:
        call_open, call_close: around one call; behind `call_open` come its name or attributes.
        head_end: ends them; "" if the name simply ends.
        param_open, param_close: around one parameter, with its name or attributes up to `param_head_end`.
        value_open: stands between those and the value; "" for none.
        name_end: may stand between the name and the parameters.
        type_open, type_close: around a parameter's type, between its name and its value; "" for none.
        cdata: values may stand in ``<![CDATA[`` and ``]]>``.
        block_open, block_close: around all calls; may be missing in the text.
        ignored: words and markers between block and calls that mean nothing.
        framed: one newline on either side of a value is markup.
        special: the markers are special tokens.
    """

    call_open: str
    call_close: str
    head_end: str
    param_open: str
    param_close: str
    param_head_end: str = ">"
    value_open: str = ""
    name_end: str = ""
    type_open: str = ""
    type_close: str = ""
    cdata: bool = False
    block_open: tuple[str, ...] = ()
    block_close: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    framed: bool = False
    special: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Those that stand around calls."""
        return (*self.block_open, self.call_open, self.call_close, *self.block_close, *self.ignored)


class XmlParser(ToolParser):
    """Parser of an `XmlFormat`."""

    def __init__(self, style: XmlFormat, tools: ToolSchemas | None = None) -> None:
        self.style = style
        self.needs_special_tokens = style.special
        opening = (*style.block_open, style.call_open)
        closing = (style.call_close, *style.block_close)
        self._idle = scanner_for(*opening, *(closing if style.special else ()))
        self._owed = scanner_for(*opening, *closing)
        self._head = scanner_for(style.head_end, "\n")
        self._param_head = scanner_for(style.param_head_end, style.value_open, "\n")
        self._value = scanner_for(style.param_close, style.param_open, *closing)
        self._junk = scanner_for(style.param_close, style.param_open, style.call_close, *style.block_close)
        self._behind = dict.fromkeys(style.block_close, style.block_open)
        self._behind[style.call_close] = (style.call_open, *style.block_close, *style.ignored)
        self._behind[style.param_close] = (style.param_open, *closing)
        super().__init__(tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        style = self.style
        inside = (style.param_open, style.param_head_end, style.value_open, style.param_close, style.head_end)
        further = (style.name_end, style.type_open, style.type_close)
        return frozenset(marker for marker in (*style.markers, *inside, *further) if len(marker) > 1)

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        while True:
            marker = yield from self.content_until(self._owed if self.calls else self._idle)
            if marker is None:
                return
            yield from self.read_marked(marker)

    def read_marked(self, marker: str) -> Steps[None]:
        """What stands behind `marker`, which has been read: calls, if it opens any."""
        style = self.style
        if marker == style.call_open:
            self.cursor.keep(marker)
            yield from self._read_calls(opened=False)
        elif marker in style.block_open:
            self.cursor.keep(marker)
            yield from self._skip_ignored()
            if (yield from expect(self.cursor, style.call_open)):
                yield from self._read_calls(opened=True)
            elif not (yield from self._read_json_call()):
                self.give_back(style.markers)

    def _read_json_call(self) -> Steps[bool]:
        """A call as a JSON object, which models write where markup was asked of them. False: it is none."""
        if (yield from ahead(self.cursor, "{")) != "{":
            return False
        self.cursor.skip_to(self.cursor.pos + 1)
        return (yield from read_call(self))

    def _skip_ignored(self) -> Steps[None]:
        yield from skip_space(self.cursor)
        while self.style.ignored and (yield from expect(self.cursor, *self.style.ignored)):
            yield from skip_space(self.cursor)

    def _read_calls(self, opened: bool) -> Steps[None]:
        """Calls one behind the other; `call_open` of the first has been read."""
        style = self.style
        while (yield from self._read_call(opened)):
            self.cursor.keep()
            yield from self._skip_ignored()
            marker = yield from expect(self.cursor, style.call_open, *style.block_close)
            if marker in style.block_close:
                self.cursor.drop()
                return
            if marker != style.call_open:
                self.give_back(style.markers)
                return
        self.give_back(style.markers)

    def _read_call(self, opened: bool) -> Steps[bool]:
        """One call behind its `call_open`. False: it is none, nothing was said."""
        if not self.style.head_end and (yield from skip_space(self.cursor)) == "{":
            found = yield from self._read_json_call()
            if found:
                yield from skip_space(self.cursor)
                yield from expect(self.cursor, self.style.call_close)
            return found
        name = yield from self._read_head()
        char = yield from skip_space(self.cursor)
        if self.style.name_end and (yield from expect(self.cursor, self.style.name_end)):
            char = yield from skip_space(self.cursor)
        follows = yield from ahead(self.cursor, self.style.param_open, self.style.call_close, "{")
        if not name or not (follows or (opened and not char and self.style.head_end)):
            return False
        self.begin_call(name)
        if follows == "{":
            yield from self.stream_arguments()
            yield from skip_space(self.cursor)
            yield from expect(self.cursor, self.style.call_close)
        else:
            yield from self._read_parameters(self.tools.get(name) or {})
        self.end_call()
        return True

    def _read_head(self) -> Steps[str]:
        """The call's name; "" if there is none."""
        if not self.style.head_end:
            yield from skip_space(self.cursor)
            return (yield from read_name(self.cursor))
        head, marker = yield from read_head(self.cursor, self._head, _HEAD_LIMIT)
        if marker is None:
            return ""
        attributes = _attributes(head)
        name = attributes.get("name") or attributes.get("tool") or head.strip().strip("\"'")
        return name if re.fullmatch(r"[\w.:/\-]+", name) else ""

    def _read_parameters(self, schema: Mapping[str, object]) -> Steps[None]:
        """Parameters up to the call's closing marker, or to what makes up for it."""
        style = self.style
        writer = ArgumentWriter(self.arguments, schema, style.framed)
        while True:
            yield from skip_space(self.cursor)
            marker = yield from read_until(self.cursor, self._junk, self.content)
            while marker == style.param_open:
                marker = yield from self._read_parameter(writer)
            if marker is None:
                return
            if marker == style.call_close or marker in style.block_close:
                writer.close()
                return

    def _read_parameter(self, writer: ArgumentWriter) -> Steps[str | None]:
        """One parameter behind its `param_open`. Returns the marker that ended it; None with the text."""
        style = self.style
        head, marker = yield from read_head(self.cursor, self._param_head, _HEAD_LIMIT)
        types = _declared_types(head)
        if style.type_open and (yield from self._expect_behind_space(style.type_open)):
            word, _ = yield from read_head(self.cursor, scanner_for(style.type_close), _HEAD_LIMIT)
            types = schema_types({"type": word.partition("[")[0].strip()})
            types = None if writer.declares(_key(head)) else types
        if style.value_open and marker != style.value_open:
            yield from self._expect_behind_space(style.value_open)
        elif not style.value_open and not (yield from peek(self.cursor)):
            return None
        writer.begin(_key(head), types)
        if style.cdata and (yield from expect(self.cursor, "<![CDATA[")):
            yield from read_until(self.cursor, scanner_for("]]>"), writer.text)
        while True:
            marker = yield from read_until(self.cursor, self._value, writer.text)
            if marker is None:
                writer.cut()
                return None
            if (yield from self._ends_value(marker, writer)):
                writer.end()
                return marker

    def _expect_behind_space(self, literal: str) -> Steps[str]:
        yield from skip_space(self.cursor)
        return (yield from expect(self.cursor, literal))

    def _ends_value(self, marker: str, writer: ArgumentWriter) -> Steps[bool]:
        """Whether `marker`, just read inside a value, ends it; if not, it is part of the value."""
        style = self.style
        self.cursor.keep(marker)
        if marker == style.param_open:
            head, _ = yield from head_ahead(self.cursor, self._param_head, _HEAD_LIMIT)
            ends = writer.declares(_key(head))
        else:
            char = yield from skip_space(self.cursor)
            ends = not char or bool((yield from ahead(self.cursor, *self._behind[marker])))
        if ends:
            self.cursor.drop()
        else:
            writer.text(self.cursor.kept())
        return ends


def _attributes(head: str) -> dict[str, str]:
    return {name: double or single for name, double, single in _ATTRIBUTE.findall(head)}


def _key(head: str) -> str:
    attributes = _attributes(head)
    return attributes.get("name") or attributes.get("key") or head.strip().strip("\"'")


def _declared_types(head: str) -> frozenset[str] | None:
    """What the markup says of a parameter's type (``string="true"``, ``type="number"``); None if nothing."""
    attributes = _attributes(head)
    if "string" in attributes:
        return frozenset({"string"}) if attributes["string"] == "true" else ANY_TYPE
    return schema_types(attributes) if "type" in attributes else None
