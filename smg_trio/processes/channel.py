"""The control channel between the keeper and one front: a socket pair that carries msgpack messages both ways.

```
message: 4 bytes of length, big-endian, then [kind, call, name, arguments]
kind:    0 notice   1 call   2 result (arguments: the value)   3 error (arguments: code, message, param, retry after)
```
Notices are handled in the order they came, immediately; a call is a task of its own, and its caller waits for the
result. What is sent waits in a memory channel for the task that writes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgpack
import trio

from smg_trio.core.errors import Conflict, GatewayFault, NotFound, RateLimited, SmgError
from smg_trio.history.base import HistoryUnavailable
from smg_trio.routing.admission import AdmissionQueueFull, AdmissionQueueTimeout

if TYPE_CHECKING:
    import socket

logger = logging.getLogger("smg_trio.processes")

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
_HEAD: Final = struct.Struct(">I")
_READ_BYTES: Final = 1 << 16
_NOTICE, _CALL, _RESULT, _ERROR = range(4)

Notices = dict[str, Callable[..., None]]
Calls = dict[str, Callable[..., Awaitable[Any]]]


class PeerGone(GatewayFault):
    """The process at the other end of the channel has ended, or does not answer."""

    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("The gateway's processes cannot reach each other. Try again later.")


class _Waiting:
    __slots__ = ("answered", "error", "value")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.value: Any = None
        self.error: SmgError | None = None


class Channel:
    """One end. `run` it in a nursery; everything else never waits, but for `call`.

    Args:
        end: a connected stream socket; closed with the channel.
        notices, calls: what the other end may say and ask, by name. A call may raise SmgError, which its caller gets.
    """

    def __init__(self, end: socket.socket, notices: Notices, calls: Calls) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._notices = notices
        self._calls = calls
        self._outgoing, self._unsent = trio.open_memory_channel[bytes](float("inf"))
        self._waiting: dict[int, _Waiting] = {}
        self._last_call = 0
        self.closed = False

    async def run(self) -> None:
        """Read and write until the other end is gone, or `close`; calls that wait then raise PeerGone."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.closed = True
            for one in self._waiting.values():
                one.error = PeerGone()
                one.answered.set()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def notify(self, name: str, *arguments: Any) -> None:
        """Send a notice; lost if the other end is gone."""
        self._send(_NOTICE, 0, name, arguments)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Ask, and wait for the result.

        Raises what the other end raised as far as it is an SmgError that is known here, GatewayFault for anything else,
        PeerGone. Cancelled, the answer is dropped.
        """
        if self.closed:
            raise PeerGone
        self._last_call += 1
        number = self._last_call
        waiting = self._waiting[number] = _Waiting()
        try:
            self._send(_CALL, number, name, arguments)
            await waiting.answered.wait()
        finally:
            del self._waiting[number]
        if waiting.error is not None:
            raise waiting.error
        return waiting.value

    def _send(self, kind: int, number: int, name: str, arguments: Any) -> None:
        if self.closed:
            return
        body: bytes = msgpack.packb([kind, number, name, arguments], use_bin_type=True, default=_refuse)
        if len(body) > MAX_MESSAGE_BYTES:
            raise GatewayFault("A message between the gateway's processes is too large.")
        self._outgoing.send_nowait(_HEAD.pack(len(body)) + body)

    async def _write(self) -> None:
        try:
            async for message in self._unsent:
                await self._stream.send_all(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader hears of it, too

    async def _read(self, nursery: trio.Nursery) -> None:
        buffer = bytearray()
        try:
            while chunk := await self._stream.receive_some(_READ_BYTES):
                buffer += chunk
                while len(buffer) >= _HEAD.size:
                    (length,) = _HEAD.unpack_from(buffer)
                    end = _HEAD.size + length
                    if length > MAX_MESSAGE_BYTES:
                        logger.error("a message of %d bytes came from another process of the gateway", length)
                        return
                    if len(buffer) < end:
                        break
                    message = bytes(buffer[_HEAD.size : end])
                    del buffer[:end]
                    self._take(message, nursery)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        except Exception:
            # Nothing that is read after it can be trusted: the other end is started again.
            logger.exception("a message of another process of the gateway cannot be read")

    def _take(self, message: bytes, nursery: trio.Nursery) -> None:
        kind, number, name, arguments = msgpack.unpackb(message, strict_map_key=False)
        if kind == _NOTICE:
            try:
                self._notices[name](*arguments)
            except Exception:
                logger.exception("the notice %s of another process failed", name)
        elif kind == _CALL:
            nursery.start_soon(self._answer, number, name, arguments)
        elif (waiting := self._waiting.get(number)) is not None:
            if kind == _RESULT:
                waiting.value = arguments
            else:
                waiting.error = error_of(arguments)
            waiting.answered.set()

    async def _answer(self, number: int, name: str, arguments: list[Any]) -> None:
        try:
            value = await self._calls[name](*arguments)
            self._send(_RESULT, number, name, value)
        except SmgError as error:
            self._send(_ERROR, number, name, error_value(error))
        except Exception:
            logger.exception("the call %s of another process failed", name)
            self._send(_ERROR, number, name, error_value(GatewayFault("internal error")))


def _refuse(value: Any) -> Any:
    raise TypeError(f"a message between processes cannot hold a {type(value).__name__}")


# ---- errors -----------------------------------------------------------------------------------------------

_KNOWN: Final[dict[str, type[SmgError]]] = {
    one.__name__: one for one in (Conflict, NotFound, RateLimited, AdmissionQueueFull, AdmissionQueueTimeout)
}


def error_value(error: SmgError) -> list[Any]:
    """An error as a message has it."""
    return [
        type(error).__name__,
        error.message,
        getattr(error, "param", None),
        getattr(error, "retry_after_s", None),
    ]


def error_of(value: list[Any]) -> SmgError:
    """The error of `error_value`; a GatewayFault if its kind is not one of those that are told apart."""
    name, message, param, retry_after_s = value
    if name == HistoryUnavailable.__name__:
        return HistoryUnavailable()
    kind = _KNOWN.get(name)
    if kind is None:
        return GatewayFault(message)
    if retry_after_s is not None:
        return kind(message, retry_after_s=retry_after_s)  # type: ignore[call-arg]
    return kind(message) if param is None else kind(message, param=param)  # type: ignore[call-arg]
