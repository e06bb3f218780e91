"""Half an hour and more of everything at once, and nothing may be left of it.

    python scripts/soak_mixed.py [--minutes 30] [--clients 12] [--kill-every 20] [--max-growth-mb 20]

One gateway per engine protocol, each in a process of its own with two workers, whose fake engines run here and say a
formula, so that a lost or foreign token is seen. Clients stream, ask for several choices, call tools, leave, read
slowly, send nonsense and heavy bodies, and talk over WebSockets; every so often an engine is killed and comes back.
Exit code 0: every answer was right, no request failed that the death of an engine does not explain, memory is flat
after the first fifth, and at the end nothing is in flight and descriptors, threads and tasks are as many as before.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any

import httpx
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.disorder.traffic import Account, Traffic
from scripts.soak import FormulaScript, token_of
from smg_trio.core.engines import EngineProtocol
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.zmq_engine import zmq_engine
from smg_trio.text.model_files import load_model_text
from smg_trio.wire.addresses import parse_worker_url

if TYPE_CHECKING:
    from smg_trio.testing.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S = 60.0
QUIET_LIMIT_S = 30.0
SMALL_CACHE = ("--tokenizer-cache-l1-max-memory", "4000000")
"""The default, 32 MB, takes longer to fill than a soak to warm up."""
SAMPLES = 200
_JUDGED_MINUTES = 5
"""In less, what heavy bodies leave behind for a while is more than any leak."""


@dataclass(slots=True)
class Belongings:
    """What a gateway's process holds of the system when nobody asks anything of it."""

    descriptors: int
    threads: int
    tasks: int


@dataclass(slots=True)
class Side:
    """One gateway with its engines."""

    protocol: EngineProtocol
    process: trio.Process
    port: int
    tasks_file: Path
    urls: list[str]
    vocab_size: int
    account: Account = field(default_factory=Account)
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    rss: list[tuple[float, float]] = field(default_factory=list)
    deaths: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return self.protocol.value

    async def run_engine(self, url: str) -> None:
        """An engine that comes back a second after it has died."""
        while True:
            options = EngineOptions(
                protocol=self.protocol, step_time_s=0.008, vocab_size=self.vocab_size, max_model_len=8192
            )
            handshake = parse_worker_url(url).handshake
            engine = zmq_engine(options, handshake, choose_script=lambda request: FormulaScript())
            self.engines[url] = engine
            with trio.CancelScope() as self.scopes[url]:
                await engine.run()
            self.account.last_fault = trio.current_time()
            await trio.sleep(1.0)
            self.account.last_fault = trio.current_time()

    async def kill_engines(self, every_s: float, random: Random, ends: float) -> None:
        """One of them, every so often; the last one long before the end."""
        while trio.current_time() + 3 * every_s < ends:
            await trio.sleep(every_s * random.uniform(0.5, 1.5))
            self.deaths += 1
            self.account.last_fault = trio.current_time()
            self.scopes[random.choice(self.urls)].cancel()

    async def sample(self, began: float, ends: float) -> None:
        """The memory, over time."""
        while trio.current_time() < ends:
            await trio.sleep((ends - began) / SAMPLES)
            self.rss.append((trio.current_time() - began, _status(self.process.pid, "VmRSS") / 1024))

    async def belongings(self) -> Belongings:
        """Of the gateway's process, now."""
        self.tasks_file.unlink(missing_ok=True)
        os.kill(self.process.pid, signal.SIGUSR1)
        with trio.fail_after(QUIET_LIMIT_S):
            await _until(lambda: self.tasks_file.exists() and bool(self.tasks_file.read_text()))
        pid = self.process.pid
        return Belongings(len(os.listdir(f"/proc/{pid}/fd")), _status(pid, "Threads"), int(self.tasks_file.read_text()))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="long mixed soak of both protocols")
    add = parser.add_argument
    add("--minutes", type=float, default=30.0)
    add("--clients", type=int, default=12, help="of each gateway, each with one request at a time")
    add("--kill-every", type=float, default=20.0, metavar="S", help="mean time between deaths of engines; 0: none")
    add("--max-growth-mb", type=float, default=20.0, help="memory a gateway may gain after the first fifth")
    add("--seed", type=int, default=1)
    return parser.parse_args()


async def main(options: argparse.Namespace) -> int:
    """Run the soak; its exit code."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="smg-trio-soak-") as directory:
        async with trio.open_nursery() as nursery:
            sides = [await _start(nursery, Path(directory), protocol) for protocol in EngineProtocol]
            async with trio.open_nursery() as soaks:
                for index, side in enumerate(sides):
                    soaks.start_soon(_soak, side, options, Random(options.seed + index), faults)
            for side in sides:
                side.process.terminate()
                with trio.fail_after(QUIET_LIMIT_S):
                    if await side.process.wait() != 0:
                        faults.append(f"{side.name}: the gateway ended with {side.process.returncode}")
            faults += _tracebacks(Path(directory))
            nursery.cancel_scope.cancel()
    print(f"{len(faults)} faults", flush=True)
    for fault in faults[:40]:
        print(f"  {fault}")
    return 1 if faults else 0


async def _start(nursery: trio.Nursery, directory: Path, protocol: EngineProtocol) -> Side:
    urls = [f"ipc://{directory}/{protocol.value}-{index}" for index in range(2)]
    tasks_file = directory / f"{protocol.value}.tasks"
    log = directory / f"{protocol.value}.log"
    command = [
        sys.executable, str(ROOT / "scripts/disorder/watched_gateway.py"), str(tasks_file), "launch", "--worker-urls",
        *urls, "--backend", protocol.value, "--model-path", str(DEMO_MODEL), "--served-model-name", "demo", "--host",
        "127.0.0.1", "--port", "0", *SMALL_CACHE, "--prometheus-host", "127.0.0.1", "--prometheus-port", "0",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = partial(trio.run_process, command, stderr=log.open("wb"), check=False, env=environment)
    process: trio.Process = await nursery.start(run)
    with trio.fail_after(START_LIMIT_S):
        await _until(lambda: "listening on " in log.read_text())
    text = log.read_text()
    port = int(text.partition("listening on ")[2].split("\n")[0].rpartition(":")[2])
    side = Side(protocol, process, port, tasks_file, urls, load_model_text(DEMO_MODEL).tokenizer.vocab_size)
    for url in urls:
        nursery.start_soon(side.run_engine, url)
    return side


async def _soak(side: Side, options: argparse.Namespace, random: Random, faults: list[str]) -> None:
    base_url = f"http://127.0.0.1:{side.port}"
    await _wait_workers(base_url)
    await _traffic(side, options, random, base_url, seconds=min(20.0, options.minutes * 6), kills=False)
    before = await _quiet(side, base_url, faults)
    began = trio.current_time()
    ends = began + options.minutes * 60
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.sample, began, ends)
        await _traffic(side, options, random, base_url, seconds=options.minutes * 60, kills=options.kill_every > 0)
    after = await _quiet(side, base_url, faults)
    if after.descriptors > before.descriptors or after.threads > before.threads + 2 or after.tasks > before.tasks:
        faults.append(f"{side.name}: {before} before, {after} after")
    _judge_memory(side, options, faults)
    faults += [f"{side.name}: {fault}" for fault in side.account.faults]
    print(f"{side.name}: {side.deaths} engines died, {side.account.tokens} tokens checked; {before} -> {after}")
    for kind, count in sorted(side.account.ends.items()):
        print(f"  {count:8} {kind}")
    sys.stdout.flush()


async def _traffic(
    side: Side, options: argparse.Namespace, random: Random, base_url: str, *, seconds: float, kills: bool
) -> None:
    ends = trio.current_time() + seconds
    limits = httpx.Limits(max_connections=options.clients + 2)
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=120, limits=limits, verify=False) as http,
        trio.open_nursery() as nursery,
    ):
        if kills:
            nursery.start_soon(side.kill_engines, options.kill_every, random, ends)
        for index in range(options.clients):
            client = Traffic(f"{side.name}-{index}", Random(random.random()), side.port, http, side.account, token_of)
            nursery.start_soon(client.run_until, ends)


async def _until(true: Callable[[], bool]) -> None:
    """Wait until something outside of this process is so."""
    while True:
        if true():
            return
        await trio.sleep(0.05)


async def _wait_workers(base_url: str) -> None:
    """Wait until all workers are ready."""
    async with httpx.AsyncClient(base_url=base_url, verify=False) as http:
        with trio.fail_after(START_LIMIT_S):
            while True:
                workers = (await http.get("/workers")).json()["workers"]
                if workers and all(worker["is_healthy"] for worker in workers):
                    return
                await trio.sleep(0.1)


async def _quiet(side: Side, base_url: str, faults: list[str]) -> Belongings:
    """Wait until nothing is in flight; what the process holds then."""
    left: list[Any] = []
    async with httpx.AsyncClient(base_url=base_url, verify=False) as http:
        with trio.move_on_after(QUIET_LIMIT_S):
            while True:
                workers = (await http.get("/workers")).json()["workers"]
                left = [worker for worker in workers if worker["load"] or worker["in_flight"]]
                left += [url for url, engine in side.engines.items() if engine.in_flight]
                if not left:
                    break
                await trio.sleep(0.2)
    if left:
        faults.append(f"{side.name}: still in flight: {str(left)[:300]}")
    await trio.sleep(1.0)  # connections that were closed here are closed there
    return await side.belongings()


def _judge_memory(side: Side, options: argparse.Namespace, faults: list[str]) -> None:
    settled = side.rss[len(side.rss) // 5 :]
    if len(settled) < 10:
        return
    part = max(1, len(settled) // 8)
    first, last = median(rss for _, rss in settled[:part]), median(rss for _, rss in settled[-part:])
    slope = linear_regression([at / 3600 for at, _ in settled], [rss for _, rss in settled]).slope
    most = max(rss for _, rss in side.rss)
    shown = f"{first:.1f} -> {last:.1f} MB after the first fifth ({slope:+.1f} MB/h), most {most:.1f} MB"
    print(f"{side.name}: memory {shown}")
    if options.minutes >= _JUDGED_MINUTES and last - first > options.max_growth_mb:
        faults.append(f"{side.name}: memory grew by {last - first:.1f} MB")


def _tracebacks(directory: Path) -> list[str]:
    logs = [(file.stem, file.read_text(errors="replace")) for file in directory.glob("*.log")]
    return [
        f"{name}: a traceback in the log: {text.partition('Traceback')[2][-800:]}"
        for name, text in logs
        if "Traceback" in text
    ]


def _status(pid: int, field_name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(trio.run(main, arguments()))
