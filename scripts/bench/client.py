"""The load client: raw sockets and epoll in a process of its own, which only stores what comes while it measures.

Bytes are kept with the time of their arrival and read (`answers`) after the load has ended, so the client costs a
few microseconds per token and not parsing. Its own CPU time is part of the result.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from bench.answers import Answer, read_answer

if TYPE_CHECKING:
    from bench.scenarios import Scenario
    from bench.words import Words

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_RECEIVE = 256 * 1024
_STALL_S = 60.0


@dataclass(slots=True)
class Exchange:
    """One request and the pieces of its answer as they came.

    Attributes:
        sent_at, pieces: CLOCK_MONOTONIC, ns.
        left: bytes still to come; None for a chunked answer.
    """

    seed: int
    request: bytes
    sent_at: int = 0
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    left: int | None = None


@dataclass(slots=True)
class LoadResult:
    """What one load gave.

    Attributes:
        wall_s: from the first request to the end of the last answer.
        client_cpu_s: of the client process meanwhile.
        answers: one per request.
    """

    wall_s: float
    client_cpu_s: float
    answers: list[Answer]


class Load:
    """A set of connections with a queue of requests."""

    def __init__(self, port: int, exchanges: Sequence[Exchange], connections: int) -> None:
        self._waiting = deque(exchanges)
        self._open: dict[int, tuple[socket.socket, Exchange]] = {}
        self._epoll = select.epoll()
        for _ in range(connections):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._epoll.register(sock, select.EPOLLIN)
            self._next(sock)

    def run(self) -> None:
        """Until every request is answered or nothing has come for a minute."""
        while self._open:
            ready = self._epoll.poll(_STALL_S)
            if not ready:
                return
            for descriptor, _ in ready:
                sock, exchange = self._open[descriptor]
                data = sock.recv(_RECEIVE)
                exchange.pieces.append((time.monotonic_ns(), data))
                if not data or _complete(exchange, data):
                    self._next(sock)

    def _next(self, sock: socket.socket) -> None:
        if not self._waiting:
            self._open.pop(sock.fileno(), None)
            self._epoll.unregister(sock)
            sock.close()
            return
        exchange = self._waiting.popleft()
        self._open[sock.fileno()] = sock, exchange
        exchange.sent_at = time.monotonic_ns()
        sock.sendall(exchange.request)


def _complete(exchange: Exchange, data: bytes) -> bool:
    if len(exchange.pieces) == 1:
        length = _LENGTH.search(data)
        if length is not None:
            exchange.left = int(length[1]) + data.index(b"\r\n\r\n") + 4
    if exchange.left is not None:
        exchange.left -= len(data)
        return exchange.left <= 0
    if len(data) < len(_LAST_CHUNK):
        data = b"".join(piece for _, piece in exchange.pieces[-len(_LAST_CHUNK) :])
    return data.endswith(_LAST_CHUNK)


def exchanges(scenario: Scenario, model: str, words: Words, first_seed: int) -> list[Exchange]:
    """The requests of one load; seeds count up from `first_seed`."""
    seeds = range(first_seed, first_seed + scenario.requests)
    return [
        Exchange(seed, _request(scenario, model, words.prompt(seed, scenario.prompt_words), seed)) for seed in seeds
    ]


def _request(scenario: Scenario, model: str, prompt: str, seed: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": scenario.max_tokens,
            "seed": seed,
            "stream": scenario.stream,
            **scenario.asks,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """A load in a child process: prepared when made, run by `run`, read by `result`."""

    def __init__(
        self, scenario: Scenario, port: int, model: str, words: Words, first_seed: int, cores: set[int]
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, scenario, port, model, words, first_seed, cores)
        self._process = context.Process(target=_child, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def run(self) -> None:
        """Returns as soon as the last answer has come."""
        self._pipe.send("go")
        self._pipe.recv()

    def result(self) -> LoadResult:
        """What came, read. Raises EOFError if the client failed (it has said why)."""
        result: LoadResult = self._pipe.recv()
        self._process.join()
        return result


def _child(
    pipe: Connection, scenario: Scenario, port: int, model: str, words: Words, first_seed: int, cores: set[int]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and ends this process with SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.sched_setaffinity(0, cores)
    gc.disable()
    prepared = exchanges(scenario, model, words, first_seed)
    pipe.send("prepared")
    pipe.recv()
    wall, cpu = time.monotonic(), time.process_time()
    Load(port, prepared, scenario.connections).run()
    wall_s, cpu_s = time.monotonic() - wall, time.process_time() - cpu
    pipe.send("done")
    answers = [
        read_answer(one.seed, one.sent_at, one.pieces, words.answer(one.seed, scenario.max_tokens)) for one in prepared
    ]
    pipe.send(LoadResult(wall_s, cpu_s, answers))
