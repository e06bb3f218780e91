"""What relaying costs: CPU time per chunk of a gateway in front of a server, against the bare client; added latency.

    python scripts/bench_relay.py [--streams 64] [--chunks 200] [--interval-ms 20]

A server of its own process streams chunks of 210 bytes, one per stream and interval, each with the time it was sent.
They are read twice: by the gateway's own client alone (`upstream.client`), and through a gateway by plain sockets. The
processes' CPU times are the system's; chunks are counted as the server sends them. Loopback only, bounded in time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import trio

from smg_trio.core.http_addresses import HttpAddress
from smg_trio.upstream.client import UpstreamClient, UpstreamRequest

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
MODELS = b'{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "bench"}]}'
_SENT_AT = re.compile(rb'"at":(\d+\.\d+)')
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def serve(port: int, chunks: int, interval_s: float) -> None:
    """The server's process: models and health for the gateway, streams for everything else."""

    async def one(stream: trio.SocketStream) -> None:
        data = b""
        while more := await stream.receive_some(65536):
            data += more
            if b"\r\n\r\n" not in data or (data.startswith(b"POST") and not data.endswith(b"}")):
                continue
            path, data = data.split(b" ", 2)[1], b""
            if path in (b"/v1/models", b"/health"):
                await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(MODELS), MODELS))
                continue
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            due = trio.current_time()
            for _ in range(chunks):
                due += interval_s
                await trio.sleep_until(due)
                event = b'data: {"at":%.6f,"pad":"' % time.monotonic()
                event += b"x" * (206 - len(event)) + b'"}\n\n'
                await stream.send_all(b"%x\r\n%s\r\n" % (len(event), event))
            await stream.send_all(b"0\r\n\r\n")

    await trio.serve_tcp(one, port, host="127.0.0.1")


async def read_bare(port: int, streams: int, interval_s: float) -> None:
    """The process of the bare client: all streams to their ends, begun as `measure` begins them."""
    client = UpstreamClient(HttpAddress("http", "127.0.0.1", port), "bench")

    async def one(index: int) -> None:
        await trio.sleep(index * interval_s / streams)
        headers = [("content-type", "application/json")]
        request = UpstreamRequest(method="POST", path="/v1/chat/completions", headers=headers, body=BODY)
        exchange = client.exchange(request)
        await exchange.start()
        while not exchange.complete:
            await exchange.read()

    began = time.process_time()
    async with trio.open_nursery() as nursery:
        for index in range(streams):
            nursery.start_soon(one, index)
    print(json.dumps({"cpu_s": time.process_time() - began}))


async def measure(port: int, streams: int, interval_s: float, delays: list[float]) -> None:
    """Read all streams from a port by plain sockets, and note how old each chunk is.

    Streams begin one after the other within an interval, so that their chunks do not all come at once.
    """

    async def one(index: int) -> None:
        await trio.sleep(index * interval_s / streams)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        head += b"content-type: application/json\r\n"
        await stream.send_all(head + b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY))
        while data := await stream.receive_some(65536):
            now = time.monotonic()
            delays.extend(now - float(at) for at in _SENT_AT.findall(data))
            if data.endswith(b"0\r\n\r\n"):
                break
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for index in range(streams):
            nursery.start_soon(one, index)


async def wait_until(port: int, path: str) -> None:
    """Wait for a 200."""
    with trio.fail_after(30):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
                if b" 200 " in await stream.receive_some(1000):
                    return
            except OSError:
                pass
            await trio.sleep(0.1)


def shown(delays: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    cuts = statistics.quantiles(delays, n=100)
    return {"p50_ms": round(cuts[49] * 1e3, 3), "p99_ms": round(cuts[98] * 1e3, 3)}


def run(streams: int, chunks: int, interval_s: float) -> None:
    """Everything, and print it as one JSON object."""
    port, front = 38711, 38712
    me = [sys.executable, __file__, "--streams", str(streams), "--chunks", str(chunks)]
    me += ["--interval-ms", str(interval_s * 1e3)]
    server = subprocess.Popen([*me, "--serve", str(port)])
    launch = [sys.executable, "-m", "smg_trio", "launch", "--worker-urls", f"http://127.0.0.1:{port}", "--host"]
    launch += ["127.0.0.1", "--port", str(front), "--prometheus-port", "0", "--log-level", "error"]
    gateway = subprocess.Popen(launch)
    direct: list[float] = []
    through: list[float] = []
    try:
        trio.run(wait_until, port, "/health")
        trio.run(wait_until, front, "/readiness")
        bare = subprocess.run([*me, "--bare", str(port)], stdout=subprocess.PIPE, check=True)
        trio.run(measure, port, streams, interval_s, direct)
        before = cpu_s(gateway.pid)
        trio.run(measure, front, streams, interval_s, through)
        gateway_s = cpu_s(gateway.pid) - before
    finally:
        for process in (gateway, server):
            process.kill()
            process.wait()
    count, bare_s = streams * chunks, json.loads(bare.stdout)["cpu_s"]
    figures = {
        "streams": streams,
        "chunks": count,
        "received": {"direct": len(direct), "through": len(through)},
        "bare_us_per_chunk": round(bare_s / count * 1e6, 1),
        "gateway_us_per_chunk": round(gateway_s / count * 1e6, 1),
        "ratio": round(gateway_s / bare_s, 2),
        "direct": shown(direct),
        "through": shown(through),
    }
    print(json.dumps(figures, indent=2))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    interval_s = asked.interval_ms / 1e3
    if asked.serve:
        trio.run(partial(serve, asked.serve, asked.chunks, interval_s))
    elif asked.bare:
        trio.run(partial(read_bare, asked.bare, asked.streams, interval_s))
    else:
        run(asked.streams, asked.chunks, interval_s)


if __name__ == "__main__":
    main()
