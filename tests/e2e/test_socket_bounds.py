"""Messages on a Responses WebSocket that are too long, never end or mean nothing harm that connection alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Request, TextMessage

from smg_trio.http.settings import ServerLimits

from .harness import HELLO, MODEL, PATIENCE_S, Bench, connect, open_gateway

CREATE = {"type": "response.create", "model": MODEL, "input": "hi", "store": False, "max_output_tokens": 16}


class Client:
    """A WebSocket client that says what no library would."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self.closed: int | None = None

    async def send(self, *events: Any) -> None:
        for event in events:
            await self._stream.send_all(self._connection.send(event))

    async def take(self) -> AsyncIterator[Any]:
        """Events until the connection ends; a message is one of the events as JSON."""
        text = ""
        while self.closed is None:
            try:
                data = await self._stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            self._connection.receive_data(data or None)
            for event in self._connection.events():
                if isinstance(event, CloseConnection):
                    self.closed = event.code
                elif isinstance(event, TextMessage):
                    text += event.data
                    if event.message_finished:
                        yield json.loads(text)
                        text = ""
                else:
                    yield event
            if not data:
                self.closed = self.closed or 0

    async def turn(self) -> list[str]:
        """One turn; the types of its events."""
        await self.send(TextMessage(json.dumps(CREATE)))
        seen = []
        async for event in self.take():
            seen.append(event["type"])
            if seen[-1] in ("response.completed", "response.incomplete", "response.failed", "error"):
                break
        return seen


@asynccontextmanager
async def client(bench: Bench) -> AsyncIterator[Client]:
    async with await connect(bench.port) as stream:
        one = Client(stream)
        await one.send(Request(host="localhost", target="/v1/responses"))
        async for event in one.take():
            assert isinstance(event, AcceptConnection)
            break
        yield one


async def endless(one: Client, make: type[Message], piece: Any) -> None:
    """Fragments of a message that never ends."""
    for _ in range(1_000):
        try:
            await one.send(make(piece, message_finished=False))
        except (trio.BrokenResourceError, trio.ClosedResourceError, wsproto.utilities.LocalProtocolError):
            return


@pytest.mark.parametrize(("make", "piece"), [(TextMessage, "x" * 100_000), (BytesMessage, b"x" * 100_000)])
async def test_a_message_that_never_ends_ends_its_connection(tmp_path: Path, make: type[Message], piece: Any) -> None:
    async with open_gateway(tmp_path, HELLO) as bench, client(bench) as other, client(bench) as one:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(endless, one, make, piece)
                async for _ in one.take():
                    pass
                nursery.cancel_scope.cancel()
            assert one.closed in (0, 1009)
            assert (await other.turn())[-1] == "response.completed"
        assert len(piece) * 1_000 > ServerLimits().max_websocket_bytes


async def test_what_is_no_turn_is_an_error_event_and_the_connection_stays(tmp_path: Path) -> None:
    wrong: list[Any] = [
        TextMessage(""),
        TextMessage("[" * 100_000),
        TextMessage(json.dumps(CREATE | {"x": [[]] * 600_000})),
        TextMessage(json.dumps(CREATE | {"stream_id": "x" * 1_000_000})),
        TextMessage(json.dumps(CREATE | {"type": "x" * 1_000_000})),
        TextMessage(json.dumps(CREATE | {"input": "a b " * 500_000})),
        BytesMessage(b"\xff\xfe\x00"),
    ]
    async with open_gateway(tmp_path, HELLO) as bench, client(bench) as one:
        with trio.fail_after(PATIENCE_S):
            for message in wrong:
                await one.send(message)
                async for event in one.take():
                    assert event["type"] == "error"
                    assert 400 <= event["status"] < 500
                    assert len(json.dumps(event)) < 10_000
                    break
            assert (await one.turn())[-1] == "response.completed"
        await bench.wait_idle()
