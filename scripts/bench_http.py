"""Measures the HTTP server's own cost: CPU microseconds per request and per SSE chunk.

Each server runs in its own process; a load client in this process drives it over loopback with a fixed number
of connections and counts complete answers. CPU time is the server process's user + system time over the run.

    python scripts/bench_http.py [--requests N] [--chunks N] [--connections N] [--json FILE]

Servers: stock hypercorn with a Quart app; this package's HTTP/1.1, plain and over TLS (bare ASGI; TLS needs trustme).
Chunks are 283 bytes, 256 per stream, as a chat stream's are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio

from smg_trio.http import Shutdown, open_listeners, serve

CHUNK = b"data: " + b"x" * 275 + b"\n\n"
CHUNKS_PER_STREAM = 256
BODY = b'{"ok": true}'
GET = b"GET /json HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
STREAM = GET.replace(b"/json", b"/stream")
SERVERS = ("stock hypercorn + Quart", "ours", "ours over TLS")

JSON_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))],
}
SSE_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}


async def asgi_app(
    scope: dict[str, Any],
    receive: Any,  # noqa: ARG001 - ASGI's signature
    send: Callable[[Any], Awaitable[None]],
) -> None:
    """The bare ASGI app: a small JSON answer, or a stream with one checkpoint per chunk."""
    if scope["path"] == "/json":
        await send(JSON_START)
        await send({"type": "http.response.body", "body": BODY})
        return
    await send(SSE_START)
    for left in range(CHUNKS_PER_STREAM - 1, -1, -1):
        await trio.lowlevel.checkpoint()
        await send({"type": "http.response.body", "body": CHUNK, "more_body": left > 0})


def quart_app() -> Any:
    """The same two routes as a quart-trio app."""
    from quart import Response
    from quart_trio import QuartTrio

    app = QuartTrio(__name__)

    @app.get("/json")
    async def answer() -> Response:
        return Response(BODY, content_type="application/json")

    @app.get("/stream")
    async def stream() -> Response:
        async def chunks() -> Any:
            for _ in range(CHUNKS_PER_STREAM):
                await trio.lowlevel.checkpoint()
                yield CHUNK

        return Response(chunks(), content_type="text/event-stream")

    return app


async def run_stock(port_pipe: Connection) -> None:
    """Stock hypercorn on a port of the kernel's choice, until told to stop."""
    import hypercorn.trio
    from hypercorn.config import Config

    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    config.keep_alive_max_requests = 10**9
    started = partial(hypercorn.trio.serve, quart_app(), config, shutdown_trigger=partial(told_to_stop, port_pipe))
    async with trio.open_nursery() as nursery:
        binds = await nursery.start(started)
        port_pipe.send(int(binds[0].rsplit(":", 1)[1]))


async def run_ours(port_pipe: Connection, **options: Any) -> None:
    """This package's server, until told to stop."""
    shutdown = Shutdown()
    listeners = await open_listeners("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve, asgi_app, listeners, shutdown=shutdown, **options))
        port_pipe.send(server.port)
        await told_to_stop(port_pipe)
        shutdown.begin(0.2)


async def told_to_stop(pipe: Connection) -> None:
    """Answers each message with the CPU seconds so far; returns at the message ``stop``."""
    while True:
        await trio.lowlevel.wait_readable(pipe.fileno())
        if pipe.recv() == "stop":
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(usage.ru_utime + usage.ru_stime)


def server_process(name: str, pipe: Connection) -> None:
    """The body of one server's process."""
    if name.startswith("stock"):
        trio.run(run_stock, pipe)
        return
    options: dict[str, Any] = {}
    if speaks_tls(name):
        context = tls_context()
        options["ssl_context"] = lambda: context
    trio.run(partial(run_ours, pipe, **options))


def speaks_tls(name: str) -> bool:
    """Whether a server of that name does."""
    return name.endswith("TLS")


def tls_context() -> ssl.SSLContext:
    """A server's, with a certificate that is not checked."""
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


def read_answers(sock: socket.socket, request: bytes, end: bytes, count: int) -> None:
    """Sends ``request`` ``count`` times on one connection, each after the end of the answer before."""
    for _ in range(count):
        sock.sendall(request)
        tail = b""
        while not tail.endswith(end):
            data = sock.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            tail = (tail + data)[-64:]


def client_process(port: int, tls: bool, request: bytes, end: bytes, count: int) -> None:
    """One load client: one connection."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock)
        read_answers(sock, request, end, count)


def drive(pipe: Connection, port: int, tls: bool, request: bytes, end: bytes, count: int, connections: int) -> float:
    """Runs the load and returns the server's CPU seconds for it."""
    pipe.send("cpu")
    before = pipe.recv()
    context = multiprocessing.get_context("fork")
    share = count // connections
    arguments = (port, tls, request, end, share)
    clients = [context.Process(target=client_process, args=arguments) for _ in range(connections)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        if client.exitcode:
            raise RuntimeError("a load client failed")
    pipe.send("cpu")
    return float(pipe.recv() - before)


def measure(name: str, requests: int, chunks: int, connections: int) -> dict[str, float]:
    """CPU microseconds per request and per chunk of one server."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=server_process, args=(name, theirs))
    process.start()
    theirs.close()
    port = ours.recv()
    streams = max(connections, chunks // CHUNKS_PER_STREAM)
    tls = speaks_tls(name)
    drive(ours, port, tls, GET, BODY, connections * 20, connections)
    request_s = drive(ours, port, tls, GET, BODY, requests, connections)
    stream_s = drive(ours, port, tls, STREAM, b"0\r\n\r\n", streams, connections)
    ours.send("stop")
    process.join(10)
    requests = requests // connections * connections
    streams = streams // connections * connections
    per_request = request_s / requests * 1e6
    return {
        "us_per_request": round(per_request, 1),
        "us_per_chunk": round(stream_s / (streams * CHUNKS_PER_STREAM) * 1e6, 2),
    }


def main() -> int:
    """Measures every server and prints a table."""
    parser = argparse.ArgumentParser(description="CPU cost of the HTTP server")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print(f"{'server':<26} {'µs/request':>10} {'µs/chunk':>9}")
    for name in SERVERS:
        results[name] = measure(name, options.requests, options.chunks, options.connections)
        print(f"{name:<26} {results[name]['us_per_request']:>10} {results[name]['us_per_chunk']:>9}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
