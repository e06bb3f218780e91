"""One GET to addresses that were checked, over HTTP/1.1. Needs the extra ``smg-trio[images]``.

httpcore speaks HTTP; unlike clients above it, it knows no proxies of the environment, no cookies and no redirects.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpcore
import trio

from smg_trio import __version__
from smg_trio.media.errors import InvalidMedia, MediaTimeout, MediaUnavailable
from smg_trio.media.sources import too_large
from smg_trio.net.connecting import connect_to_one

if TYPE_CHECKING:
    from smg_trio.net.addresses import Address
    from smg_trio.net.urls import HttpUrl

PATIENCE_S: Final = 5.0
"""How long connecting may take, and each wait for bytes after it."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TAKEN_AT_ONCE: Final = 1 << 20


class Answer(NamedTuple):
    """What the server said: the file, or where to look for it."""

    body: bytes = b""
    location: str | None = None


async def get(
    url: HttpUrl,
    addresses: Sequence[Address],
    where: str,
    *,
    limit: int,
    context: ssl.SSLContext | None,
    take: Callable[[int], Awaitable[None]],
) -> Answer:
    """Ask for the URL, at one of the addresses.

    The connection is closed at the end, however it ends.

    Args:
        where: the part of the request, for errors.
        limit: most bytes of the body that are read, whatever Content-Length says.
        context: for https.
        take: awaited before so many bytes more are kept.

    Raises:
        InvalidMedia: the server says 4xx, or has nothing.
        MediaTooLarge: more than `limit` bytes.
        MediaUnavailable, MediaTimeout: it cannot be reached, says 5xx, breaks off, or is silent for `PATIENCE_S`.
    """
    connection = httpcore.AsyncHTTPConnection(
        origin=httpcore.Origin(url.scheme.encode(), url.host.encode(), url.port),
        ssl_context=context,
        network_backend=_CheckedAddresses(addresses),
    )
    try:
        async with (
            connection,
            connection.stream(
                "GET",
                httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
                headers=_headers(url),
                extensions={"timeout": {"connect": PATIENCE_S, "read": PATIENCE_S, "write": PATIENCE_S}},
            ) as response,
        ):
            return await _answer(response, where, limit, take)
    except httpcore.TimeoutException:
        raise MediaTimeout(where, f"the server of the URL was silent for {PATIENCE_S:g} s") from None
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise MediaUnavailable(where, _problem(error)) from None


def _headers(url: HttpUrl) -> list[tuple[str, str]]:
    return [
        ("Host", url.authority),
        ("User-Agent", f"smg-trio/{__version__}"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]


async def _answer(
    response: httpcore.Response, where: str, limit: int, take: Callable[[int], Awaitable[None]]
) -> Answer:
    headers = {name.lower(): value.decode("latin-1").strip() for name, value in response.headers}
    if response.status in _REDIRECTS and b"location" in headers:
        # Bytes outside ASCII are UTF-8 wherever somebody sends them.
        return Answer(location=headers[b"location"].encode("latin-1").decode("utf-8", "replace"))
    if response.status >= 500:
        raise MediaUnavailable(where, f"HTTP {response.status} from the server of the URL")
    if response.status not in (200, 203):
        raise InvalidMedia(where, f"HTTP {response.status} from the server of the URL")
    if headers.get(b"content-encoding", "").lower() not in ("", "identity"):
        raise InvalidMedia(where, "the server of the URL sends compressed data, though it was asked not to")
    body = await _body(response, where, limit, take)
    if not body:
        raise InvalidMedia(where, "the server of the URL sends nothing")
    return Answer(body)


async def _body(response: httpcore.Response, where: str, limit: int, take: Callable[[int], Awaitable[None]]) -> bytes:
    body = BytesIO()
    size = taken = 0
    async for chunk in response.aiter_stream():
        size += len(chunk)
        if size > limit:
            raise too_large(where, limit)
        if size > taken:
            step = max(size - taken, min(_TAKEN_AT_ONCE, limit - taken))
            await take(step)
            taken += step
        body.write(chunk)
    return body.getvalue()


def _problem(error: BaseException) -> str:
    """What went wrong, without the address that the library's own words name."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "the certificate of the URL's server is not valid"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore.ConnectError):
        return "cannot connect to the server of the URL"
    return "the server of the URL broke off its answer or does not speak HTTP"


class _CheckedAddresses(httpcore.AsyncNetworkBackend):
    """Connects to the addresses it was made with, whatever host it is told."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._trio = httpcore.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        def connect(address: str, limit_s: float) -> Awaitable[httpcore.AsyncNetworkStream]:
            return self._trio.connect_tcp(address, port, limit_s, None, socket_options)

        limit_s = PATIENCE_S if timeout is None else timeout
        failures = (httpcore.ConnectError, httpcore.ConnectTimeout)
        return await connect_to_one(self._addresses, connect, limit_s, failures)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
