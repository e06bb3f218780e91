"""A TCP relay that can be cut and frozen: the network between a gateway and an engine on another host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

ENGINE_SIDE = "127.0.0.2"
"""Where engines connect to; the relay goes on to the same port of the gateway's address."""
GATEWAY_SIDE = "127.0.0.1"


class Relay:
    """Passes bytes between two addresses, on the same ports.

    Attributes:
        held: set once bytes wait for `thaw`.
    """

    def __init__(self) -> None:
        self.held = trio.Event()
        self._flowing = trio.Event()
        self._flowing.set()
        self._open: dict[int, set[trio.CancelScope]] = {}
        self._half = False
        self._kept: list[trio.SocketStream] = []

    async def serve(self, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay connections to one port until cancelled."""

        async def connected(engine: trio.SocketStream) -> None:
            with trio.CancelScope() as scope, suppress(OSError, trio.BrokenResourceError):
                self._open.setdefault(port, set()).add(scope)
                gateway = await trio.open_tcp_stream(GATEWAY_SIDE, port)
                try:
                    async with engine:
                        await self._join(engine, gateway)
                finally:
                    self._open[port].discard(scope)
                    if self._half:
                        self._kept.append(gateway)
                    else:
                        gateway.socket.close()

        listeners = await trio.open_tcp_listeners(port, host=ENGINE_SIDE)
        await trio.serve_listeners(connected, listeners, task_status=task_status)

    async def _join(self, one: trio.SocketStream, other: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, one, other, nursery.cancel_scope)
            await self._pass_on(other, one, nursery.cancel_scope)

    async def _pass_on(self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                if not self._flowing.is_set():
                    self.held.set()
                    await self._flowing.wait()
                await sink.send_all(data)
        scope.cancel()

    def cut(self, *ports: int, half: bool = False) -> None:
        """Break what is connected to these ports now, in the middle of messages or not; what comes next connects.

        `half`: the gateway's side stays open, as where a network forgets a connection that only one side tries again.
        """
        self._half = half
        for port in ports:
            for scope in list(self._open.get(port, ())):
                scope.cancel()

    def freeze(self) -> None:
        """Pass nothing on from now on."""
        if self._flowing.is_set():
            self.held, self._flowing = trio.Event(), trio.Event()

    def thaw(self) -> None:
        """Pass on what was held, and all that follows."""
        self._flowing.set()


@asynccontextmanager
async def relaying(*ports: int) -> AsyncIterator[Relay]:
    """A relay on these ports."""
    relay = Relay()
    async with trio.open_nursery() as nursery:
        for port in ports:
            await nursery.start(relay.serve, port)
        yield relay
        nursery.cancel_scope.cancel()
    for gateway in relay._kept:
        gateway.socket.close()
