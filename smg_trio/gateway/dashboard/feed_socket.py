"""One watcher's WebSocket, ``/dashboard/feed``.

A browser cannot set headers on a WebSocket, so the key may come in the first message instead:
``{"type": "auth", "key": "…"}``. It never stands in the URL, which logs and histories keep. Snapshots are then sent as
text messages, each only if the key is still in force; whatever else the watcher sends is ignored, and the socket is
closed with one of `close_codes`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import trio

from smg_trio.api.errors import error_view, load_json
from smg_trio.core.errors import SmgError, Unauthorized
from smg_trio.gateway.close_codes import CLOSE_LIMIT_S, GOING_AWAY, UNAUTHORIZED
from smg_trio.gateway.security.key_ring import Access

if TYPE_CHECKING:
    from smg_trio.gateway.dashboard.feed import LiveFeed, Watcher

AUTH_LIMIT_S: Final = 10.0
"""How long an open socket may take to send its key."""
MAX_AUTH_CHARS: Final = 10_000
_KEY_HEADERS: Final = ("authorization", "x-api-key")


class Socket(Protocol):
    """The part of Quart's WebSocket that is used here."""

    @property
    def receive(self) -> Callable[[], Awaitable[str | bytes]]:
        """Wait for a message."""
        ...

    @property
    def send(self) -> Callable[[str], Awaitable[None]]:
        """Send a text message; waits while the peer does not read."""
        ...

    @property
    def close(self) -> Callable[[int, str], Awaitable[None]]:
        """Send a close code and its reason."""
        ...


Admit = Callable[[Access, Mapping[str, str]], Awaitable[object]]
"""Lets the holder of a key or token in; raises SmgError."""


async def check_handshake(headers: Mapping[str, str], admit: Admit) -> bool:
    """Whether the watcher may see snapshots immediately; False if it has yet to send its key.

    Raises Unauthorized or Forbidden for a wrong key in a header.
    """
    try:
        await admit(Access.LOOK, headers)
    except Unauthorized:
        if any(headers.get(name) for name in _KEY_HEADERS):
            raise
        return False
    return True


class FeedSocket:
    """One accepted connection. `run` it until either side ends it."""

    def __init__(self, feed: LiveFeed, admit: Admit, socket: Socket, headers: Mapping[str, str]) -> None:
        """`headers`: of the handshake, which the key may be in."""
        self._feed = feed
        self._admit = admit
        self._socket = socket
        self._credentials = headers

    async def run(self, *, admitted: bool) -> None:
        """Send snapshots until the feed ends; cancelled when the watcher leaves. `admitted`: see `check_handshake`."""
        code, reason = GOING_AWAY, "the gateway shuts down"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_at_end, nursery.cancel_scope)
            try:
                if not admitted:
                    await self._take_key()
                nursery.start_soon(self._ignore_messages)
                with self._feed.watch() as watcher:
                    await self._send_snapshots(watcher)
            except SmgError as error:
                code, reason = UNAUTHORIZED, error.code
                await self._say(error)
            nursery.cancel_scope.cancel()
        with trio.move_on_after(CLOSE_LIMIT_S):
            await self._socket.close(code, reason)

    async def _take_key(self) -> None:
        message: str | bytes = b""
        with trio.move_on_after(AUTH_LIMIT_S):
            message = await self._socket.receive()
        self._credentials = {"authorization": f"Bearer {read_key(message)}"}
        await self._admit(Access.LOOK, self._credentials)

    async def _say(self, error: SmgError) -> None:
        view = error_view(error)
        body = {"type": "error", "error": {"message": view.message, "type": view.type, "code": view.code}}
        with trio.move_on_after(CLOSE_LIMIT_S):
            await self._socket.send(json.dumps(body))

    async def _send_snapshots(self, watcher: Watcher) -> None:
        while (snapshot := await watcher.next_snapshot()) is not None:
            await self._admit(Access.LOOK, self._credentials)
            await self._socket.send(snapshot)

    async def _ignore_messages(self) -> None:
        while True:
            await self._socket.receive()

    async def _leave_at_end(self, scope: trio.CancelScope) -> None:
        """A watcher that does not read must not hold the gateway when it ends."""
        await self._feed.wait_end()
        await trio.sleep(CLOSE_LIMIT_S)
        scope.cancel()


def read_key(message: str | bytes) -> str:
    """The key of an ``auth`` message, spelt as a header would spell it. Raises Unauthorized if it holds none."""
    key: object = None
    if message and len(message) <= MAX_AUTH_CHARS:
        try:
            value = load_json(message.encode() if isinstance(message, str) else message)
        except (SmgError, UnicodeEncodeError):
            value = {}
        key = value.get("key") if value.get("type") == "auth" else None
    if not isinstance(key, str) or not key:
        raise Unauthorized("An API key is required: send it in a header, or as a first message of type `auth`.")
    return key.encode().decode("latin-1")
