"""What all connections share goes on when one of them raises an unexpected exception."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
import trio.testing

from smg_trio.http.client_connection import ClientConnection
from smg_trio.http.disconnect_watch import DisconnectWatch
from smg_trio.http.h1.write_batcher import WriteBatcher
from tests.http.running import PATIENCE_S


class Broken(Exception):
    """What none of these tasks expects."""


class Client:
    """Who waits for a departure; a broken one raises when it comes."""

    def __init__(self, *, broken: bool = False) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.gone = trio.Event()
        self._broken = broken

    def on_departure(self, *, reset: bool) -> None:
        self.gone.set()
        if self._broken:
            raise Broken


async def test_a_departure_that_cannot_be_handled_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    watch = DisconnectWatch()
    clients = [Client(broken=True), Client(), Client(broken=True), Client()]
    for client in clients:
        watch.enter(client.ours, client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        with trio.fail_after(PATIENCE_S):
            for client in clients:
                client.theirs.close()
                await client.gone.wait()
        nursery.cancel_scope.cancel()
    watch.close()
    for client in clients:
        client.ours.close()
    assert len(caplog.records) == 2


class Connection:
    """A connection with something to write: immediately, what the kernel does not take, or it raises."""

    def __init__(self, *, rest: bytes = b"", fails: str = "") -> None:
        self.sock, self._other = socket.socketpair()
        self.link = ClientConnection(self.sock, ("client", 1), None)
        self.written = False
        self._rest = rest
        self._fails = fails

    def write_queued(self) -> bytes:
        if self._fails == "immediately":
            raise Broken
        self.written = not self._rest
        return self._rest

    async def write_rest(self, rest: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._fails == "later":
            raise Broken
        self.written = True

    def close(self) -> None:
        self.sock.close()
        self._other.close()


async def test_a_write_that_fails_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    burst = WriteBatcher()
    broken = [Connection(fails="immediately"), Connection(rest=b"x", fails="later")]
    whole = [Connection(), Connection(rest=b"x"), Connection()]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(burst.run)
        for _ in range(2):  # the task that writes is still there for the second step
            await trio.testing.wait_all_tasks_blocked()
            connection: Any
            for connection in (whole[0], *broken, *whole[1:]):
                connection.written = False
                burst.add(connection)
            await trio.testing.wait_all_tasks_blocked()
            assert [one.written for one in whole] == [True] * 3
        nursery.cancel_scope.cancel()
    assert all(one.link.scope.cancel_called for one in broken)
    assert not any(one.link.scope.cancel_called for one in whole)
    assert len(caplog.records) == 4
    for one in (*broken, *whole):
        one.close()
