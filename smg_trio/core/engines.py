"""Records about engines: which protocol, what they registered with, how loaded they are."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import zip_longest


class EngineProtocol(StrEnum):
    """Which wire an engine speaks; the value is the word users type (`--backend`, `runtime_type`)."""

    VLLM = "vllm"
    TOKENSPEED = "tokenspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine registered with (``EngineCoreReadyResponse``). Unknown values are 0, "" or None.

    Attributes:
        max_model_len: context window in tokens, prompt plus completion.
        data_parallel_size: N > 1 from a vLLM engine means a lockstep group (dense ranks say 1).
        block_size: KV block (vLLM) or prefix granularity (TokenSpeed) in tokens.
        max_loras: adapters that one batch may use.
        pairs: socket pairs that its INIT listed: what this gateway told it, nothing that it registers.
        relayed: this process hears it through the keeper, since it has no pair of its own at the engine.
    """

    max_model_len: int
    num_gpu_blocks: int = 0
    block_size: int = 0
    dtype: str = ""
    engine_version: str = ""
    world_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    instance_id: str = ""
    supports_lora: bool = False
    max_loras: int = 0
    kv_cache_size_tokens: int | None = None
    pairs: int = 1
    relayed: bool = False

    @property
    def release(self) -> tuple[int, ...]:
        """The first two numbers of a vLLM engine's version; () for others, and for what is no version."""
        parts = self.engine_version.split(".")[:2]
        if not all(part.isdecimal() and len(part) < 6 for part in parts):
            return ()
        return tuple(map(int, parts))


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's own view of its load, as piggybacked on outputs. ``kv_usage`` is 0..1.

    Attributes:
        deferred: waiting as well, but not for capacity: for an adapter's turn or a KV transfer. Not part of `waiting`.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    deferred: int = 0


@dataclass(slots=True)
class EngineCounts:
    """What an engine has counted, of one message or of all so far.

    Attributes:
        prefix_queries, prefix_hits: prompt tokens looked up in its prefix cache, and found there.
        external_queries, external_hits: the same of the cache behind its KV connector.
        preemptions: running requests that lost their KV blocks.
        drafts, draft_tokens, accepted_tokens: speculative decoding: verification steps, tokens proposed and accepted.
        accepted_per_position: int[K], drafts whose token at each position was accepted.
    """

    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def since(self, earlier: EngineCounts) -> EngineCounts:
        """What was counted after `earlier`; everything if something fell, since it was counted anew then."""
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in _NUMBERS}
        pairs = zip_longest(self.accepted_per_position, earlier.accepted_per_position, fillvalue=0)
        positions = tuple([one - other for one, other in pairs])
        if min(*counts.values(), *positions) < 0:
            return replace(self)
        return EngineCounts(**counts, accepted_per_position=positions)

    def add(self, further: EngineCounts) -> None:
        """Count what a further message says."""
        self.prefix_queries += further.prefix_queries
        self.prefix_hits += further.prefix_hits
        self.external_queries += further.external_queries
        self.external_hits += further.external_hits
        self.preemptions += further.preemptions
        self.drafts += further.drafts
        self.draft_tokens += further.draft_tokens
        self.accepted_tokens += further.accepted_tokens
        if further.accepted_per_position:
            pairs = zip_longest(self.accepted_per_position, further.accepted_per_position, fillvalue=0)
            self.accepted_per_position = tuple([one + other for one, other in pairs])


_NUMBERS = tuple(field.name for field in fields(EngineCounts) if field.name != "accepted_per_position")
