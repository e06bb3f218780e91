"""What a front end asked of an engine, decoded: the fake engine's own view, the same for both protocols. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smg_trio.testing.vision import NO_SIGHT, Sight

if TYPE_CHECKING:
    from smg_trio.testing.vllm_media import Item

NO_IDS: frozenset[int] = frozenset()


@dataclass(slots=True, kw_only=True)
class EngineRequest:
    """One ADD as the engine understood it.

    Attributes:
        prompt_token_ids: int[T].
        max_tokens: None where the client left it out (vLLM fails such a request, TokenSpeed fills the context).
        eos_token_id: ends the sequence with no stop reason.
        stop_token_ids: end the sequence; on vLLM the id is the stop reason.
        masked_token_ids: ids that cannot be produced before `min_tokens`.
        logprobs, prompt_logprobs: candidates beside the sampled token; -1 the whole vocabulary; None off.
        stream_interval: tokens per output message (TokenSpeed; always 1 on vLLM).
        wave: ``current_wave`` of the request (vLLM).
        client_index: which output socket its outputs go to (vLLM).
        pooling: the pooling parameters as sent, None for generation.
        failure: why the engine will end the request immediately instead of running it.
        skip_prefix_cache: take nothing from the prefix cache.
        media: the media as sent.
        sight: what the engine makes of them.
        sampling: the sampling parameters as sent, by name.
        payload: the decoded ADD payload as sent.
        received_at: engine clock, seconds.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int | None
    min_tokens: int = 0
    eos_token_id: int | None = None
    stop_token_ids: frozenset[int] = NO_IDS
    masked_token_ids: frozenset[int] = NO_IDS
    allowed_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream_interval: int = 1
    priority: int = 0
    wave: int = 0
    client_index: int = 0
    cache_salt: str | None = None
    skip_prefix_cache: bool = False
    pooling: Mapping[str, Any] | None = None
    repetition: Mapping[str, int] | None = None
    failure: str | None = None
    media: Sequence[Item] = ()
    sight: Sight = NO_SIGHT
    sampling: Mapping[str, Any] = field(default_factory=dict)
    payload: Sequence[Any] = ()
    received_at: float = 0.0

    @property
    def ending_ids(self) -> frozenset[int]:
        """Every id that would end the sequence, EOS included."""
        if self.eos_token_id is None:
            return self.stop_token_ids
        return self.stop_token_ids | {self.eos_token_id}

    @property
    def cache_keys(self) -> Sequence[Hashable]:
        """What the prefix cache tells prompts apart by, one per token: media by their identifiers."""
        if not self.media:
            return self.prompt_token_ids
        keys: list[Hashable] = list(self.prompt_token_ids)
        for item in self.media:
            end = min(item.offset + item.length, len(keys))
            keys[item.offset : end] = [(item.identifier, index) for index in range(item.offset, end)]
        return keys


@dataclass(slots=True)
class Add:
    """Run a request."""

    request: EngineRequest


@dataclass(slots=True)
class Abort:
    """End requests without a word."""

    request_ids: tuple[str, ...]


@dataclass(slots=True)
class StartWave:
    """Wake up for lockstep wave ``wave``; ``exclude_rank`` need not."""

    wave: int
    exclude_rank: int


@dataclass(slots=True)
class UtilityCall:
    """Call ``method`` of the engine and answer under ``call_id``, on the output socket ``client_index``."""

    call_id: int
    method: str
    args: tuple[Any, ...]
    client_index: int = 0


@dataclass(slots=True)
class Malformed:
    """Bytes that do not decode: a vLLM engine goes deaf, TokenSpeed drops them with a warning."""

    reason: str


@dataclass(slots=True)
class Fatal:
    """Decodes, but kills the engine."""

    reason: str


@dataclass(slots=True)
class Ignored:
    """Nothing to do."""


Command = Add | Abort | StartWave | UtilityCall | Malformed | Fatal | Ignored
