"""The fake engine's in-flight sequences and its load. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.outputs import EngineError, FinishReason
    from smg_trio.testing.commands import EngineRequest
    from smg_trio.testing.script import Tick


@dataclass(slots=True)
class Load:
    """What the statistics of one message say.

    Attributes:
        waiting: queued for lack of a free slot.
        kv_usage: 0..1.
        prefix_requests, prefix_queries, prefix_hits: since the last message.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefix_requests: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class RunningSequence:
    """One request in flight and what it says in this step.

    Attributes:
        token_ids: int[P], the new ids of this step's output.
        finish, stop_reason: set in its last output.
        first: nothing has been said yet.
        hung: will never say anything again.
        plain: outputs carry nothing but token ids (no logprobs).
        completion_tokens: ids said so far, this step included.
        cached_tokens: prompt tokens found in the prefix cache.
        head: room for the codec's pre-encoded bytes.
    """

    __slots__ = (
        "_interval",
        "_play",
        "_unsaid",
        "cached_tokens",
        "completion_tokens",
        "error",
        "finish",
        "first",
        "head",
        "hung",
        "plain",
        "queued_at",
        "request",
        "scheduled_at",
        "stop_reason",
        "token_ids",
    )

    def __init__(self, request: EngineRequest, play: Iterator[Tick], now: float) -> None:
        self.request = request
        self._play = play
        self._interval = request.stream_interval
        self._unsaid: list[int] = []
        self.token_ids: Sequence[int] = ()
        self.finish: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: EngineError | None = None
        self.first = True
        self.hung = False
        self.plain = request.logprobs is None and not request.sampling.get("logprob_token_ids")
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.queued_at = now
        self.scheduled_at = now
        self.head = b""

    def advance(self) -> bool:
        """Make one step; True if there is something to say."""
        tick = next(self._play)
        ids = tick.token_ids
        self.completion_tokens += len(ids)
        if tick.finish is not None:
            self.finish, self.stop_reason, self.error = tick.finish, tick.stop_reason, tick.error
        elif not ids:
            self.hung = tick.hung
            return False
        if self._interval == 1 or (self.first and not self._unsaid):
            self.token_ids = ids
            return True
        return self._gather(ids)

    def _gather(self, ids: Sequence[int]) -> bool:
        self._unsaid.extend(ids)
        if self.finish is None and len(self._unsaid) < self._interval:
            return False
        self.token_ids, self._unsaid = self._unsaid, []
        return True
