"""Neutral events of one answer: what `parsers` and `pipeline.decode` emit and `api` formats.

A streamed answer is a sequence of these; a non-streamed answer is the same sequence folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smg_trio.core.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Visible answer text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the model's reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call has begun. ``index`` counts calls of this answer from 0.

    ``call_id`` is the model's own id where the format carries one, else None (the API makes one).
    """

    index: int
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A further piece of the arguments of call ``index``: JSON text; all pieces joined are valid JSON."""

    index: int
    delta: str


ParserEvent = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments


@dataclass(slots=True)
class TokenLogprob:
    """Log probability of one token, ready to show.

    Attributes:
        token: the token's own text (U+FFFD where its bytes are no text of their own).
        raw: the token's real bytes.
        logprob: natural log, finite (-inf is clamped to -9999.0).
        rank: vocabulary rank, 1 = most likely; 0 = not said.
        top: the most likely candidates at this position, in rank order; empty if none were asked.
    """

    token_id: int
    token: str
    raw: bytes
    logprob: float
    rank: int = 0
    top: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFinish:
    """How a choice ended. ``stop_reason``: the matched stop string or stop token id; None for EOS."""

    reason: FinishReason
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer: the prompt once, completion tokens over all choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def plus(self, other: Usage) -> Usage:
        """Of both together; what only one of them knows is taken for the whole."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            _sum(self.cached_tokens, other.cached_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


NO_TOKENS: Final = Usage(0, 0)


@dataclass(slots=True)
class ChoiceUpdate:
    """What one wake-up adds to one choice. The unit that `pipeline` hands to `api`.

    Attributes:
        choice: index of the choice, 0..n-1.
        events: parser events in order; may be empty (text held back, usage only).
        token_ids: the new ids counted in this update.
        logprobs: one per new token id if asked; never lost when text is held.
        finish: set on the last update of the choice, exactly once.
        prompt_logprobs: set once, on the first update, if asked: one entry per prompt position, None first.
        kv_transfer_params: what the engine handed back, on the last update.
    """

    choice: int
    events: Sequence[ParserEvent] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    finish: ChoiceFinish | None = None
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    kv_transfer_params: dict[str, object] | None = None
