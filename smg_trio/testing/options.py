"""How a fake engine behaves: one frozen record per engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from smg_trio.core.engines import EngineProtocol

if TYPE_CHECKING:
    from smg_trio.testing.vision import VisionModel


class HandshakeStage(StrEnum):
    """A point of the start-up at which an engine can be told to vanish."""

    HELLO = "hello"
    INIT = "init"
    REGISTRATION = "registration"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything about one fake engine that is decided before it starts.

    Attributes:
        protocol: which wire it speaks.
        rank: its index; the ZMQ identity is this number, 2 bytes little-endian.
        group_size: ranks behind one worker. A dense vLLM rank registers ``data_parallel_size`` 1 all the same.
        lockstep: behave like one rank of a vLLM MoE group (waves); give all ranks one `LockstepGroup`.
        version: "0.33.0", "0.32.0" or "0.27.1" (vLLM), "0.1.1" or "0.1.0" (TokenSpeed); "" is 0.32.0 or 0.1.1.
        max_model_len: context window in tokens, prompt plus completion.
        vocab_size: a prompt id outside kills a vLLM engine.
        eos_token_id: the model's own EOS: TokenSpeed engines stop on it without being told.
        max_num_seqs: sequences that run at once; the others wait.
        max_num_batched_tokens: tokens of one step, and so the most that an item of media may take; 0 is 2048, or
            `max_model_len` where that is more.
        vision: what media its model takes; a model of None dies of media. vLLM only.
        normalises: whether pixels are normalised in the engine; None: as vLLM does by default, since 0.32.
        inspectable: tell the model's module tree when asked, instead of failing.
        num_gpu_blocks, block_size: KV capacity; ``kv_usage`` is taken tokens over their product.
        step_time_s: duration of one step, which gives every running sequence its next tick.
        input_delay_s: how long a message waits before it is read. Lockstep ranks whose delays differ see a wake-up at
            different moments, some of them before and some after the ranks agree to pause.
        prefill_time_s, prefill_token_time_s: added to the step that admits a request, per request and per
            prompt token that the prefix cache does not hold.
        prefix_caching: keep full prompt blocks and report hits.
        stats: load statistics on outputs (``--disable-log-stats`` is False).
        load_time_s: model load, between HELLO and READY for vLLM and before HELLO for TokenSpeed.
        init_timeout_s: how long it waits for INIT before it gives up; 0 is the real engine's own limit.
        ready_first: vLLM only: send READY before the registration (both orders occur).
        supports_lora: answer the LoRA utilities instead of failing them.
        profiler: profile when told to instead of failing.
        output_logprobs: TokenSpeed's ``--enable-output-logprobs``.
        supported_tasks: what ``get_supported_tasks`` answers; a pooling task outside kills the engine.
        embedding_size: length of the vectors that pooling answers with, one per token for ``token_`` tasks.
        class_count: length of what the ``classify`` task answers with.
        dp_sync_interval: lockstep ranks ask each other for work at step 1 and each so many steps.
        extra_fields: unknown trailing fields appended to every output and every batch (a newer engine).
        ignore_aborts: keep running what was aborted.
        crash_after_outputs: die with the sentinel after so many token outputs; None never.
        vanish_after: close all sockets without a word after this stage of the start-up.
        hello: raw bytes sent in place of the HELLO map.
        registration: raw bytes sent in place of the registration map.
    """

    protocol: EngineProtocol = EngineProtocol.VLLM
    rank: int = 0
    group_size: int = 1
    lockstep: bool = False
    version: str = ""
    max_model_len: int = 8192
    vocab_size: int = 32000
    eos_token_id: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 0
    vision: VisionModel | None = None
    normalises: bool | None = None
    inspectable: bool = True
    num_gpu_blocks: int = 32768
    block_size: int = 16
    step_time_s: float = 0.0
    input_delay_s: float = 0.0
    prefill_time_s: float = 0.0
    prefill_token_time_s: float = 0.0
    prefix_caching: bool = False
    stats: bool = True
    load_time_s: float = 0.0
    init_timeout_s: float = 0.0
    ready_first: bool = False
    supports_lora: bool = False
    profiler: bool = False
    output_logprobs: bool = True
    supported_tasks: tuple[str, ...] = ("generate",)
    embedding_size: int = 16
    class_count: int = 1
    dp_sync_interval: int = 16
    extra_fields: int = 0
    ignore_aborts: bool = False
    crash_after_outputs: int | None = None
    vanish_after: HandshakeStage | None = None
    hello: bytes | None = None
    registration: bytes | None = None

    @property
    def identity(self) -> bytes:
        """The engine's ZMQ identity: 2 bytes, little-endian rank."""
        return self.rank.to_bytes(2, "little")

    @property
    def engine_version(self) -> str:
        """`version`, or that of the protocol which real engines were tried with."""
        if self.version:
            return self.version
        return "0.32.0" if self.protocol is EngineProtocol.VLLM else "0.1.1"

    @property
    def batched_tokens(self) -> int:
        """Tokens of one step."""
        return self.max_num_batched_tokens or max(2048, self.max_model_len)

    @property
    def normalises_pixels(self) -> bool:
        """Whether the engine wants pixels raw."""
        return self.is_since(0, 32) if self.normalises is None else self.normalises

    def is_since(self, major: int, minor: int) -> bool:
        """Whether the engine is of that version or a newer one."""
        numbers = [int(part) for part in self.engine_version.split(".")[:2]]
        return numbers >= [major, minor]
