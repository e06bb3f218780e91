"""Mistral: ``[TOOL_CALLS]`` before a list of JSON calls (to tokenizer v10) or before ``NAME[ARGS]{…}`` (from v11)."""

from __future__ import annotations

from smg_trio.parsers.base import ToolSchemas
from smg_trio.parsers.text_cursor import Steps, expect, read_name, skip_space
from smg_trio.parsers.tool.json_block import JsonBlockFormat, JsonBlockParser

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
        self.tape.keep(marker)
        first = yield from skip_space(self.tape)
        if first in ("[", "{"):
            self.tape.skip_to(self.tape.pos + 1)
            yield from self._read_list(first, self._marked)
        else:
            yield from self._read_named()

    def _read_named(self) -> Steps[None]:
        """``NAME[ARGS]{…}``; some versions write ``[CALL_ID]ID`` in between, some no ``[ARGS]``."""
        name = yield from read_name(self.tape)
        marker = yield from expect(self.tape, "[CALL_ID]", "[ARGS]")
        call_id = ""
        if marker == "[CALL_ID]":
            call_id = yield from read_name(self.tape)
            yield from expect(self.tape, "[ARGS]")
        char = yield from skip_space(self.tape)
        if not name or char != "{":
            self.give_back(_MARKERS)
            return
        self.begin_call(name, call_id or None)
        yield from self.stream_arguments()
