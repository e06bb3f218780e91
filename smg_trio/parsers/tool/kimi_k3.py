"""Kimi K3's XTML: channels ``<|open|>NAME<|sep|>…<|close|>NAME<|sep|>`` for reasoning, answer and calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smg_trio.parsers.scanner import scanner_for
from smg_trio.parsers.text_cursor import Steps, peek, read_until
from smg_trio.parsers.tool.xml_block import XmlFormat, XmlParser

if TYPE_CHECKING:
    from smg_trio.parsers.base import ToolSchemas

KIMI_K3 = XmlFormat(
    call_open="<|open|>call ",
    call_close="<|close|>call<|sep|>",
    head_end="<|sep|>",
    param_open="<|open|>argument ",
    param_close="<|close|>argument<|sep|>",
    param_head_end="<|sep|>",
    block_open=("<|open|>tools<|sep|>",),
    block_close=("<|close|>tools<|sep|>",),
    special=True,
)
THINK_OPEN = "<|open|>think<|sep|>"
_THINK_CLOSE = "<|close|>think<|sep|>"
RESPONSE_OPEN = "<|open|>response<|sep|>"
_UNWRAPPED = (RESPONSE_OPEN, "<|close|>response<|sep|>", _THINK_CLOSE, "<|close|>message<|sep|>")


class KimiK3Parser(XmlParser):
    """Parser of a whole Kimi K3 answer. ``calls=False`` leaves calls in the content, as they were written."""

    reads_reasoning: ClassVar[bool] = True

    def __init__(self, tools: ToolSchemas | None = None, *, calls: bool = True) -> None:
        outside = (THINK_OPEN, *_UNWRAPPED, *(KIMI_K3.markers if calls else ()))
        self._outside = scanner_for(*outside)
        self._inside = scanner_for(_THINK_CLOSE, RESPONSE_OPEN, *KIMI_K3.block_open)
        super().__init__(KIMI_K3, tools)

    @property
    def markers(self) -> frozenset[str]:
        """See `ScriptParser.markers`."""
        return super().markers | {THINK_OPEN, *_UNWRAPPED}

    def script(self) -> Steps[None]:
        """See `ScriptParser.script`."""
        yield from peek(self.cursor)
        marker: str | None = THINK_OPEN if self.starts_in_reasoning else ""
        while marker is not None:
            if marker == THINK_OPEN:
                marker = yield from self._read_reasoning()
                continue
            if marker:
                yield from self.read_marked(marker)
            marker = yield from self.content_until(self._outside)

    def _read_reasoning(self) -> Steps[str | None]:
        marker = yield from read_until(self.cursor, self._inside, self.reasoning)
        if marker in KIMI_K3.block_open and marker not in self._outside.markers:
            self.content(marker)
            return ""
        return marker

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Calls are known to the model as ``NAME_INDEX``."""
        super().begin_call(name, call_id or f"{name}_{self.calls}")
