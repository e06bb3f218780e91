"""Loads gateways with clients whose every response is checked, and looks for what is left behind.

    python scripts/soak.py [--profile streams|mixed] [--seconds S] [--clients N] [--protocol vllm|tokenspeed]
        [--processes N]

One gateway per engine protocol, each in a process of its own (``launch``), whose fake engines run here and say a
formula of a request's seed, so that a lost, doubled or foreign token is seen.

``streams`` (a minute): streams without pause at one worker, of which some are left in the middle. Each request must
reach the engine once, and only those that were left may be aborted.

``mixed`` (half an hour): clients also ask for several choices, call tools, read slowly, send nonsense and heavy bodies,
and talk over WebSockets to two workers; every so often an engine is killed and comes back. No request may fail that the
death of an engine does not explain.

Exit code 0: every response was right, memory is flat after the first fifth, and at the end nothing is in flight and
descriptors, threads and tasks are as many as before.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any

import httpx
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.disorder.formula import FormulaScript
from scripts.disorder.traffic import Account, Traffic
from smg_trio.core.engines import EngineProtocol
from smg_trio.testing.demo import DEMO_MODEL
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.zmq_engine import zmq_engine
from smg_trio.text.model_files import load_model_text
from smg_trio.wire.addresses import parse_worker_url

if TYPE_CHECKING:
    from smg_trio.testing.fake_engine import FakeEngine
    from smg_trio.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S = 60.0
QUIET_LIMIT_S = 30.0
SMALL_CACHE = ("--tokenizer-cache-l1-max-memory", "4000000")
"""The default, 32 MB, takes longer to fill than a soak to warm up."""
SAMPLES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of load, and what the options are by default.

    Attributes:
        kinds: of requests, see `Traffic`; none: all.
        kill_every: mean seconds between two deaths of engines; 0: none.
        max_growth_mb: memory a gateway may gain after the first fifth.
        judged_after_s: memory is not judged in shorter runs: what heavy bodies leave behind for a while is more than
            any leak.
    """

    protocols: tuple[EngineProtocol, ...]
    kinds: tuple[str, ...]
    workers: int
    seconds: float
    clients: int
    kill_every: float
    max_growth_mb: float
    judged_after_s: float


PROFILES = {
    "streams": Profile(
        protocols=(EngineProtocol.VLLM,), kinds=("stream", "left"), workers=1, seconds=60.0, clients=20, kill_every=0.0,
        max_growth_mb=8.0, judged_after_s=0.0,
    ),
    "mixed": Profile(
        protocols=tuple(EngineProtocol), kinds=(), workers=2, seconds=1800.0, clients=12, kill_every=20.0,
        max_growth_mb=20.0, judged_after_s=300.0,
    ),
}  # fmt: skip


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
    tokenizer: Tokenizer
    step_s: float
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
                protocol=self.protocol,
                step_time_s=self.step_s,
                vocab_size=self.tokenizer.vocab_size,
                max_model_len=8192,
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
            rss = sum(_status(pid, "VmRSS") for pid in self.pids())
            self.rss.append((trio.current_time() - began, rss / 1024))

    def pids(self) -> list[int]:
        """Of the gateway's processes: the one that was started, and its fronts."""
        found = [self.process.pid]
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
        return found

    async def belongings(self) -> Belongings:
        """Of the gateway's processes, now; tasks of the one that was started."""
        self.tasks_file.unlink(missing_ok=True)
        os.kill(self.process.pid, signal.SIGUSR1)
        with trio.fail_after(QUIET_LIMIT_S):
            await _until(lambda: self.tasks_file.exists() and bool(self.tasks_file.read_text()))
        pids = self.pids()
        descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        threads = sum(_status(pid, "Threads") for pid in pids)
        return Belongings(descriptors, threads, int(self.tasks_file.read_text()))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="soak test of the gateway")
    add = parser.add_argument
    add("--profile", choices=PROFILES, default="streams", help="kind of load (default: %(default)s)")
    add("--protocol", choices=[protocol.value for protocol in EngineProtocol], help="one alone; default: the profile's")
    add("--seconds", type=float, help="default: 60 or 1800, by profile")
    add("--clients", type=int, help="of each gateway, each with one request at a time; default: 20 or 12")
    add("--kill-every", type=float, metavar="S", help="mean time between deaths of engines; 0: none; default: 0 or 20")
    add("--max-growth-mb", type=float, help="memory a gateway may gain after the first fifth; default: 8 or 20")
    add("--step-ms", type=float, default=8.0, help="time per token of each stream (default: %(default)s)")
    add("--processes", type=int, default=1, help="of each gateway, that answer clients (default: %(default)s)")
    add("--seed", type=int, default=1)
    return parser.parse_args()


def profile_of(options: argparse.Namespace) -> Profile:
    """The profile that is named, with what else is given."""
    given = {name: getattr(options, name) for name in ("seconds", "clients", "kill_every", "max_growth_mb")}
    if options.protocol is not None:
        given["protocols"] = (EngineProtocol(options.protocol),)
    return replace(PROFILES[options.profile], **{name: value for name, value in given.items() if value is not None})


async def main(options: argparse.Namespace) -> int:
    """Run the soak; its exit code."""
    profile, faults = profile_of(options), list[str]()
    with tempfile.TemporaryDirectory(prefix="smg-trio-soak-") as directory:
        async with trio.open_nursery() as nursery:
            start = partial(_start, nursery, Path(directory), options, profile.workers)
            sides = [await start(protocol) for protocol in profile.protocols]
            async with trio.open_nursery() as soaks:
                for index, side in enumerate(sides):
                    soaks.start_soon(_soak, side, profile, Random(options.seed + index), faults)
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


async def _start(
    nursery: trio.Nursery, directory: Path, options: argparse.Namespace, workers: int, protocol: EngineProtocol
) -> Side:
    urls = [f"ipc://{directory}/{protocol.value}-{index}" for index in range(workers)]
    tasks_file = directory / f"{protocol.value}.tasks"
    log = directory / f"{protocol.value}.log"
    command = [
        sys.executable, str(ROOT / "scripts/disorder/watched_gateway.py"), str(tasks_file), "launch", "--worker-urls",
        *urls, "--backend", protocol.value, "--model-path", str(DEMO_MODEL), "--served-model-name", "demo", "--host",
        "127.0.0.1", "--port", "0", *SMALL_CACHE, "--prometheus-host", "127.0.0.1", "--prometheus-port", "0",
        "--processes", str(options.processes),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = partial(trio.run_process, command, stderr=log.open("wb"), check=False, env=environment)
    process: trio.Process = await nursery.start(run)
    with trio.fail_after(START_LIMIT_S):
        await _until(lambda: "listening on " in log.read_text())
    text = log.read_text()
    port = int(text.partition("listening on ")[2].split("\n")[0].rpartition(":")[2])
    side = Side(
        protocol, process, port, tasks_file, urls, load_model_text(DEMO_MODEL).tokenizer, options.step_ms / 1000
    )
    for url in urls:
        nursery.start_soon(side.run_engine, url)
    return side


async def _soak(side: Side, profile: Profile, random: Random, faults: list[str]) -> None:
    base_url = f"http://127.0.0.1:{side.port}"
    await _wait_workers(base_url)
    warm_up = replace(profile, seconds=min(20.0, profile.seconds / 10), kill_every=0.0)
    await _traffic(side, warm_up, random, base_url)
    before = await _quiet(side, base_url, faults)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.sample, began, began + profile.seconds)
        await _traffic(side, profile, random, base_url)
    after = await _quiet(side, base_url, faults)
    if after.descriptors > before.descriptors or after.threads > before.threads + 2 or after.tasks > before.tasks:
        faults.append(f"{side.name}: {before} before, {after} after")
    _judge_memory(side, profile, faults)
    faults += [f"{side.name}: {fault}" for fault in side.account.faults]
    if profile.kinds == ("stream", "left") and not profile.kill_every:
        faults += [f"{side.name}: {fault}" for fault in _engine_faults(side)]
    print(f"{side.name}: {side.deaths} engines died, {side.account.tokens} tokens checked; {before} -> {after}")
    for kind, count in sorted(side.account.ends.items()):
        print(f"  {count:8} {kind}")
    sys.stdout.flush()


def _engine_faults(side: Side) -> list[str]:
    """Each stream is one request of one or more choices; only those that were left may be aborted, each once."""
    faults = []
    for engine in side.engines.values():
        received = [request.request_id for request in engine.received]
        aborted, finished = set(engine.aborts), set(engine.record.finished)
        if len(set(received)) != len(received):
            faults.append(f"{len(received) - len(set(received))} requests came twice")
        if len(engine.aborts) != len(aborted):
            faults.append(f"{len(engine.aborts)} aborts for {len(aborted)} requests")
        if lost := set(received) - aborted - finished:
            faults.append(f"{len(lost)} requests neither ended nor were aborted")
        if len(aborted) > 3 * side.account.ends["left"]:  # a client that leaves has asked for three choices at most
            faults.append(f"{side.account.ends['left']} streams were left, {len(aborted)} requests aborted")
    return faults


async def _traffic(side: Side, profile: Profile, random: Random, base_url: str) -> None:
    ends = trio.current_time() + profile.seconds
    limits = httpx.Limits(max_connections=profile.clients + 2)
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=120, limits=limits, verify=False) as http,
        trio.open_nursery() as nursery,
    ):
        if profile.kill_every:
            nursery.start_soon(side.kill_engines, profile.kill_every, random, ends)
        for index in range(profile.clients):
            name, dice = f"{side.name}-{index}", Random(random.random())
            client = Traffic(name, dice, side.port, http, side.account, side.tokenizer, profile.kinds)
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


def _judge_memory(side: Side, profile: Profile, faults: list[str]) -> None:
    settled = side.rss[len(side.rss) // 5 :]
    if len(settled) < 10:
        return
    part = max(1, len(settled) // 8)
    first, last = median(rss for _, rss in settled[:part]), median(rss for _, rss in settled[-part:])
    slope = linear_regression([at / 3600 for at, _ in settled], [rss for _, rss in settled]).slope
    most = max(rss for _, rss in side.rss)
    shown = f"{first:.1f} -> {last:.1f} MB after the first fifth ({slope:+.1f} MB/h), most {most:.1f} MB"
    print(f"{side.name}: memory {shown}")
    if profile.seconds >= profile.judged_after_s and last - first > profile.max_growth_mb * len(side.pids()):
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
