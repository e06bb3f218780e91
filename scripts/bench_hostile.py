"""Hostile requests against a running gateway: what each costs it, and whether another client's stream feels it.

    python scripts/bench_hostile.py [--only TEXT] [--max-gap-ms 50]

Gateway and fake engine run in processes of their own. While each request is on its way, a stream of another client goes
on; and the gateway is asked for its health all the time: the longest answer is how long its loop was held.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.hostile.bodies import CHAT, HI, MODEL, REQUESTS, HostileRequest
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.wire.addresses import parse_worker_url

ROOT = Path(__file__).resolve().parents[1]
STEP_S = 0.005
_PAUSE = threading.Event()


class Pings(threading.Thread):
    """Asks for the gateway's health all the time; says how long the longest answer since `reset` took.

    A stream's silence may be its engine's, which a hostile constraint holds up as well; this one is the loop's alone.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.longest = 0.0
        self.asked = 0.0

    def run(self) -> None:
        """Ask until the gateway is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        while True:
            self.asked = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.longest = max(self.longest, time.perf_counter() - self.asked)
            _PAUSE.wait(0.002)

    def reset(self) -> None:
        """Measure anew."""
        self.longest = 0.0


class Stream(threading.Thread):
    """An endless stream of another client; says how long the longest silence since `reset` was."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.longest = 0.0
        self.tokens = 0
        self.lost = ""
        self.last = time.perf_counter()

    def run(self) -> None:
        """Read until the gateway ends the connection; ask again when the stream has ended."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while True:
            body = json.dumps({"model": MODEL, "messages": HI, "max_tokens": 8000, "stream": True, "ignore_eos": True})
            connection.request("POST", CHAT, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                self.lost = f"status {answer.status}"
                return
            while line := answer.readline():
                now = time.perf_counter()
                if b"error" in line:
                    self.lost = line.decode()
                self.longest = max(self.longest, now - self.last)
                self.last = now
                self.tokens += 1

    def reset(self) -> None:
        """Measure anew."""
        self.longest = 0.0


def main() -> int:
    """Send all; 1 if anything was answered as it must not be, or held the loop for too long."""
    parser = argparse.ArgumentParser(description="hostile requests and what they cost")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--skip", default="", help="names that contain this are left out")
    parser.add_argument("--max-model-len", type=int, default=8192, help="of the engine")
    parser.add_argument("--max-gap-ms", type=float, default=0.0, help="fail beyond this; 0: only say it")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="smg-trio-hostile-"))
        gateway, port = _start(stack, directory, options.max_model_len)
        stream = Stream(port)
        stream.start()
        pings = Pings(port)
        pings.start()
        _PAUSE.wait(1)
        stream.reset()
        pings.reset()
        _PAUSE.wait(2)
        print(
            f"  {'undisturbed':43} loop {1000 * pings.longest:7.1f}  "
            f"stream {1000 * (stream.longest - STEP_S):7.1f} ms   rss {_rss_mb(gateway.pid):7.1f} MB"
        )
        bad = 0
        for name, request in REQUESTS.items():
            if options.only in name and not (options.skip and options.skip in name):
                bad += _measure(name, request, port, gateway.pid, stream, pings, options.max_gap_ms)
        if stream.lost or gateway.poll() is not None:
            print("the other client's stream was lost:", stream.lost)
            bad += 1
    return 1 if bad else 0


def _start(stack: ExitStack, directory: str, max_model_len: int) -> tuple[subprocess.Popen[bytes], int]:
    url = f"ipc://{directory}/e"
    python = [sys.executable, "-m", "smg_trio"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    log = Path(directory) / "log"
    common = ["--prometheus-host", "127.0.0.1", "--prometheus-port", "0", "--host", "127.0.0.1", "--port", "0"]
    launch = ["launch", "--worker-urls", url, "--backend", "vllm", "--model-path", str(DEMO_MODEL)]
    gateway = subprocess.Popen(
        [*python, *launch, "--served-model-name", MODEL, *common], stderr=log.open("wb"), env=environment
    )
    stack.callback(gateway.kill)
    handshake = parse_worker_url(url).handshake
    command = ["fake-engine", "--handshake", handshake, "--step-ms", str(STEP_S * 1000), "--vocab-size", "1500"]
    command += ["--max-model-len", str(max_model_len)]
    engine = subprocess.Popen([*python, *command], env=environment)
    stack.callback(engine.kill)
    for _ in range(300):
        found = re.search(r"listening on \S*:(\d+)", log.read_text())
        if found and _is_ready(int(found[1])):
            return gateway, int(found[1])
        _PAUSE.wait(0.1)
    raise SystemExit(log.read_text())


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readiness")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _measure(
    name: str, request: HostileRequest, port: int, pid: int, stream: Stream, pings: Pings, limit_ms: float
) -> bool:
    body = request.body()
    before = _rss_mb(pid)
    _forget_peak(pid)
    stream.reset()
    pings.reset()
    began = time.perf_counter()
    status, shown = _send(port, request, body)
    took = time.perf_counter() - began
    _PAUSE.wait(0.05)
    gap = 1000 * (max(stream.longest, time.perf_counter() - stream.last) - STEP_S)
    peak, after = _rss_mb(pid, "VmHWM"), _rss_mb(pid)
    held = 1000 * max(pings.longest, time.perf_counter() - pings.asked)
    wrong = status not in request.statuses or (limit_ms > 0 and held > limit_ms)
    mark = "!!" if status not in request.statuses else "! " if held > 50 else "  "
    print(
        f"{mark}{name:43} loop {held:7.1f}  stream {gap:7.1f} ms   {status} in {took:6.2f} s   "
        f"body {len(body) / 1e6:6.1f} MB   "
        f"rss {before:6.1f} peak +{peak - before:6.1f} kept +{after - before:6.1f}   {shown[:110]}",
        flush=True,
    )
    return wrong


def _send(port: int, request: HostileRequest, body: bytes) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        headers = {"content-type": "application/json", "connection": "close", **request.headers}
        connection.request("POST", request.path, body, headers)
        answer = connection.getresponse()
        text = answer.read(100_000).decode("utf-8", "replace")
        return answer.status, json.loads(text)["error"]["message"] if answer.status >= 400 else ""
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"
    except (ValueError, TypeError, KeyError):
        return answer.status, text
    finally:
        connection.close()


def _rss_mb(pid: int, field: str = "VmRSS") -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


if __name__ == "__main__":
    sys.exit(main())
