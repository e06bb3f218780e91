"""Records about engines: which protocol, what they registered with, how loaded they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """An engine's own view of its load, as piggybacked on outputs. ``kv_usage`` is 0..1."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
