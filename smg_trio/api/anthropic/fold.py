"""Messages answers in one piece: the same updates as a stream, folded into one body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.api.anthropic.answer import MessageAnswer, message_value
from smg_trio.api.anthropic.blocks import MessageBlocks
from smg_trio.api.blocks import BlockDelta, BlockStart
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.partial_json import partial_object

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceUpdate, Usage


class MessageFold:
    """Gathers the updates of an answer, then writes its body."""

    __slots__ = ("_answer", "_blocks", "_shown", "_texts")

    def __init__(self, answer: MessageAnswer) -> None:
        self._answer = answer
        self._blocks = MessageBlocks(answer)
        self._shown: list[BlockStart] = []
        self._texts: list[list[str]] = []

    def feed(self, update: ChoiceUpdate) -> None:
        """Add one update."""
        for step in self._blocks.steps(update):
            if isinstance(step, BlockStart):
                self._shown.append(step)
                self._texts.append([])
            elif isinstance(step, BlockDelta):
                self._texts[step.index].append(step.text)

    def body(self, usage: Usage) -> bytes:
        """The whole answer as JSON."""
        content = [self._block(start, "".join(texts)) for start, texts in zip(self._shown, self._texts, strict=True)]
        value = message_value(self._answer, [], self._blocks.end, usage)
        if self._blocks.kv_transfer_params is not None:
            value["kv_transfer_params"] = self._blocks.kv_transfer_params
        members = {name: dump(member) for name, member in value.items()} | {"content": f"[{','.join(content)}]"}
        return encode_text("{" + ",".join([f'"{name}":{member}' for name, member in members.items()]) + "}")

    def _block(self, start: BlockStart, text: str) -> str:
        """A block as JSON text: a call's input stays as the model wrote it."""
        if start.call is not None:
            call = {"type": "tool_use", "id": start.call.call_id, "name": start.call.name}
            return f'{dump(call)[:-1]},"input":{partial_object(text)}}}'
        if start.kind == "reasoning":
            return dump({"type": "thinking", "thinking": text, "signature": self._answer.signature(start.index)})
        return dump({"type": "text", "text": text})
