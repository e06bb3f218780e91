"""Messages answers, streamed: `ChoiceUpdate` to the bytes of named SSE events.

Order of events, as Anthropic's: ``message_start`` with an empty message; per block ``content_block_start``, deltas and
``content_block_stop`` (a thinking block's last delta is its signature); ``message_delta`` with the stop reason and
final usage; ``message_stop``. There is no ``[DONE]``. Usage counts are totals, so those of ``message_delta`` replace
those of ``message_start``, where the cache's share of the prompt may not be known yet.
"""

from __future__ import annotations

from json.encoder import encode_basestring as quote

from smg_trio.api.anthropic.answer import MessageAnswer, MessageEnd, message_usage, message_value
from smg_trio.api.anthropic.blocks import MessageBlocks
from smg_trio.api.anthropic.errors import messages_error_event
from smg_trio.api.blocks import BlockDelta, BlockKind, BlockStart, BlockStop, Step
from smg_trio.api.json_text import dump, encode_text
from smg_trio.core.events import ChoiceUpdate, ContentDelta, Usage

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""What keeps a silent stream alive; clients skip it. Only ever sent between events."""

_DELTA_FIELDS: dict[BlockKind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageEventWriter:
    """Writes the events of one streamed answer; every method returns whole events."""

    __slots__ = ("_answer", "_blocks", "_delta_start")

    def __init__(self, answer: MessageAnswer) -> None:
        self._answer = answer
        self._blocks = MessageBlocks(answer)
        self._delta_start = ""

    def head(self, usage: Usage) -> bytes:
        """``message_start``; ``usage`` holds the prompt's length."""
        message = message_value(self._answer, [], MessageEnd(), usage)
        return encode_text(_event("message_start", f'"message":{dump(message)}'))

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """The events of one update; may be none. ``usage`` is not shown: only `usage_chunk` has a place for it."""
        events = update.events
        if update.finish is None and len(events) == 1 and self._blocks.kind == "text":
            delta = events[0]
            if type(delta) is ContentDelta:
                return encode_text(f"{self._delta_start}{quote(delta.text)}}}}}\n\n")
        return encode_text("".join([self._written(step) for step in self._blocks.steps(update)]))

    def usage_chunk(self, usage: Usage) -> bytes:
        """What ends the stream: ``message_delta``, ``message_stop``."""
        delta = f'"delta":{dump(self._blocks.end.value())},"usage":{dump(message_usage(usage))}'
        if (handed_back := self._blocks.kv_transfer_params) is not None:
            delta += f',"kv_transfer_params":{dump(handed_back)}'
        return encode_text(_event("message_delta", delta) + 'event: message_stop\ndata: {"type":"message_stop"}\n\n')

    def failed(self, exc: BaseException, request_id: str | None = None) -> bytes:
        """What ends a stream that fails; nothing follows it."""
        return messages_error_event(exc, request_id)

    def _written(self, step: Step) -> str:
        if isinstance(step, BlockDelta):
            return f"{self._delta_start}{quote(step.text)}}}}}\n\n"
        if isinstance(step, BlockStart):
            kind, field = _DELTA_FIELDS[step.kind]
            self._delta_start = _delta_start(step.index, kind, field)
            return _event("content_block_start", f'"index":{step.index},"content_block":{{{_block(step)}}}')
        return self._stop(step)

    def _stop(self, step: BlockStop) -> str:
        stop = _event("content_block_stop", f'"index":{step.index}')
        if step.kind != "reasoning":
            return stop
        signature = quote(self._answer.signature(step.index))
        return f"{_delta_start(step.index, 'signature_delta', 'signature')}{signature}}}}}\n\n{stop}"


def _event(name: str, members: str) -> str:
    return f'event: {name}\ndata: {{"type":"{name}",{members}}}\n\n'


def _delta_start(index: int, kind: str, field: str) -> str:
    """A delta event up to its text, which `}}` ends."""
    name = "content_block_delta"
    return f'event: {name}\ndata: {{"type":"{name}","index":{index},"delta":{{"type":"{kind}","{field}":'


def _block(step: BlockStart) -> str:
    """The members of a block as it begins."""
    if step.call is not None:
        return f'"type":"tool_use","id":{quote(step.call.call_id)},"name":{quote(step.call.name)},"input":{{}}'
    if step.kind == "reasoning":
        return '"type":"thinking","thinking":"","signature":""'
    return '"type":"text","text":""'
