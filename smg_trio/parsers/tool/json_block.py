"""Calls as JSON objects between markers, one by one or in a list; the markers are all that differs.

Covers Hermes and Qwen, Ernie, Granite, Hunyuan, InternLM, Jamba, LongCat, MiniMax M1, Nemotron, Phi-4,
Cohere, Mistral's list form, Llama 3 and bare JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smg_trio.parsers.base import MOST_ATTEMPTS, ToolParser, ToolSchemas
from smg_trio.parsers.call_object import CallKeys, read_call, read_keyed_call
from smg_trio.parsers.scanner import HeadScanner, Scanner, head_scanner_for, scanner_for
from smg_trio.parsers.text_cursor import Steps, expect, skip_space

_BARE = ("{", "[")
_FURTHER_KEYS = frozenset({"type", "id"})
_MOST_SPACE = 64
_SEPARATORS = ",;]}"
_NO_CLOSERS = str.maketrans("", "", "]}")


@dataclass(frozen=True, slots=True)
class JsonBlockFormat:
    """One family.

    Attributes:
        open: markers before a call or a list of calls.
        close: markers behind it; may be missing in the text.
        bare: calls without any marker are calls too, if they have nothing but a name and arguments.
        declared_only: a bare object whose name is not a declared tool is no call (where tools are declared).
        keyed: an object is ``{NAME: arguments}``.
        unwrap: markers around plain text that are never shown.
        special: the markers are special tokens.
    """

    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    bare: bool = False
    declared_only: bool = False
    keyed: bool = False
    unwrap: tuple[str, ...] = ()
    special: bool = False


def _bare_scanner(style: JsonBlockFormat, markers: tuple[str, ...]) -> HeadScanner:
    """Finds objects, alone or in a list, whose first key is one of a call's."""
    keys = sorted({style.name_key, *style.argument_keys, *_FURTHER_KEYS})
    key = "|".join(map(re.escape, keys))
    begun = "|".join(re.escape(key[:size]) for key in keys for size in range(len(key), 0, -1))
    listed = rf"(?:\[\s{{0,{_MOST_SPACE}}})?"
    opened = rf"\{{\s{{0,{_MOST_SPACE}}}"
    return head_scanner_for(
        markers,
        head=rf"""{listed}{opened}(?:"(?:{key})"|'(?:{key})')""",
        begun=rf"""(?:{listed}{opened}(?:["'](?:{begun})?)?|\[\s{{0,{_MOST_SPACE}}})\Z""",
        openers="{[",
        limit=2 * _MOST_SPACE + max(map(len, keys)) + 4,
    )


class JsonBlockParser(ToolParser):
    """Parser of a `JsonBlockFormat`."""

    def __init__(self, style: JsonBlockFormat, tools: ToolSchemas | None = None) -> None:
        self.style = style
        self.needs_special_tokens = style.special
        self.has_markers = not style.bare
        hidden = (*style.close, *style.unwrap) if style.special else style.unwrap
        self._idle: Scanner = scanner_for(*style.open, *hidden)
        self._owed: Scanner = scanner_for(*style.open, *hidden, *style.close)
        if style.bare:
            self._idle = self._owed = _bare_scanner(style, (*style.open, *hidden, *style.close))
        self._owes_close = False
        self._attempts = 0
        name, arguments = frozenset({style.name_key}), frozenset(style.argument_keys)
        self._marked = CallKeys(name, arguments)
        self._bare = CallKeys(
            name,
            arguments,
            only=name | arguments | _FURTHER_KEYS,
            eager=False,
            accepts=self._may_be_called,
            alone=self._is_declared,
        )
        super().__init__(tools)

    def _is_declared(self, name: str) -> bool:
        return name in self.tools

    def _may_be_called(self, name: str) -> bool:
        return not (self.style.declared_only and self.tools) or name in self.tools

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return frozenset((*self.style.open, *self.style.close, *self.style.unwrap))

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        while True:
            marker = yield from self.content_until(self._owed if self._owes_close else self._idle)
            if marker is None:
                return
            if marker in self.style.open:
                yield from self._read_marked(marker)
            elif marker in _BARE:
                yield from self._read_bare(marker)
            elif marker in self.style.close:
                self._owes_close = False

    def _read_bare(self, bracket: str) -> Steps[None]:
        """What stands behind a bracket that may begin calls. Text full of them is no longer looked at."""
        calls = self.calls
        self.cursor.keep(bracket)
        yield from self._read_list(bracket, self._bare)
        self._attempts += calls == self.calls
        if self._attempts > MOST_ATTEMPTS:
            self._idle = self._owed = scanner_for(*self.style.open, *self.style.close, *self.style.unwrap)

    def _read_marked(self, marker: str) -> Steps[None]:
        """What stands behind an opening marker: an object, or a list of them."""
        self.cursor.keep(marker)
        first = yield from skip_space(self.cursor)
        if first in _BARE:
            self.cursor.skip_to(self.cursor.pos + 1)
        yield from self._read_list(first, self._marked)

    def _read_list(self, first: str, keys: CallKeys) -> Steps[None]:
        """Calls one behind the other; `first` (``{`` or ``[``) has been read."""
        cursor = self.cursor
        if first == "[":
            first = yield from skip_space(cursor)
            if first == "{":
                cursor.skip_to(cursor.pos + 1)
        if first != "{":
            self.give_back(self.style.open)
            return
        while (yield from read_keyed_call(self) if self.style.keyed else read_call(self, keys)):
            another = yield from self._read_separator()
            if not another:
                return
        self.give_back(self.style.open)

    def _read_separator(self) -> Steps[bool]:
        """What stands behind a call. True: another object, whose ``{`` has been read."""
        cursor = self.cursor
        cursor.keep()
        char = yield from skip_space(cursor)
        while char and char in _SEPARATORS:
            cursor.skip_to(cursor.pos + 1)
            char = yield from skip_space(cursor)
        if char == "{":
            cursor.skip_to(cursor.pos + 1)
            return True
        closed = bool(self.style.close) and bool((yield from expect(cursor, *self.style.close)))
        self._owes_close = not closed
        between = cursor.kept()
        if not closed:
            self.content(between.translate(_NO_CLOSERS))
        return False


GIGACHAT3 = JsonBlockFormat(
    ("<|function_call|>", "function call<|role_sep|>\n"), unwrap=("<|message_sep|>",), special=True
)
GRANITE_20B = JsonBlockFormat(("<function_call>",))
HERMES = JsonBlockFormat(("<tool_call>",), ("</tool_call>",))
JSON = JsonBlockFormat(("<tool_call>", "<|python_tag|>"), ("</tool_call>",), bare=True)
LLAMA3 = JsonBlockFormat(("<|python_tag|>",), bare=True, declared_only=True, special=True)
APERTUS = JsonBlockFormat(("<|tools_prefix|>",), ("<|tools_suffix|>",), keyed=True, special=True)
COHERE = JsonBlockFormat(
    ("<|START_ACTION|>",),
    ("<|END_ACTION|>",),
    name_key="tool_name",
    unwrap=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    special=True,
)
GRANITE = JsonBlockFormat(("<|tool_call|>", "<tool_call>"), ("</tool_call>",))
HUNYUAN = JsonBlockFormat(("<tool_calls>",), ("</tool_calls>",))
INTERNLM = JsonBlockFormat(("<|action_start|><|plugin|>",), ("<|action_end|>",), special=True)
LONGCAT = JsonBlockFormat(("<longcat_tool_call>",), ("</longcat_tool_call>",))
NEMOTRON = JsonBlockFormat(("<TOOLCALL>",), ("</TOOLCALL>",))
PHI4_MINI = JsonBlockFormat(("functools",))
SARASHINA = JsonBlockFormat(("<|tool_calls|>",), bare=True, special=True)
XLAM = JsonBlockFormat(("```json", "```", "[TOOL_CALLS]", "<tool_call>"), ("```", "</tool_call>"), bare=True)
