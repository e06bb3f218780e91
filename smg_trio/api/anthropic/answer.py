"""The constant part of one Messages answer, and the pieces that its streamed and its folded form share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from smg_trio.core.outputs import FinishReason

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceFinish, Usage


def make_tool_use_id() -> str:
    """A new tool use id as Anthropic's look: ``toolu_`` and 24 hex digits."""
    return f"toolu_{token_hex(12)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAnswer:
    """What is known of an answer before its first token.

    Attributes:
        message_id: ``msg_...``.
        model: the name the client asked for.
        parallel_tool_calls: False shows only the first call.
        show_thinking: False opens and closes thinking blocks without their text.
        make_call_id: makes ids for calls whose format carries none.
    """

    message_id: str
    model: str
    parallel_tool_calls: bool = True
    show_thinking: bool = True
    make_call_id: Callable[[], str] = make_tool_use_id

    def signature(self, index: int) -> str:
        """The signature of thinking block ``index``: not empty, since clients drop unsigned ones from histories."""
        return f"{self.message_id}.{index}"


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """``stop_reason`` and ``stop_sequence``."""

    reason: str | None = None
    sequence: str | None = None

    def value(self) -> dict[str, Any]:
        """As members of a message or of its last delta."""
        return {"stop_reason": self.reason, "stop_sequence": self.sequence, "stop_details": None}


def message_end(finish: ChoiceFinish, *, called: bool, call_is_whole: bool) -> MessageEnd:
    """Anthropic's words for how an answer ended.

    A stop sequence that cut a call short must not look like a call that may be run. Engine words that Anthropic has
    none for: ``repetition`` is ``end_turn``; an aborted answer has no reason.
    """
    if finish.reason is FinishReason.LENGTH:
        return MessageEnd("max_tokens")
    if finish.reason is FinishReason.REPETITION:
        return MessageEnd("end_turn")
    if finish.reason is not FinishReason.STOP:
        return MessageEnd()
    if called and (call_is_whole or not isinstance(finish.stop_reason, str)):
        return MessageEnd("tool_use")
    if isinstance(finish.stop_reason, str):
        return MessageEnd("stop_sequence", finish.stop_reason)
    return MessageEnd("end_turn")


def message_usage(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object: ``input_tokens`` are those that the prefix cache did not supply."""
    cached = usage.cached_tokens or 0
    value: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens is not None:
        value["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return value


def message_value(
    answer: MessageAnswer, content: list[dict[str, Any]], end: MessageEnd, usage: Usage
) -> dict[str, Any]:
    """The ``message`` object, whole or as a stream begins with it."""
    return {
        "id": answer.message_id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        **end.value(),
        "usage": message_usage(usage),
    }
