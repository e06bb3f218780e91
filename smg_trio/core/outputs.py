"""The narrow waist, upwards: what an engine says about a request. Token ids out; nothing here knows text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineCounts, EngineLoad


class FinishReason(StrEnum):
    """Why a sequence ended, in the engines' words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


@dataclass(slots=True)
class PositionLogprobs:
    """Log probabilities at one position.

    Attributes:
        token_ids: int[K+1]; element 0 is the token that stands there (sampled, or of the prompt), the
            rest the top K by rank (the first may repeat among them). K is at least what was asked for:
            vLLM fills every row of a step to the largest K asked for by anyone in that step.
        logprobs: float[K+1], natural log; may hold -inf.
        rank: vocabulary rank of element 0, 1 = most likely; 0 where the engine does not say.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int = 0


@dataclass(frozen=True, slots=True)
class EngineError:
    """What an engine says about a request that it ends with an error.

    Attributes:
        message: in words, for the client.
        code: the engine's word for the kind of error (vLLM since 0.33: ``validation_error``, ``engine_paused``, …); ""
            where it has none.
        retryable: the same request may succeed later, or at another engine.
    """

    message: str
    code: str = ""
    retryable: bool = False


@dataclass(slots=True)
class GenerationOutput:
    """What one engine message says about one request.

    Attributes:
        token_ids: int[P], only the new ids; P may be 0, 1 or more. The stop token is included.
        finish_reason: set on the last output of the request.
        stop_reason: token id or word that ended it, None for EOS.
        logprobs: one per new token id if asked.
        prompt_logprobs: positions 1..T-1 of the prompt, in order (position 0 has none); may come in pieces.
        cached_tokens: prompt tokens that the engine's prefix cache supplied; None if not said.
        kv_transfer_params: passed through to the client.
        pooled: float[D] for pooling requests.
        error: what the engine said about an ERROR finish, if anything.
    """

    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    pooled: list[float] | None = None
    error: EngineError | None = None


@dataclass(slots=True)
class UtilityReply:
    """Answer to a utility call; ``failure`` is the engine's message if it failed."""

    call_id: int
    failure: str | None
    result: Any = None


@dataclass(slots=True)
class EngineBatch:
    """One decoded output message of one engine.

    Attributes:
        rank: the engine's index in its group.
        outputs: (request id, output) pairs in wire order.
        load: the engine's load snapshot if the message carried one.
        counts: what it has counted since its last message, if anything.
        queue_times: seconds that requests waited in its queue before they were first scheduled, by id; said once.
        utility: reply to a utility call, if any.
        finished_request_ids: ids that the engine names as ended without an output of their own.
        wave_complete, start_wave: lockstep notices (vLLM MoE data parallel).
    """

    rank: int = 0
    outputs: list[tuple[str, GenerationOutput]] = field(default_factory=list)
    load: EngineLoad | None = None
    counts: EngineCounts | None = None
    queue_times: dict[str, float] | None = None
    utility: UtilityReply | None = None
    finished_request_ids: tuple[str, ...] = ()
    wave_complete: int | None = None
    start_wave: int | None = None

    @property
    def only_wave_notice(self) -> bool:
        """Whether the message says nothing of any request."""
        return (
            (self.wave_complete is not None or self.start_wave is not None)
            and not self.outputs
            and not self.finished_request_ids
            and self.utility is None
        )
