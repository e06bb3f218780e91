"""Listening sockets, the connection cap, the counts, and the ways a server ends."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
import trio

from smg_trio.core.errors import ConfigError
from smg_trio.http import Receive, Scope, Send, ServerLimits, Shutdown, open_listeners, serve
from smg_trio.http.listener import _bind_error
from tests.waiting import read_to_end

from .running import (
    GET,
    PATIENCE_S,
    ask,
    connect,
    conversation,
    echo,
    respond,
    running_server,
    talk,
    until,
)


def close_all(listeners: list[trio.SocketListener]) -> None:
    """Closes the sockets."""
    for listener in listeners:
        listener.socket.close()


async def test_a_free_port_is_chosen_and_then_is_taken() -> None:
    listeners = await open_listeners("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    assert port
    with pytest.raises(ConfigError, match=f"--port: {port} is in use"):
        await open_listeners("127.0.0.1", port)
    close_all(listeners)


async def test_a_port_can_be_taken_again_at_once() -> None:
    async with running_server(echo) as server:
        await ask(server, GET)
        port = server.port
    close_all(await open_listeners("127.0.0.1", port))


async def test_all_addresses_of_a_host_get_one_port() -> None:
    listeners = await open_listeners("", 0)
    names = [listener.socket.getsockname() for listener in listeners]
    close_all(listeners)
    assert len({name[1] for name in names}) == 1
    assert "0.0.0.0" in {name[0] for name in names}


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_a_host_that_is_not_here_is_a_config_error(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        await open_listeners(host, 0)


def test_a_privileged_port_is_a_config_error() -> None:
    error = _bind_error("127.0.0.1", 80, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert error.option == "--port"
    assert "1023" in error.remedy


@pytest.mark.parametrize("name", ["max_body_bytes", "head_timeout_s", "max_connections"])
def test_a_limit_that_refuses_everything_is_a_config_error(name: str) -> None:
    changes: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        ServerLimits(**changes)


async def test_connections_beyond_the_cap_are_told_so_and_later_ones_served() -> None:
    async with running_server(echo, limits=ServerLimits(max_connections=1)) as server:
        async with conversation(server) as first:
            assert (await first.answer(GET)).status == 200
            assert b"503 Service Unavailable" in await talk(server, b"")
            assert b"too_many_connections" in await talk(server, b"")
        await until(server, connections_open=0)
        assert (await ask(server, GET)).status == 200
        assert server.statistics().connections_refused == 2


async def test_statistics_count_what_happened() -> None:
    async with running_server(echo) as server, conversation(server) as client:
        await client.answer(GET)
        await client.answer(GET)
        await ask(server, b"GET / HTTP/1.1\r\n\r\n")
        now = server.statistics()
        assert (now.requests, now.faults, now.connections_accepted) == (2, 1, 2)
        assert now.connections_open >= now.connections_idle >= 1


async def test_a_client_that_connected_before_the_drain_is_still_answered() -> None:
    shutdown = Shutdown()
    async with running_server(echo, shutdown=shutdown) as server:
        # The kernel has finished both handshakes, and the server has had no turn to accept them.
        with socket.create_connection(("127.0.0.1", server.port)) as early:
            early.sendall(GET)
            shutdown.begin(PATIENCE_S)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(early))
            assert b"200 OK" in await read_to_end(stream)


async def test_what_outlives_the_grace_period_is_cancelled() -> None:
    shutdown = Shutdown()
    entered, cancelled = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise

    with trio.fail_after(PATIENCE_S):
        async with running_server(app, shutdown=shutdown) as server, await connect(server) as stream:
            await stream.send_all(GET)
            await entered.wait()
            shutdown.begin(0.1)
            await cancelled.wait()
            assert await read_to_end(stream) == b""


async def test_a_second_signal_ends_it_now() -> None:
    shutdown = Shutdown()
    entered = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await trio.sleep_forever()

    with trio.fail_after(PATIENCE_S):
        async with running_server(app, shutdown=shutdown) as server, await connect(server) as stream:
            await stream.send_all(GET)
            await entered.wait()
            shutdown.begin(3600)
            shutdown.cut()
            assert await read_to_end(stream) == b""


async def test_a_later_begin_can_only_shorten_the_grace_period() -> None:
    shutdown = Shutdown()
    assert not shutdown.draining
    shutdown.begin(1)
    deadline = shutdown.hard_scope.deadline
    shutdown.begin(60)
    assert shutdown.draining
    assert shutdown.hard_scope.deadline == deadline


async def test_a_server_without_connections_ends_as_soon_as_it_drains() -> None:
    shutdown = Shutdown()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            listeners = await open_listeners("127.0.0.1", 0)
            nursery.start_soon(lambda: serve(echo, listeners, shutdown=shutdown))
            shutdown.begin(3600)


async def test_cancelling_serve_frees_every_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1", 0)
        await nursery.start(lambda task_status: serve(echo, listeners, task_status=task_status))
        nursery.cancel_scope.cancel()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_running_out_of_descriptors_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    failures = iter([errno.EMFILE, errno.ECONNABORTED])

    def failing(self: socket.socket) -> Any:
        number = next(failures, None)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return accept(self)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"fine")

    async with running_server(app) as server:
        monkeypatch.setattr(socket.socket, "accept", failing)
        assert (await ask(server, GET)).body == b"fine"
    assert next(failures, None) is None
