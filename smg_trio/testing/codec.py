"""What a wire must offer the fake engine: bytes in to commands, sequences out to bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from smg_trio.core.engines import EngineProtocol
from smg_trio.testing.tokenspeed_codec import TokenSpeedCodec
from smg_trio.testing.vllm_codec import VllmCodec

if TYPE_CHECKING:
    from smg_trio.core.outputs import EngineError, FinishReason
    from smg_trio.testing.commands import Command, EngineRequest
    from smg_trio.testing.messages import Message
    from smg_trio.testing.options import EngineOptions
    from smg_trio.testing.sequences import Load, RunningSequence


class EngineCodec(Protocol):
    """One engine protocol, seen from the engine. Messages are lists of frames without identity."""

    init_timeout_s: float
    malformed_is_fatal: bool

    def hello(self) -> bytes:
        """The HELLO map."""
        ...

    def ready(self) -> bytes:
        """The READY map."""
        ...

    def registration(self) -> bytes:
        """The registration map, sent first on the input socket."""
        ...

    def addresses(self, init: bytes) -> tuple[list[str], list[str]]:
        """Input and output addresses that the engine connects to, of an INIT map.

        Raises ValueError where the real engine would.
        """
        ...

    def decode(self, frames: Sequence[bytes], now: float) -> Command:
        """What one input message asks. Never raises."""
        ...

    def step(self, saying: Sequence[RunningSequence], load: Load | None, now: float) -> Message:
        """The one message of a step to a front; without load, one without statistics."""
        ...

    def idle(self, load: Load, now: float) -> Message | None:
        """A message with nothing but statistics, if the protocol has one."""
        ...

    def ended(
        self,
        requests: Sequence[EngineRequest],
        reason: FinishReason,
        load: Load,
        now: float,
        error: EngineError | None = None,
        missing: Sequence[str] = (),
    ) -> Message:
        """Requests ended by the engine outside a step, without tokens; ``error``: why, where the wire has words.

        ``missing``: cache keys of media that are not there.
        """
        ...

    def utility_reply(self, call_id: int, failure: str | None, result: Any, now: float) -> Message:
        """Answer to a utility call."""
        ...

    def wave_complete(self, wave: int, now: float) -> Message:
        """Lockstep: the rank has paused after ``wave``."""
        ...


def codec_for(options: EngineOptions) -> EngineCodec:
    """The codec that ``options`` ask for."""
    if options.protocol is EngineProtocol.VLLM:
        return VllmCodec(options)
    return TokenSpeedCodec(options)
