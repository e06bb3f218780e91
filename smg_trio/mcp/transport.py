"""HTTP to an MCP server: to addresses that were checked, with bounds on what it may send.

The SDK speaks the protocol over an httpx2 client. This transport of that client uses no proxy, takes no compressed
answers (a few of their bytes may stand for gigabytes), and ends an answer that is larger than the limit.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpcore2
import httpx2
import trio

from smg_trio.net.connecting import connect_to_one

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smg_trio.net.addresses import Address

CONNECT_S: Final = 10.0
"""How long connecting may take, and sending a request."""
_CONNECTIONS: Final = 16


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Speaks HTTP/1.1 with one server.

    Attributes:
        status: of the last answer, if that was an error; else 0.
        too_large: whether an answer had more bytes than the limit.
    """

    def __init__(self, addresses: Sequence[Address], context: ssl.SSLContext | None, max_bytes: int) -> None:
        """Opens nothing.

        Args:
            addresses: of the server.
            context: for https.
            max_bytes: of one answer; of a stream of events, all of them together.
        """
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context, max_connections=_CONNECTIONS, network_backend=_CheckedAddresses(addresses)
        )
        self._max_bytes = max_bytes
        self.status = 0
        self.too_large = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See `httpx2.AsyncBaseTransport`."""
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        request.headers["accept-encoding"] = "identity"
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        with _as_httpx():
            answer = await self._pool.handle_async_request(
                httpcore2.Request(
                    request.method,
                    target,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        self.status = answer.status if answer.status >= 400 else 0
        stream = _BoundedStream(answer.stream, self._max_bytes, self._note_too_large)
        headers = httpx2.Headers(answer.headers)
        if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            await stream.aclose()
            raise httpx2.DecodingError("the server sends compressed data, though it was asked not to")
        return httpx2.Response(answer.status, headers=headers, stream=stream, extensions=answer.extensions)

    def _note_too_large(self) -> None:
        self.too_large = True

    async def aclose(self) -> None:
        """Close all connections."""
        with _as_httpx():
            await self._pool.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, max_bytes: int, exceeded: Callable[[], None]) -> None:
        self._stream = stream
        self._left = max_bytes
        self._exceeded = exceeded

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for part in self._stream:
                self._left -= len(part)
                if self._left < 0:
                    self._exceeded()
                    raise httpx2.ReadError("the server sends more than an answer may have")
                yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Errors of httpcore2 as those of httpx2, which have the same names."""
    try:
        yield
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        kind = getattr(httpx2, type(error).__name__, httpx2.TransportError)
        raise kind(str(error)) from error


class _CheckedAddresses(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses it was made with, whatever host it is told."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._trio = httpcore2.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        def connect(address: str, limit_s: float) -> Awaitable[httpcore2.AsyncNetworkStream]:
            return self._trio.connect_tcp(address, port, limit_s, None, socket_options)

        limit_s = CONNECT_S if timeout is None else timeout
        failures = (httpcore2.ConnectError, httpcore2.ConnectTimeout)
        return await connect_to_one(self._addresses, connect, limit_s, failures)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
