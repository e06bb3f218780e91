"""vLLM behind the common codec interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.wire.limits import DEFAULT_MAX_LOGPROBS
from smg_trio.wire.packing import Frame, pack
from smg_trio.wire.vllm.limits import check_request
from smg_trio.wire.vllm.outputs import decode_outputs
from smg_trio.wire.vllm.requests import encode_request

if TYPE_CHECKING:
    from smg_trio.core.outputs import EngineBatch
    from smg_trio.core.requests import GenerationRequest

# The raw one-byte type frames. 4 and 5 are the engine's own; sending them stops it.
ADD: Final = b"\x00"
ABORT: Final = b"\x01"
START_WAVE: Final = b"\x02"
UTILITY: Final = b"\x03"


class VllmCodec:
    """vLLM engine core messages (0.27.1 to 0.33.0). See `smg_trio.wire.codec.EngineCodec`."""

    protocol: Final = EngineProtocol.VLLM

    def check(
        self,
        request: GenerationRequest,
        info: EngineInfo,
        vocab_size: int | None,
        *,
        max_logprobs: int = DEFAULT_MAX_LOGPROBS,
    ) -> None:
        """Refuse what would kill the engine, or what it would become deaf of."""
        check_request(request, info, vocab_size, max_logprobs)

    def encode_add(self, request: GenerationRequest, *, wave: int = 0, client_index: int = 0) -> list[Frame]:
        """Encode a checked request."""
        return [ADD, *encode_request(request, wave, client_index)]

    def encode_abort(self, request_ids: Sequence[str]) -> list[bytes]:
        """Encode an abort; no output follows for the requests named."""
        return [ABORT, pack(list(request_ids))]

    def encode_start_wave(self, wave: int, exclude: int = -1) -> list[bytes]:
        """Encode the wake-up of a lockstep rank; ``exclude`` names a rank that needs none, -1 for no rank."""
        return [START_WAVE, pack([wave, exclude])]

    def encode_utility(
        self, call_id: int, method: str, args: Sequence[object], *, client_index: int = 0
    ) -> list[bytes]:
        """Encode a call of an engine method; the reply carries ``call_id`` (64 bits)."""
        return [UTILITY, pack([client_index, call_id, method, list(args)])]

    def decode_outputs(self, frames: Sequence[bytes]) -> EngineBatch:
        """Decode one output message. Raises ProtocolViolation("output", …)."""
        return decode_outputs(frames)
