"""One interface over both engine protocols; `codec_for` is the only place that knows there are two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import EngineFault
from smg_trio.wire.limits import DEFAULT_MAX_LOGPROBS
from smg_trio.wire.tokenspeed.codec import TokenspeedCodec
from smg_trio.wire.vllm.codec import VllmCodec

if TYPE_CHECKING:
    from smg_trio.core.outputs import EngineBatch
    from smg_trio.core.requests import GenerationRequest
    from smg_trio.wire.packing import Frame

ENGINE_CORE_DEAD: Final = b"ENGINE_CORE_DEAD"
"""The raw frame (not msgpack) a dying engine sends last on its output socket."""


class EngineCodec(Protocol):
    """Messages to an engine and back. Frames exclude the ROUTER identity; codecs hold no state."""

    @property
    def protocol(self) -> EngineProtocol:
        """Which protocol this codec speaks."""
        ...

    def check(
        self,
        request: GenerationRequest,
        info: EngineInfo,
        vocab_size: int | None,
        *,
        max_logprobs: int = DEFAULT_MAX_LOGPROBS,
    ) -> None:
        """Refuse what would kill or deafen the engine; anything that passes can be encoded.

        Args:
            request: what is about to be sent.
            info: what the engine registered with.
            vocab_size: the model's vocabulary; None means unknown, ids are then any of 0..2**31-1.
            max_logprobs: most top candidates per position; -1 means no cap.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnsupportedFeature: ``param`` is the API's name.
            MediaMismatch: media that were not prepared correctly.
        """
        ...

    def encode_add(self, request: GenerationRequest, *, wave: int = 0, client_index: int = 0) -> list[Frame]:
        """Encode a checked request: the type frame, the payload, then auxiliary tensor frames.

        ``client_index``: which of the pairs that INIT listed gets the outputs. One that INIT did not list makes a vLLM
        engine mute (0.27.1, 0.32.0), so it must have passed `check_client_index`.
        """
        ...

    def encode_abort(self, request_ids: Sequence[str]) -> list[bytes]:
        """Encode an abort of some requests; engines ignore ids they do not know."""
        ...

    def encode_start_wave(self, wave: int, exclude: int = -1) -> list[bytes]:
        """Encode the wake-up of a lockstep rank. Raises UnsupportedFeature where there are no waves."""
        ...

    def encode_utility(
        self, call_id: int, method: str, args: Sequence[object], *, client_index: int = 0
    ) -> list[bytes]:
        """Encode a call of an engine method; ``client_index``: as in `encode_add`, for the reply.

        Raises UnsupportedFeature where there are none.
        """
        ...

    def decode_outputs(self, frames: Sequence[bytes]) -> EngineBatch:
        """Decode one output message. Raises ProtocolViolation("output", …)."""
        ...


_CODECS: Final[dict[EngineProtocol, EngineCodec]] = {
    EngineProtocol.VLLM: VllmCodec(),
    EngineProtocol.TOKENSPEED: TokenspeedCodec(),
}


def codec_for(protocol: EngineProtocol) -> EngineCodec:
    """The codec of an engine protocol; stateless, so one instance serves every worker."""
    return _CODECS[protocol]


def check_client_index(client_index: int, info: EngineInfo) -> None:
    """Refuse an index beyond the socket pairs that the engine's INIT listed.

    The engine's output thread dies of one (``IndexError`` in ``process_output_sockets``, vLLM 0.32.0) and nothing is
    ever said again, to nobody. Raises EngineFault.
    """
    if not 0 <= client_index < info.pairs:
        raise EngineFault(f"the engine knows {info.pairs} socket pair(s), and this is process {client_index}")


def is_dead_sentinel(frames: Sequence[bytes]) -> bool:
    """Whether an output message is an engine's last word; nothing else will come from it."""
    return len(frames) == 1 and frames[0] == ENGINE_CORE_DEAD
