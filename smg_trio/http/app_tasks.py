"""Apps as hypercorn's protocols run them, and what lies between the reader of a connection and an app.

hypercorn 0.18 puts what it reads into a memory channel of the request, ten messages of it, and waits while that is
full. An app that answers without having read the body leaves the reader waiting permanently, and the task that
then says that the connection is over waits too. An `Intake` can be closed: what comes afterwards is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from hypercorn.trio.task_group import TaskGroup, _handle

if TYPE_CHECKING:
    from smg_trio.http.asgi import Message

STOP_READING: Final = "smg_trio.stop_reading"
"""In ``scope["extensions"]``: a function after whose call nothing of the request is kept any more."""
_MOST_MESSAGES: Final = 10
_MOST_BYTES: Final = 256 * 1024


class Intake:
    """Messages for one app that it has not asked for yet."""

    __slots__ = ("_bytes", "_changed", "_closed", "_gone", "_messages")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._closed = False
        self._gone: Message | None = None
        self._changed = trio.Event()

    async def put(self, message: Message) -> None:
        """Hand over what came, waiting while much is waiting there already."""
        if message["type"].endswith(".disconnect"):
            self._gone = message
            self._note_change()
            return
        while not self._closed and self._is_full():
            await self._changed.wait()
        if not self._closed:
            self._messages.append(message)
            self._bytes += _size(message)
            self._note_change()

    def _is_full(self) -> bool:
        return len(self._messages) >= _MOST_MESSAGES or self._bytes >= _MOST_BYTES

    async def receive(self) -> Message:
        """ASGI ``receive``. Once the client has left it says so as often as it is asked."""
        while not self._messages:
            if self._gone is not None:
                return self._gone
            await self._changed.wait()
        message = self._messages.popleft()
        self._bytes -= _size(message)
        self._note_change()
        return message

    def close(self) -> None:
        """Drop what waits here, and all that is still put in."""
        self._closed = True
        self._messages.clear()
        self._bytes = 0
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")


class AppTasks(TaskGroup):
    """hypercorn's task group, whose apps read from an `Intake`."""

    async def spawn_app(
        self, app: Any, config: Any, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Start an app; what is returned hands messages to it."""
        intake = Intake()
        scope["extensions"][STOP_READING] = intake.close

        async def run() -> None:
            # hypercorn types messages as unions of typed dicts; ours are plain ones.
            receive = cast("Any", intake.receive)
            try:
                await _handle(app, config, scope, receive, send, trio.to_thread.run_sync, trio.from_thread.run)
            finally:
                intake.close()

        assert self._nursery is not None, "apps are started while the group is entered"
        self._nursery.start_soon(run)
        return intake.put
