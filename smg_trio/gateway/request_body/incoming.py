"""Bodies of requests on their way in: read only when their request may have one, and together within bounds.

An endpoint's body is read once route, key and limits have been looked at. So nothing is read for a client
without a key, and clients with one share `BodyMemory`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import PayloadMemoryFull
from smg_trio.gateway.request_body.codings import PIECE_BYTES, Unpacking
from smg_trio.http.faults import RequestTooLarge

if TYPE_CHECKING:
    from smg_trio.http.asgi import App, Message, Receive, Scope, Send

InThread = Callable[[Callable[[], list[bytes]]], Awaitable[list[bytes]]]
"""Runs work in a thread."""
_INLINE_BYTES: Final = 16 * 1024
_BATCH_BYTES: Final = 4 * 1024 * 1024


class BodyMemory:
    """What all request bodies hold together, from their first byte until they have been parsed. Pure.

    Attributes:
        limit: bytes.
        held: bytes, now.
    """

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Hold `size` more bytes until `give_back`. Raises PayloadMemoryFull; then nothing is held of them."""
        if self.held + size > self.limit:
            raise PayloadMemoryFull(
                f"The server holds {self.held} bytes of request bodies, of at most {self.limit} "
                "(--max-payload-memory). Try again."
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.held -= size


class IncomingBody:
    """The body of one request.

    Either `read` or `skip` is called, at most once; `release` as often as one likes.

    Attributes:
        unread: the client may still be sending it.
    """

    __slots__ = ("_declared", "_held", "_memory", "_on_end", "_receive", "unread")

    def __init__(
        self, receive: Receive, memory: BodyMemory, on_end: Callable[[], None], *, declared: bool = True
    ) -> None:
        """Nothing is received before the body is read.

        Args:
            receive: the request's ASGI ``receive``; nothing else calls it before `on_end` has been called.
            memory: that of all bodies.
            on_end: called when nothing more of the body is to come; from then on it is somebody else's part to notice
                that the client leaves, and to cancel the request.
            declared: whether the request's head says that there is a body, or may be one.
        """
        self._receive = receive
        self._memory = memory
        self._on_end = on_end
        self._declared = declared
        self._held = 0
        self.unread = declared

    async def read(self) -> bytes:
        """The whole body.

        Raises what ``receive`` raises of a body that is too large, too slow or broken, and PayloadMemoryFull. A client
        that leaves meanwhile has the request cancelled.
        """
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if body:
                self.hold(len(body))
        else:
            body = await self._read_on(message)
        self.unread = False
        self._on_end()
        return body

    async def _read_on(self, message: Message) -> bytes:
        parts = []
        while True:
            if message["type"] != "http.request":
                self._on_end()
                await trio.sleep_forever()
            part = message.get("body", b"")
            self.hold(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await self._receive()

    async def read_unpacked(self, coding: str, limit: int, in_thread: InThread) -> bytes:
        """The whole body as it was before it was compressed; its memory is held in place of the compressed one's.

        All but short ones are unpacked in threads, a few MiB at a time: the event loop goes on, and what would become
        larger than `limit` is noticed on the way.

        Raises what `read` raises, DecompressionFailed and RequestTooLarge.
        """
        body = await self.read()
        if not body:
            return body
        unpacking = Unpacking(coding, body)
        parts = unpacking.next_pieces(PIECE_BYTES) if len(body) <= _INLINE_BYTES else []
        size = self._hold_within(limit, parts, 0)
        while not unpacking.ended:
            new = await in_thread(partial(unpacking.next_pieces, _BATCH_BYTES))
            size = self._hold_within(limit, new, size)
            parts += new
        self._held -= len(body)
        self._memory.give_back(len(body))
        return b"".join(parts)

    def _hold_within(self, limit: int, parts: list[bytes], before: int) -> int:
        added = sum(map(len, parts))
        if before + added > limit:
            raise RequestTooLarge(limit, " when it is decompressed")
        self.hold(added)
        return before + added

    def skip(self) -> None:
        """The request's endpoint takes no body: what the client sends all the same is not read."""
        if not self._declared:
            self._on_end()

    def hold(self, size: int) -> None:
        """Count `size` bytes more to what `release` gives back. Raises PayloadMemoryFull."""
        self._memory.take(size)
        self._held += size

    def release(self) -> None:
        """Give back the memory: there are no references to the body any more."""
        if self._held:
            self._memory.give_back(self._held)
            self._held = 0


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


NO_BODY: Final = IncomingBody(_nothing, BodyMemory(0), lambda: None, declared=False)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_EXTENSION: Final = "smg_trio.incoming_body"


async def serve_unread(app: App, memory: BodyMemory, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an app that would read a request's body from the start, as Quart does, so that it does not.

    The app finds the body in its scope: see `incoming_body`. Its ``receive`` waits until that has been read, or need
    not be, and then only says that the client has left.
    """
    ended = trio.Event()

    async def receive_end() -> Message:
        await ended.wait()
        message = await receive()
        # A body that was not announced is not read.
        return message if message["type"] == "http.disconnect" else message | {"body": b""}

    body = IncomingBody(receive, memory, ended.set, declared=_may_have_body(scope))
    extensions = scope.get("extensions", {}) | {_EXTENSION: body}
    await app(scope | {"extensions": extensions}, receive_end, send)


def incoming_body(scope: Mapping[str, Any]) -> IncomingBody:
    """The body of a request that is served by `serve_unread`."""
    body: IncomingBody = scope["extensions"][_EXTENSION]
    return body


def _may_have_body(scope: Scope) -> bool:
    """Whether a request can have a body, as its head says. Over HTTP/2 it need not say so."""
    for name, value in scope["headers"]:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")):
            return True
    return scope["method"] not in _BODILESS and scope["http_version"] not in ("1.0", "1.1")
