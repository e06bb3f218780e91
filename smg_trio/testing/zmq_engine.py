"""Fake engines on real sockets: libzmq's DEALER and PUSH under trio.

A socket's descriptor is an edge, not a level: any call on the socket may eat it. So the operation is tried
first, then ``EVENTS`` is read, and only if that says "not yet" the task waits for the descriptor, with nothing
between the two. Each link is used by one task at a time, so no wake-up can be lost to another task.

Socket options are the engines' own: vLLM sets high-water marks to 0 and lets its output linger for 4 s;
TokenSpeed leaves libzmq's defaults (1000 messages).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio
import zmq

from smg_trio.core.engines import EngineProtocol
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.script import LengthScript, Script, ScriptChooser
from smg_trio.worker.links import LinkClosed

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest
    from smg_trio.testing.lockstep import LockstepGroup
    from smg_trio.testing.options import EngineOptions
    from smg_trio.wire.packing import Frame

_VLLM_LINGER_MS = {"handshake": 5000, "input": 0, "output": 4000}
_TOKENSPEED_LINGER_MS = {"handshake": 5000, "input": 0, "output": 1000}


class ZmqDialLink:
    """One connecting socket as a `worker.links.Link`."""

    def __init__(self, socket: zmq.Socket[bytes], *, linger_ms: int) -> None:
        self._socket = socket
        self._fd: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._linger_ms = linger_ms
        self._closed = False

    def origin(self, index: int) -> int | None:
        """See `Link.origin`: never known."""
        return None

    async def receive_many(self, limit: int = 64) -> list[list[bytes]]:
        """Wait for 1..limit messages. Cancellation loses nothing. Raises LinkClosed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while not (messages := self._take(limit)):
            if not self._ready(zmq.POLLIN):
                await self._wait_fd()
                waited = True
        if not waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return messages

    def send_nowait(self, frames: Sequence[Frame]) -> None:
        """Hand a message to the socket. Raises trio.WouldBlock, LinkClosed."""
        self._check_open()
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise trio.WouldBlock from None

    async def send(self, frames: Sequence[Frame]) -> None:
        """Like `send_nowait`, but wait while the pipe is full. If cancelled the message was not sent."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                self.send_nowait(frames)
                break
            except trio.WouldBlock:
                if not self._ready(zmq.POLLOUT):
                    await self._wait_fd()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_peer_lost(self) -> bytes | None:
        """Not offered here: an engine has no use for it, libzmq connects again by itself."""
        await trio.sleep_forever()

    def close(self) -> None:
        """Close; what was sent lingers as long as on a real engine, in libzmq's own thread."""
        if self._closed:
            return
        self._closed = True
        trio.lowlevel.notify_closing(self._fd)
        self._socket.close(linger=self._linger_ms)

    def _take(self, limit: int) -> list[list[bytes]]:
        self._check_open()
        messages: list[list[bytes]] = []
        receive = self._socket.recv_multipart
        try:
            while len(messages) < limit:
                messages.append(receive(zmq.NOBLOCK))
        except zmq.Again:
            pass
        return messages

    def _ready(self, wanted: int) -> bool:
        self._check_open()
        events: int = self._socket.getsockopt(zmq.EVENTS)  # type: ignore[assignment]
        return bool(events & wanted)

    async def _wait_fd(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            raise LinkClosed from None

    def _check_open(self) -> None:
        if self._closed:
            raise LinkClosed


class ZmqDialer:
    """Connects fake engines with real sockets; sockets belong to ``context``, which is not terminated."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]] | None = None, *, protocol: EngineProtocol = EngineProtocol.VLLM
    ) -> None:
        self._context = context or zmq.Context.instance()
        self._unbounded = protocol is EngineProtocol.VLLM
        self._linger_ms = _VLLM_LINGER_MS if self._unbounded else _TOKENSPEED_LINGER_MS

    def dial_handshake(self, address: str, identity: bytes) -> ZmqDialLink:
        """DEALER; lingers 5 s."""
        return self._dial(zmq.DEALER, address, identity, "handshake")

    def dial_input(self, address: str, identity: bytes) -> ZmqDialLink:
        """DEALER; closing it drops what was not sent."""
        return self._dial(zmq.DEALER, address, identity, "input")

    def dial_output(self, address: str) -> ZmqDialLink:
        """PUSH, without identity."""
        return self._dial(zmq.PUSH, address, None, "output")

    def _dial(self, kind: int, address: str, identity: bytes | None, name: str) -> ZmqDialLink:
        socket = self._context.socket(kind)
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        if self._unbounded:
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        return ZmqDialLink(socket, linger_ms=self._linger_ms[name])


def _count(request: EngineRequest) -> Script:
    return LengthScript()


def zmq_engine(
    options: EngineOptions,
    handshake_address: str,
    *,
    choose_script: ScriptChooser = _count,
    group: LockstepGroup | None = None,
    context: zmq.Context[zmq.Socket[bytes]] | None = None,
) -> FakeEngine:
    """A fake engine that will dial ``handshake_address`` with real sockets when it runs."""
    dialer = ZmqDialer(context, protocol=options.protocol)
    return FakeEngine(options, dialer, handshake_address, choose_script=choose_script, group=group)


async def run_fake_engine(
    options: EngineOptions, handshake_address: str, *, choose_script: ScriptChooser = _count
) -> str:
    """Run one engine on real sockets until it dies; returns why. Cancelling closes its sockets."""
    return await zmq_engine(options, handshake_address, choose_script=choose_script).run()
