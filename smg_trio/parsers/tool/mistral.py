"""Mistral: ``[TOOL_CALLS]`` before a list of JSON calls (to tokenizer v10) or before ``NAME[ARGS]{…}`` (from v11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.parsers.text_cursor import Steps, expect, read_name, skip_space
from smg_trio.parsers.tool.json_block import JsonBlockFormat, JsonBlockParser

if TYPE_CHECKING:
    from smg_trio.parsers.base import ToolSchemas

MISTRAL = JsonBlockFormat(("[TOOL_CALLS]",), special=True)
_MARKERS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")


class MistralParser(JsonBlockParser):
    """Both forms, told apart by what stands behind the marker."""

    def __init__(self, tools: ToolSchemas | None = None) -> None:
        super().__init__(MISTRAL, tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return frozenset(_MARKERS)

    def _read_marked(self, marker: str) -> Steps[None]:
        self.cursor.keep(marker)
        first = yield from skip_space(self.cursor)
        if first in ("[", "{"):
            self.cursor.skip_to(self.cursor.pos + 1)
            yield from self._read_list(first, self._marked)
        else:
            yield from self._read_named()

    def _read_named(self) -> Steps[None]:
        """``NAME[ARGS]{…}``; some versions write ``[CALL_ID]ID`` in between, some no ``[ARGS]``."""
        name = yield from read_name(self.cursor)
        marker = yield from expect(self.cursor, "[CALL_ID]", "[ARGS]")
        call_id = ""
        if marker == "[CALL_ID]":
            call_id = yield from read_name(self.cursor)
            yield from expect(self.cursor, "[ARGS]")
        char = yield from skip_space(self.cursor)
        if not name or char != "{":
            self.give_back(_MARKERS)
            return
        self.begin_call(name, call_id or None)
        yield from self.stream_arguments()
