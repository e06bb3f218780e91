"""Streams that write together: every client gets its own bytes, all of them, in order, whatever its neighbours do."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from smg_trio.http import WRITE_BODY, Receive, RunningServer, Scope, Send
from smg_trio.http.asgi import App
from smg_trio.http.client_connection import ClientConnection
from smg_trio.http.h1 import write_batcher as bursts
from smg_trio.http.h1.byte_stream import ByteStream
from smg_trio.http.h1.write_batcher import WORTH_FROM, WriteBatcher
from smg_trio.http.settings import ServerLimits
from tests.http.running import (
    PATIENCE_S,
    Stream,
    connect,
    reset,
    running_server,
)
from tests.waiting import read_to_end, until

STREAMS = 3 * WORTH_FROM


@pytest.fixture(autouse=True, params=[WORTH_FROM - 1, 4 * STREAMS], ids=["several bursts per step", "one"])
def most_waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "_MOST_WAITING", request.param)


TLS = [False]


@pytest.fixture(autouse=True, params=[False, True], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> None:
    TLS[0] = request.param


class Steps:
    """An app whose responses all write a piece at each step, as an engine's streams do."""

    def __init__(self) -> None:
        self.begun = 0
        self.gone: list[str] = []
        self.cut: set[str] = set()
        self.large: dict[str, int] = {}
        self._pieces: list[bytes] = []
        self._step = trio.Event()
        self._last = False

    def step(self, piece: bytes, *, last: bool = False) -> None:
        self._pieces.append(piece)
        self._last = last
        step, self._step = self._step, trio.Event()
        step.set()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write each step's piece after the path; raise after the first if the path is to be cut."""
        path, write = scope["path"], scope["extensions"][WRITE_BODY]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<", "more_body": True})
        self.begun += 1
        seen = len(self._pieces)
        try:
            while not self._last or seen < len(self._pieces):
                while seen == len(self._pieces):
                    await self._step.wait()
                piece = path.encode() + self._pieces[seen] * self.large.get(path, 1)
                seen += 1
                if self._last and seen == len(self._pieces):
                    break
                unsent = write(piece)
                if unsent is not None:
                    await unsent
                if path in self.cut:
                    raise RuntimeError("cut")
            await send({"type": "http.response.body", "body": piece + b">"})
        except (trio.Cancelled, OSError):
            self.gone.append(path)
            raise

    async def wait_begun(self, count: int) -> None:
        await until(lambda: self.begun >= count)


@asynccontextmanager
async def clients(app: App, count: int) -> AsyncIterator[tuple[RunningServer, list[Stream]]]:
    async with running_server(app, tls=TLS[0]) as server:
        streams = [await connect(server) for _ in range(count)]
        for number, stream in enumerate(streams):
            await stream.send_all(b"GET /%d HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n" % number)
        yield server, streams


def body_of(answer: bytes) -> bytes:
    """The body of a chunked response, which must be whole."""
    head, found, rest = answer.partition(b"\r\n\r\n")
    assert found
    assert b"transfer-encoding: chunked" in head.lower()
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            assert rest == b"\r\n"
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


@pytest.mark.parametrize("count", [1, WORTH_FROM - 1, WORTH_FROM, STREAMS])
async def test_every_stream_gets_its_own_pieces_in_order(count: int) -> None:
    steps = Steps()
    async with clients(steps.app, count) as (_, streams):
        await steps.wait_begun(count)
        for number in range(30):
            steps.step(b":%d," % number, last=number == 29)
            if number % 3 == 0:  # else the next step comes before the pieces of this one have left
                await trio.testing.wait_all_tasks_blocked()
        for index, stream in enumerate(streams):
            expected = b"".join(b"/%d:%d," % (index, number) for number in range(30))
            assert body_of(await read_to_end(stream)) == b"<" + expected + b">"


async def test_a_client_that_reads_late_gets_all_and_holds_up_nobody() -> None:
    steps = Steps()
    steps.large = {"/0": 200_000}
    async with clients(steps.app, STREAMS) as (server, streams):
        await steps.wait_begun(STREAMS)
        late, *prompt = streams
        for number in range(40):
            steps.step(b"x", last=number == 39)
            await trio.testing.wait_all_tasks_blocked()
        for index, stream in enumerate(prompt, 1):
            assert body_of(await read_to_end(stream)) == b"<" + b"/%dx" % index * 40 + b">"
        assert server.statistics().connections_open == 1
        assert body_of(await read_to_end(late)) == b"<" + (b"/0" + b"x" * 200_000) * 40 + b">"


async def test_a_client_that_resets_is_noticed_and_its_neighbours_go_on() -> None:
    steps = Steps()
    async with clients(steps.app, STREAMS) as (_, streams):
        await steps.wait_begun(STREAMS)
        reset(streams.pop(3))
        with trio.fail_after(PATIENCE_S):
            while steps.gone != ["/3"]:
                steps.step(b",")  # nobody asked to be told of it: the write meets it
                await trio.testing.wait_all_tasks_blocked()
        steps.step(b".", last=True)
        for stream in streams:
            assert body_of(await read_to_end(stream)).endswith(b".>")


async def test_what_was_written_before_an_app_failed_arrives() -> None:
    steps = Steps()
    steps.cut = {"/2"}
    async with clients(steps.app, STREAMS) as (_, streams):
        await steps.wait_begun(STREAMS)
        steps.step(b",")
        assert (await read_to_end(streams.pop(2))).endswith(b"1\r\n<\r\n3\r\n/2,\r\n")
        steps.step(b".", last=True)
        for stream in streams:
            assert body_of(await read_to_end(stream)).endswith(b".>")


async def test_a_connection_that_ends_before_its_rest_is_written_troubles_nobody() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = ClientConnection(ours, None, None)
    stream = ByteStream(link, WriteBatcher(), ServerLimits().write_timeout_s)
    with theirs:
        assert stream.queue(b"x" * 10_000_000)
        rest = stream.write_queued()
        assert 0 < len(rest) < 10_000_000
        assert not stream.queue(b"y"), "what comes now has to wait"
        link.close()
        await stream.write_rest(rest)
