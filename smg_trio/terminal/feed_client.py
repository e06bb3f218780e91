"""The gateway's feed of snapshots, for programs: one connection, with the key in a header."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, WebSocketConnection, open_websocket_url

from smg_trio.core.errors import ConfigError, SmgError

if TYPE_CHECKING:
    from smg_trio.terminal.overview import Snapshot

SCHEMA = 1
CONNECT_LIMIT_S = 10.0
SILENCE_LIMIT_S = 15.0
"""A feed that says nothing for so long is taken to be gone; it speaks once a second."""
_NO_KEY = "this gateway wants an API key (--api-key, or the variable SMG_TRIO_API_KEY)"


class FeedUnreachable(SmgError):
    """There is no feed at the moment: the port is closed, or the gateway has closed the connection."""

    code = "feed_unreachable"


class FeedRefused(SmgError):
    """There will not be one however often it is tried: the key is wrong, or the server is not an smg-trio gateway."""

    code = "feed_refused"


def feed_url(url: str) -> str:
    """The feed of the gateway at ``http(s)://host:port[/prefix]``. Raises ConfigError for any other URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("--url", f"{url!r} is not the URL of a gateway.", "Give one like http://127.0.0.1:30000.")
    return parts._replace(
        scheme="wss" if parts.scheme == "https" else "ws",
        path=parts.path.rstrip("/") + "/dashboard/feed",
        query="",
        fragment="",
    ).geturl()


class Feed:
    """An open connection."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket

    async def next_snapshot(self) -> Snapshot:
        """Wait for the next snapshot. Raises FeedUnreachable, FeedRefused."""
        try:
            with trio.fail_after(SILENCE_LIMIT_S):
                message = await self._socket.get_message()
        except ConnectionClosed as error:
            raise _closed(error) from None
        except trio.TooSlowError:
            raise FeedUnreachable("the gateway sends no snapshots") from None
        return read_message(message)


@asynccontextmanager
async def open_feed(url: str, api_key: str | None) -> AsyncIterator[Feed]:
    """Connect to the feed of the gateway at `url`. Raises ConfigError, FeedUnreachable, FeedRefused."""
    headers = [(b"authorization", f"Bearer {api_key}".encode())] if api_key else []
    target = feed_url(url)
    try:
        async with open_websocket_url(target, extra_headers=headers, connect_timeout=CONNECT_LIMIT_S) as socket:
            if not api_key:
                # A gateway that wants a key waits for it, unless it hears that there is none.
                await socket.send_message(json.dumps({"type": "auth", "key": ""}))
            yield Feed(socket)
    except ConnectionRejected as error:
        raise _rejected(url, error.status_code) from None
    except (HandshakeError, OSError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else "no answer"
        raise FeedUnreachable(f"cannot reach {url}: {words}") from None


def read_message(message: str | bytes) -> Snapshot:
    """The snapshot in a message. Raises FeedRefused for anything else."""
    try:
        value = json.loads(message)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise FeedRefused("the server there is not an smg-trio gateway")
    if value.get("type") == "error":
        raise FeedRefused(_NO_KEY)
    if value.get("type") != "snapshot" or value.get("schema") != SCHEMA:
        raise FeedRefused(f"the gateway's feed has another schema than {SCHEMA}; use its own version of this program")
    return value


def _closed(error: ConnectionClosed) -> SmgError:
    reason = error.reason
    if reason is not None and reason.code == 4401:
        return FeedRefused(_NO_KEY)
    return FeedUnreachable("the gateway has closed the connection")


def _rejected(url: str, status: int) -> SmgError:
    if status == 401:
        return FeedRefused(f"{url} does not accept this API key")
    if status >= 500:
        return FeedUnreachable(f"{url} answered with status {status}")
    return FeedRefused(
        f"{url} has no feed (status {status}): not an smg-trio gateway of this version, or --no-dashboard is set"
    )


async def follow(
    url: str, api_key: str | None, show: Callable[[Snapshot | None, str], None], pause: Callable[[], Awaitable[None]]
) -> None:
    """Show snapshots until cancelled, over as many connections as it takes.

    `show` gets each snapshot, or None and why there is none; `pause` is awaited before the next try. Raises
    FeedRefused, ConfigError.
    """
    while True:
        try:
            async with open_feed(url, api_key) as feed:
                while True:
                    show(await feed.next_snapshot(), "")
        except FeedUnreachable as error:
            show(None, error.message)
        await pause()
