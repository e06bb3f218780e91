"""TokenSpeed behind the common codec interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from smg_trio.core.engines import EngineInfo, EngineProtocol
from smg_trio.core.errors import UnsupportedFeature
from smg_trio.wire.limits import DEFAULT_MAX_LOGPROBS
from smg_trio.wire.packing import pack
from smg_trio.wire.tokenspeed.limits import check_request
from smg_trio.wire.tokenspeed.outputs import decode_outputs
from smg_trio.wire.tokenspeed.requests import encode_request

if TYPE_CHECKING:
    from smg_trio.core.outputs import EngineBatch
    from smg_trio.core.requests import GenerationRequest
    from smg_trio.wire.packing import Frame

# The raw one-byte type frames; the engine drops every other.
ADD: Final = b"\x00"
ABORT: Final = b"\x01"


class TokenspeedCodec:
    """TokenSpeed messages (0.1.0 and 0.1.1). See `smg_trio.wire.codec.EngineCodec`."""

    protocol: Final = EngineProtocol.TOKENSPEED

    def check(
        self,
        request: GenerationRequest,
        info: EngineInfo,
        vocab_size: int | None,
        *,
        max_logprobs: int = DEFAULT_MAX_LOGPROBS,
    ) -> None:
        """Refuse what the engine would abort without a reason, and what its wire cannot say."""
        check_request(request, info, vocab_size)

    def encode_add(self, request: GenerationRequest, *, wave: int = 0, client_index: int = 0) -> list[Frame]:
        """Encode a checked request; there are no waves and no further clients here."""
        return [ADD, encode_request(request)]

    def encode_abort(self, request_ids: Sequence[str]) -> list[bytes]:
        """Encode an abort; no output follows for the requests named."""
        return [ABORT, pack(list(request_ids))]

    def encode_start_wave(self, wave: int, exclude: int = -1) -> list[bytes]:
        """Always raises UnsupportedFeature: ranks are independent."""
        raise UnsupportedFeature("TokenSpeed engines know no waves.")

    def encode_utility(
        self, call_id: int, method: str, args: Sequence[object], *, client_index: int = 0
    ) -> list[bytes]:
        """Always raises UnsupportedFeature: the headless protocol has no control messages."""
        raise UnsupportedFeature(f"TokenSpeed engines have no utility calls ({method}).")

    def decode_outputs(self, frames: Sequence[bytes]) -> EngineBatch:
        """Decode one output message. Raises ProtocolViolation("output", …)."""
        return decode_outputs(frames)
