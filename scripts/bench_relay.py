"""What relaying to workers behind HTTP costs, beside the bare client and, where it is there, SMG.

    python scripts/bench_relay.py [--streams 1 64 256] [--rounds 3] [--smg path/to/smg] [--requests 2000]

A server of its own process streams events of 210 bytes, one per stream and interval, each with the time it was sent; it
answers other requests immediately. Server and client are plain epoll loops, so that little but the gateway is
measured. In each round the targets take turns: the server itself (`direct`), a gateway in front of it (`smg-trio`), and
SMG. Of each: CPU of the process per chunk and per short request (the system's count, user and system), how much later
chunks and first bytes come than from the server itself, requests per second. `bare` is the gateway's own client alone.
Loopback only, bounded in time.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import re
import resource
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from smg_trio.core.http_addresses import HttpAddress
from smg_trio.upstream.client import UpstreamClient, UpstreamRequest

BODY: Final = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": %s}'
MODELS: Final = b'{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "bench"}]}'
USAGE: Final = b'"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}'
ANSWER: Final = b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [], %s}' % USAGE
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_SENT_AT: Final = re.compile(rb'"at":(\d+\.\d+)')
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LIMIT_S: Final = 60.0


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def request(stream: bool) -> bytes:
    """A chat request as bytes."""
    body = BODY % (b"true" if stream else b"false")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


# ---- the server -------------------------------------------------------------------------------------------


class Server:
    """Streams `chunks` events to each client, one per `interval_s`, the first immediately."""

    def __init__(self, port: int, chunks: int, interval_s: float) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._chunks, self._interval_s = chunks, interval_s
        self._connections: dict[int, socket.socket] = {}
        self._read: dict[int, bytes] = {}
        self._due: list[tuple[float, int, int]] = []

    def run(self) -> None:
        """Serve until killed."""
        while True:
            timeout_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for descriptor, _ in self._epoll.poll(timeout_s):
                if descriptor == self._listener.fileno():
                    self._accept()
                else:
                    self._take(descriptor)
            self._send_due()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections[connection.fileno()] = connection
                self._epoll.register(connection, select.EPOLLIN)

    def _take(self, descriptor: int) -> None:
        connection = self._connections[descriptor]
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            del self._connections[descriptor]
            self._read.pop(descriptor, None)
            connection.close()
            return
        data = self._read.pop(descriptor, b"") + data
        if b"\r\n\r\n" not in data or (data.startswith(b"POST") and not data.endswith(b"}")):
            self._read[descriptor] = data
        elif re.search(rb'"stream": ?true', data):
            connection.send(HEAD)
            heapq.heappush(self._due, (time.monotonic(), descriptor, 0))
        else:
            body = ANSWER if data.startswith(b"POST") else MODELS
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            connection.send(head % len(body) + body)

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            due, descriptor, number = heapq.heappop(self._due)
            connection = self._connections.get(descriptor)
            if connection is None:
                continue
            if number == self._chunks:
                connection.send(b"10\r\ndata: [DONE]\n\n  \r\n0\r\n\r\n")
                continue
            event = b'data: {"at":%.6f,"choices":[],"pad":"' % time.monotonic()
            event += b"x" * (206 - len(event)) + b'"}\n\n'
            with suppress(OSError):
                connection.send(b"%x\r\n%s\r\n" % (len(event), event))
            heapq.heappush(self._due, (due + self._interval_s, descriptor, number + 1))


# ---- the clients ------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a client has seen of a target, in seconds."""

    ages: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    requests: int = 0
    took_s: float = 0.0
    cpu_s: float = 0.0
    request_cpu_s: float = 0.0


def read_streams(port: int, streams: int, interval_s: float, seen: Seen) -> None:
    """Read streams to their ends; they begin one after the other within an interval.

    Connections are opened before, so that the first byte is the request's alone. The age of each chunk is noted as it
    is read, and from the request until the first chunk.
    """
    epoll, opened = select.epoll(), [socket.create_connection(("127.0.0.1", port)) for _ in range(streams)]
    waiting = list(enumerate(opened))
    asked: dict[int, float] = {}
    begun = time.monotonic()
    left = {one.fileno(): one for one in opened}
    while left and time.monotonic() < begun + _LIMIT_S:
        while waiting and time.monotonic() >= begun + waiting[0][0] * interval_s / streams:
            _, connection = waiting.pop(0)
            epoll.register(connection, select.EPOLLIN)
            asked[connection.fileno()] = time.monotonic()
            connection.send(request(stream=True))
        for descriptor, _ in epoll.poll(0.0005 if waiting else 1.0):
            data = left[descriptor].recv(65536)
            now = time.monotonic()
            found = _SENT_AT.findall(data)
            if found and descriptor in asked:
                seen.first.append(now - asked.pop(descriptor))
            else:
                seen.ages.extend(now - float(at) for at in found)
            if not data or data.endswith(b"0\r\n\r\n"):
                epoll.unregister(descriptor)
                left.pop(descriptor).close()


def ask_often(port: int, requests: int, connections: int, seen: Seen) -> None:
    """Send short requests, one after the other on each of several connections."""
    epoll, begun, done, sent = select.epoll(), time.monotonic(), 0, 0
    opened = {one.fileno(): one for one in (socket.create_connection(("127.0.0.1", port)) for _ in range(connections))}
    for descriptor, connection in opened.items():
        epoll.register(descriptor, select.EPOLLIN)
        connection.send(request(stream=False))
        sent += 1
    while done < sent and time.monotonic() < begun + _LIMIT_S:
        for descriptor, _ in epoll.poll(1.0):
            data = opened[descriptor].recv(65536)
            if not data.endswith(b"}"):
                if not data:
                    raise ConnectionError("the target closed a connection")
                continue
            done += 1
            if sent < requests:
                opened[descriptor].send(request(stream=False))
                sent += 1
    seen.requests += done
    seen.took_s += time.monotonic() - begun
    for connection in opened.values():
        connection.close()


async def read_bare(port: int, streams: int, interval_s: float) -> None:
    """Read all streams by the gateway's own client."""
    client = UpstreamClient(HttpAddress("http", "127.0.0.1", port), "bench")

    async def one(index: int) -> None:
        await trio.sleep(index * interval_s / streams)
        headers = [("content-type", "application/json")]
        asked = UpstreamRequest(method="POST", path="/v1/chat/completions", headers=headers, body=BODY % b"true")
        exchange = client.exchange(asked)
        await exchange.start()
        while not exchange.complete:
            await exchange.read()

    async with trio.open_nursery() as nursery:
        for index in range(streams):
            nursery.start_soon(one, index)


# ---- a run ------------------------------------------------------------------------------------------------


def wait_until_answering(port: int) -> None:
    """Wait until a chat request is answered."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.send(request(stream=False))
            if b" 200 " in connection.recv(1000).partition(b"\r\n")[0]:
                return
        time.sleep(0.1)  # noqa: TID251 - a process of its own
    raise TimeoutError(f"nothing answers on port {port}")


def commands(asked: argparse.Namespace, port: int) -> dict[str, list[str]]:
    """How each gateway is started, by its name; `smg-trio` comes first."""
    flags = ["launch", "--worker-urls", f"http://127.0.0.1:{port}", "--host", "127.0.0.1", "--log-level", "error"]
    found = {"smg-trio": [sys.executable, "-m", "smg_trio", *flags]}
    smg = shutil.which(asked.smg)
    if smg is not None:
        found["smg"] = [smg, *flags, "--policy", "round_robin"]
    return found


def measure(asked: argparse.Namespace, streams: int) -> dict[str, Any]:
    """All rounds with so many streams."""
    port, interval_s = asked.port, asked.interval_ms / 1e3
    serve = ["--serve", str(port), "--chunks", str(asked.chunks), "--interval-ms", str(asked.interval_ms)]
    server = subprocess.Popen([sys.executable, __file__, *serve])
    processes, ports = {"direct": server}, {"direct": port}
    seen = {"direct": Seen()}
    bare_s = 0.0
    try:
        for offset, (name, command) in enumerate(commands(asked, port).items(), 1):
            ports[name], seen[name] = port + offset, Seen()
            flags = ["--port", str(port + offset), "--prometheus-port", str(port + 10 + offset)]
            processes[name] = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)
        for one in ports.values():
            wait_until_answering(one)
        for _ in range(asked.rounds):
            before = resource.getrusage(resource.RUSAGE_SELF)
            trio.run(read_bare, port, streams, interval_s)
            after = resource.getrusage(resource.RUSAGE_SELF)
            bare_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            for name, target in ports.items():
                began = cpu_s(processes[name].pid)
                read_streams(target, streams, interval_s, seen[name])
                between = cpu_s(processes[name].pid)
                ask_often(target, asked.requests, 16, seen[name])
                seen[name].cpu_s += between - began
                seen[name].request_cpu_s += cpu_s(processes[name].pid) - between
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    chunks = asked.rounds * asked.chunks * streams
    return {"streams": streams, "bare_us_per_chunk": round(bare_s / chunks * 1e6, 1)} | {
        name: figures(one, seen["direct"], chunks) for name, one in seen.items()
    }


def figures(seen: Seen, direct: Seen, chunks: int) -> dict[str, Any]:
    """What is shown of a target; of gateways, what they add to the server's own times."""
    found: dict[str, Any] = {
        "lost_chunks": chunks - len(seen.ages) - len(seen.first),
        "us_per_chunk": round(seen.cpu_s / chunks * 1e6, 1),
        "us_per_request": round(seen.request_cpu_s / seen.requests * 1e6),
        "requests_per_s": round(seen.requests / seen.took_s),
    }
    for name, mine, base in (("chunk", seen.ages, direct.ages), ("first_byte", seen.first, direct.first)):
        for percent in (50, 99):
            value = _percentile(mine, percent)
            less = 0.0 if seen is direct else _percentile(base, percent)
            found[f"{'' if seen is direct else 'added_'}{name}_ms_p{percent}"] = round((value - less) * 1e3, 3)
    return found


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--chunks", type=int, default=150)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--smg", default="smg")
    parser.add_argument("--port", type=int, default=18711, help="the first of 20 that are used")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        Server(asked.serve, asked.chunks, asked.interval_ms / 1e3).run()
        return
    for streams in asked.streams:
        print(json.dumps(measure(asked, streams), indent=2), flush=True)


if __name__ == "__main__":
    main()
