"""Markers with a suffix of their own per checkpoint: ``<tool_call:6124c78e>`` is read as ``<tool_call>`` (Hunyuan)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from smg_trio.parsers.base import ScriptParser

if TYPE_CHECKING:
    from smg_trio.core.events import ParserEvent

_TAG: Final = r"</?(?:think|tool_calls|tool_call|tool_sep|arg_key|arg_value)"
_SUFFIXED: Final = re.compile(rf"({_TAG}):\w{{1,32}}>")
_BEGUN: Final = re.compile(r"</?[a-z_]{0,10}(?::\w{0,32})?\Z")
_LONGEST: Final = 46


def without_suffixes(text: str) -> str:
    """`text` with plain markers."""
    return _SUFFIXED.sub(r"\1>", text)


class Suffixed(ScriptParser):
    """Mixed into a parser: takes the suffixes off before it reads the text."""

    _held = ""

    def feed(self, text: str) -> list[ParserEvent]:
        """See `Parser.feed`."""
        text = self._held + text
        start = text.rfind("<", max(0, len(text) - _LONGEST))
        held = start if start >= 0 and _BEGUN.match(text, start) else len(text)
        self._held = text[held:]
        return super().feed(without_suffixes(text[:held]))

    def finish(self) -> list[ParserEvent]:
        """See `Parser.finish`."""
        rest, self._held = self._held, ""
        return super().feed(rest) + super().finish()
