"""Updates to content blocks: the one step that streamed and folded Messages answers share.

Hidden things (parallel calls, the text of reasoning) are dropped here, for both forms alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.api.anthropic.answer import MessageAnswer, MessageEnd, message_end
from smg_trio.api.blocks import AnswerBlocks, BlockDelta, BlockKind, Step
from smg_trio.api.chat_answer import ChatAnswer
from smg_trio.api.chat_events import ChatEvents

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceUpdate


class MessageBlocks:
    """The blocks of one answer.

    Attributes:
        end: how the answer ended, once it has.
        kv_transfer_params: what the engine handed back.
    """

    __slots__ = ("_blocks", "_show_thinking", "end", "kv_transfer_params")

    def __init__(self, answer: MessageAnswer) -> None:
        shown = ChatAnswer(
            response_id=answer.message_id,
            model=answer.model,
            created=0,
            parallel_tool_calls=answer.parallel_tool_calls,
            make_call_id=answer.make_call_id,
        )
        self._blocks = AnswerBlocks(ChatEvents(shown))
        self._show_thinking = answer.show_thinking
        self.end = MessageEnd()
        self.kv_transfer_params: dict[str, object] | None = None

    @property
    def kind(self) -> BlockKind | None:
        """Of the open block."""
        return self._blocks.kind

    def steps(self, update: ChoiceUpdate) -> list[Step]:
        """What one update adds."""
        blocks = self._blocks
        steps = blocks.steps(update.events)
        if update.kv_transfer_params is not None:
            self.kv_transfer_params = update.kv_transfer_params
        if update.finish is not None:
            steps += blocks.finish()
            self.end = message_end(update.finish, called=blocks.called, call_is_whole=blocks.last_call_is_whole)
        if self._show_thinking:
            return steps
        return [step for step in steps if not (isinstance(step, BlockDelta) and step.kind == "reasoning")]
