"""Requests and responses as endpoints see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from smg_trio.gateway.request_body.incoming import NO_BODY, IncomingBody

if TYPE_CHECKING:
    from smg_trio.gateway.request_context import RequestContext

WEBSOCKET: Final = "WEBSOCKET"
"""What stands for the method of a WebSocket handshake, and of what happens on a WebSocket."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One HTTP request.

    It is made when its head has come. `handling` reads the body into it, and adds what else is found out on the way.

    Attributes:
        headers: by lower-case name; of repeated ones the last.
        incoming: the body while it comes, and what it holds of the memory for bodies.
        body: all of it, until `Gateway.parse_body` has taken it; empty where the route takes none.
        context: what is known of it beside its HTTP; goes with it through every layer.
        path_parameters, query: by name; of repeated query parameters the first.
        repeated: every value of each query parameter.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    context: RequestContext
    incoming: IncomingBody = NO_BODY
    body: bytes = b""
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, Sequence[str]] = field(default_factory=dict)


BodyWrite = Callable[[bytes], Awaitable[None] | None]
"""Sends bytes of a body. What it returns, if it does, must be awaited before more is sent: not all has left yet."""


class ByteStream(Protocol):
    """A response body that comes bit by bit. `close` is called once by its sender, on every path."""

    @property
    def ended(self) -> bool:
        """Whether the bytes that `next_chunk` returned last were the last ones."""
        ...

    async def next_chunk(self) -> bytes:
        """The next bytes to send; empty only at the end. Faults become bytes, they are not raised."""
        ...

    async def write_on(self, write: BodyWrite, *, mostly_immediate: bool) -> None:
        """Write what needs no more than that, for as long as it comes; then `next_chunk` says how things stand.

        `mostly_immediate`: `write` hardly ever returns something to wait for.

        The short way of most tokens, for a stream that has begun; a stream without one returns immediately. Raises what
        `write` does, and nothing else.
        """
        ...

    def close(self) -> None:
        """Give up what the stream holds. Never blocks; idempotent."""
        ...


Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Response:
    """What an endpoint answers. Header names are lower case.

    Attributes:
        on_end: called by the sender of a stream when that is over, with whether the client was sent all of it.
    """

    status: int
    body: bytes | ByteStream
    headers: Headers = field(default_factory=list)
    on_end: Callable[[bool], None] | None = None


def json_response(body: bytes, status: int = 200) -> Response:
    """A JSON body that is already encoded."""
    return Response(status, body, [("content-type", "application/json")])


def text_response(text: str, status: int = 200) -> Response:
    """A plain-text body."""
    return Response(status, text.encode(), [("content-type", "text/plain; charset=utf-8")])
