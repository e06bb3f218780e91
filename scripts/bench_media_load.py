"""What images cost those who send none: text streams beside image requests, and memory under large uploads.

    python scripts/bench_media_load.py [--streams 128] [--images 100] [--uploads 200]

A gateway and a fake engine that takes images run as processes of their own; this process is the client. First the
streams run alone, then with image requests of one megapixel beside them: printed is how late their tokens come (the
gap behind the one before, less the engine's step). Then large uploads of 12 megapixels are sent all at the same time;
printed are their statuses and the most memory that the gateway's processes had.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import make_vision_model
from smg_trio.wire.addresses import parse_worker_url

ROOT = Path(__file__).resolve().parents[1]
STEP_S = 0.010
TOKENS = 600


def main() -> None:
    """Run the three loads and print a line for each."""
    parser = argparse.ArgumentParser(description="text streams beside images, and memory under uploads")
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--uploads", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as (port, gateway):
        trio.run(measure, port, gateway, options)


@contextmanager
def running(directory: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A gateway and its engine; yields the gateway's port and process."""
    model = directory / "model"
    make_vision_model.main(model)
    url, port = f"ipc://{directory}/w0", 39711
    launch = ["launch", "--worker-urls", url, "--backend", "vllm", "--model-path", str(model), "--port", str(port)]
    launch += ["--served-model-name", "model", "--log-level", "error", "--prometheus-port", str(port + 1)]
    engine = ["fake-engine", "--handshake", parse_worker_url(url).handshake, "--vision"]
    engine += ["--step-ms", str(STEP_S * 1000), "--max-num-seqs", "1024"]
    processes = [subprocess.Popen([sys.executable, "-m", "smg_trio", *words], cwd=ROOT) for words in (launch, engine)]
    try:
        yield port, processes[0]
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(30)


async def measure(port: int, gateway: subprocess.Popen[bytes], options: argparse.Namespace) -> None:
    """The three loads, one after the other."""
    await until_ready(port)
    late: list[float] = []
    await streams(port, options.streams, late)
    print(f"{options.streams} streams alone: {lateness(late)}")
    late.clear()
    statuses: Counter[int] = Counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams, port, options.streams, late)
        await trio.sleep(1)
        await images(port, options.images, jpeg(1152, 896), 8, statuses)
    print(f"beside {options.images} images ({dict(statuses)}): {lateness(late)}")
    statuses.clear()
    peak = [0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_memory, gateway.pid, peak)
        await images(port, options.uploads, jpeg(4000, 3000), options.uploads, statuses)
        nursery.cancel_scope.cancel()
    print(f"{options.uploads} uploads of 12 megapixels: {dict(statuses)}, at most {peak[0] >> 20} MiB")


def lateness(late: Sequence[float]) -> str:
    """Quantiles in milliseconds."""
    ordered = sorted(late)
    p50, p99, p999 = (ordered[int(len(ordered) * share)] * 1e3 for share in (0.5, 0.99, 0.999))
    return (
        f"{len(ordered)} tokens late by {p50:.1f} ms p50, {p99:.1f} p99, {p999:.1f} p99.9, {ordered[-1] * 1e3:.1f} max"
    )


def jpeg(width: int, height: int) -> bytes:
    """Gradients with noise, so that it compresses as a photograph does."""
    noise = Image.effect_noise((width, height), 40)
    gradient = Image.linear_gradient("L").resize((width, height))
    file = io.BytesIO()
    Image.merge("RGB", (gradient, noise, gradient.rotate(180))).save(file, "JPEG", quality=90)
    return file.getvalue()


async def until_ready(port: int) -> None:
    """Wait for the gateway and its engine."""
    for _ in range(300):
        try:
            status, _ = await post(port, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        except OSError:
            status = 0
        if status == 200:
            return
        await trio.sleep(0.1)
    raise SystemExit("the gateway does not get ready")


async def streams(port: int, count: int, late: list[float]) -> None:
    """Text streams that begin together; notes how late each token is behind the one before."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one_stream, port, late)


async def one_stream(port: int, late: list[float]) -> None:
    """Reads a stream; the first second, in which all begin, does not count."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request(body))
        began = last = time.perf_counter()
        async for data in stream:
            now = time.perf_counter()
            if now - began > 1 and data.count(b"data: ") == 1:
                late.append(max(0.0, now - last - STEP_S))
            last = now


async def images(port: int, count: int, file: bytes, at_once: int, statuses: Counter[int]) -> None:
    """Image requests; no two images have the same bytes, so that none is found in the cache."""
    limiter = trio.CapacityLimiter(at_once)

    async def one() -> None:
        async with limiter:
            data = base64.b64encode(file + random.randbytes(16)).decode()
            part = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}
            status, _ = await post(port, {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2})
            statuses[status] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)


def request(body: dict[str, object]) -> bytes:
    """A chat request on a connection that ends with it."""
    data = json.dumps({"model": "model", **body}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\nContent-Type: application/json\r\n\r\n" + data


async def post(port: int, body: dict[str, object]) -> tuple[int, bytes]:
    """Status and the whole response; a refusal may come, and the connection end, before all is sent."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    answer = b""
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(request(body))
        with contextlib.suppress(trio.BrokenResourceError):
            async for data in stream:
                answer += data
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer


async def watch_memory(pid: int, peak: list[int]) -> None:
    """Notes the most resident memory of a process and its children, in bytes."""
    while True:
        peak[0] = max(peak[0], sum(map(resident, [str(pid), *children_of(pid)])))
        await trio.sleep(0.02)


def children_of(pid: int) -> list[str]:
    """Processes that a process has started, by whichever of its threads."""
    return [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def resident(pid: str) -> int:
    """Resident memory of a process in bytes; 0 for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


if __name__ == "__main__":
    main()
