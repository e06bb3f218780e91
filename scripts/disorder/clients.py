"""Clients: patient ones, slow ones, ones that leave, ones that ask for nonsense. Each request's end is judged."""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import httptools
import httpx
import trio

from disorder.ends import Asked, End, end_of

MODEL = "m"
PATIENCE_S = 20.0
"""Longer than queue, request timeout and every retry together: who waits longer has been forgotten."""


@dataclass(slots=True)
class Tally:
    """What has come of the requests so far; `longest_probe_s` is of ``/health``.

    `may_be_torn`: processes of the gateway are killed, so connections may break.
    """

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest_probe_s: float = 0.0
    probes: int = 0
    may_be_torn: bool = False

    def note(self, name: str, end: End) -> None:
        """Count an end."""
        self.ends[end.kind] += 1
        if end.fault and not (self.may_be_torn and end.kind == "torn"):
            self.faults.append(f"{name}: {end.fault}")


class Client:
    """One client, one request after another."""

    def __init__(self, name: str, random: Random, port: int, http: httpx.AsyncClient, tally: Tally) -> None:
        self._name = name
        self._random = random
        self._port = port
        self._http = http
        self._tally = tally
        self._count = 0

    async def run_until(self, ends: float) -> None:
        """Ask until then; the last request may end later."""
        while trio.current_time() < ends:
            self._count += 1
            name = f"{self._name}.{self._count}"
            with trio.move_on_after(PATIENCE_S) as scope:
                try:
                    end = await self._one()
                except (httpx.HTTPError, OSError, ValueError, trio.BrokenResourceError) as error:
                    end = End("torn", f"{type(error).__name__}: {error}")
            if scope.cancelled_caught:
                end = End("forgotten", f"no end within {PATIENCE_S:g}s")
            self._tally.note(name, end)
            if end.kind.startswith("refused"):
                await trio.sleep(self._random.uniform(0.0, 0.05))

    def _asked(self) -> Asked:
        random = self._random
        return Asked(
            prompt=tuple(random.randrange(1000) for _ in range(random.randint(1, 40))),
            seed=random.randrange(2**31),
            length=random.randint(1, 80),
            n=random.choice((1, 1, 1, 2, 3)),
            stream=random.random() < 0.6,
            valid=random.random() < 0.95,
        )

    async def _one(self) -> End:
        asked, way = self._asked(), self._random.random()
        if way < 0.7:
            answer = await self._http.post("/v1/completions", json=asked.body(MODEL))
            return end_of(asked, answer.status_code, answer.text)
        stream = await self._send(asked)
        try:
            return await (self._read_slowly(stream, asked) if way < 0.85 else self._leave(stream))
        finally:
            stream.socket.close()

    async def _send(self, asked: Asked) -> trio.SocketStream:
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        await sock.connect(("127.0.0.1", self._port))
        stream = trio.SocketStream(sock)
        body = json.dumps(asked.body(MODEL)).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += "Content-Type: application/json\r\n"
        await stream.send_all(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return stream

    async def _read_slowly(self, stream: trio.SocketStream, asked: Asked) -> End:
        """Small sips with pauses, and then the rest, so that the whole answer is judged."""
        response = _Response()
        for _ in range(self._random.randint(1, 30)):
            if not (piece := await stream.receive_some(self._random.randint(1, 400))):
                break
            response.feed(piece)
            await trio.sleep(self._random.uniform(0.0, 0.04))
        async for piece in stream:
            response.feed(piece)
        if not response.complete:
            return End("torn", f"the response was cut after {response.status} {response.body[-100:]!r}")
        return end_of(asked, response.status, response.body.decode())

    async def _leave(self, stream: trio.SocketStream) -> End:
        """At once, or after some bytes; with a FIN or with a reset."""
        with trio.move_on_after(self._random.choice((0.0, 0.01, 0.1, 0.5))):
            async for _ in stream:
                pass
        if self._random.random() < 0.5:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return End("left")


class _Response:
    """A response as it is read."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self.body += body

    def on_message_complete(self) -> None:
        """See httptools."""
        self.complete = True


async def probe_health(http: httpx.AsyncClient, tally: Tally) -> None:
    """Ask whether the gateway lives, ten times a second until cancelled."""
    while True:
        began = trio.current_time()
        try:
            answer = await http.get("/health")
        except httpx.HTTPError:
            if not tally.may_be_torn:
                raise
            continue
        tally.longest_probe_s = max(tally.longest_probe_s, trio.current_time() - began)
        tally.probes += 1
        if answer.status_code != 200:
            tally.faults.append(f"/health said {answer.status_code}")
        await trio.sleep(0.1)
