"""What the input-socket owner is told to send. They reach it through one memory channel, so order is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import trio

    from smg_trio.core.errors import SmgError
    from smg_trio.core.outputs import UtilityReply
    from smg_trio.core.requests import GenerationRequest
    from smg_trio.worker.ledger import InFlight
    from smg_trio.worker.output_stream import Delivery


@dataclass(slots=True)
class SendAdd:
    """Tell the entry's rank of a request, unless it has ended meanwhile.

    ``wave`` is 0 outside lockstep; ``client_index`` says which socket pair gets the outputs.
    """

    entry: InFlight[Delivery[Any]]
    request: GenerationRequest
    wave: int
    client_index: int = 0


@dataclass(slots=True)
class SendAbort:
    """Tell the entry's rank to stop, if it ever heard of the request."""

    entry: InFlight[Delivery[Any]]


@dataclass(slots=True)
class SendOrphanAbort:
    """Tell a rank to stop a request that an earlier gateway sent it."""

    rank: int
    request_id: str


@dataclass(slots=True)
class SendWave:
    """Wake every rank of a lockstep group."""

    wave: int


@dataclass(slots=True)
class SendUtility:
    """Call a method of one engine; the reply comes through the dispatcher."""

    rank: int
    call_id: int
    method: str
    arguments: Sequence[Any]
    client_index: int = 0


@dataclass(slots=True)
class SendRelayed:
    """Hand a message of another process of the gateway to a rank, as it is."""

    rank: int
    frames: list[bytes]


@dataclass(slots=True)
class SendSign:
    """Ask a rank that was given up for a sign of life, if its connection takes a message immediately.

    Either a method is called (vLLM), or, where there is none to call, one token asked for: ``request``.
    """

    rank: int
    call_id: int
    request: GenerationRequest | None
    client_index: int = 0


Command = SendAdd | SendAbort | SendOrphanAbort | SendWave | SendUtility | SendRelayed | SendSign


@dataclass(slots=True)
class UtilityCall:
    """A call of an engine's method that is waited for."""

    rank: int
    answered: trio.Event
    reply: UtilityReply | None = None
    failure: SmgError | None = None
