"""Breaks everything around a gateway at random, and checks that the gateway keeps its books.

    python scripts/chaos.py [--seconds 60] [--seed 1] [--clients 24] [--workers 4] [--processes 1]

The gateway runs in this process on real sockets, with short limits. Fake engines of both protocols, alone and in
groups, run in processes of their own, which are killed, stopped and continued, and in this one, which die, restart,
vanish while starting, fall silent, talk nonsense, stop reading. Clients stream, wait, read slowly, ask for nonsense,
leave. Workers are added, changed and removed all the while. With several processes the keeper is this one, and its
fronts are killed, or stopped for a while; an answer that such a front had may be cut short.

Exit code 0: every request had exactly one end (a whole answer, a refusal with a status, or an error event, then
``[DONE]``), with the right tokens as far as it came; afterwards ledgers, leases, loads, admission, deadlines, sockets
and tasks are back to zero, every engine serves again, and the gateway ends cleanly.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import httpx
import trio
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from disorder.books import Belongings, belongings, doubled, engine_leftovers, files_left, open_accounts
from disorder.clients import MODEL, Client, Tally, probe_health
from disorder.fleet import Fleet
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.workers import WorkerSpec
from smg_trio.gateway.run import GatewayShutdown, RunningGateway
from smg_trio.processes.keeper import Keeper
from smg_trio.processes.run import run_processes
from smg_trio.settings.settings import Settings
from smg_trio.testing.demo import DEMO_MODEL

SETTLE_LIMIT_S = 15.0
DISTURBERS = 3
POLICIES = ("cache_aware", "round_robin", "random", "power_of_two", "least_load", "prefix_hash", "consistent_hashing")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="chaos test of the gateway")
    add = parser.add_argument
    add("--seconds", type=float, default=60.0)
    add("--seed", type=int, default=1, help="of all choices; the timing of processes is chance all the same")
    add("--clients", type=int, default=24)
    add("--workers", type=int, default=4, help="at the beginning")
    add("--processes", type=int, default=1, help="gateway processes that answer clients")
    add("--verbose", action="store_true", help="show the gateway's log")
    return parser.parse_args()


def settings_of(random: Random, processes: int = 1, *, verbose: bool = False) -> Settings:
    """Limits so short that all of them are met."""
    return Settings(
        processes=str(processes), log_level="info" if verbose else "error",
        model_path=str(DEMO_MODEL), served_model_name=(MODEL,), host="127.0.0.1", port=0,
        prometheus_host="127.0.0.1", prometheus_port=0, policy=random.choice(POLICIES), max_concurrent_requests=16,
        queue_size=4, queue_timeout_secs=0.5, request_timeout_secs=3.0, sse_keepalive_secs=0.3,
        engine_silence_secs=0.8, engine_send_timeout_secs=0.8, retry_max_backoff_ms=200.0, cb_failure_threshold=3,
        cb_timeout_duration_secs=0.3, health_check_interval_secs=0.2, shutdown_grace_period_secs=3.0,
    )  # fmt: skip


@dataclass(slots=True)
class Run:
    """One run and what it has found."""

    options: argparse.Namespace
    tally: Tally = field(default_factory=Tally)
    faults: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    policy: str = ""

    async def settled(self, what: str, left: Callable[[], list[str]]) -> None:
        """Give `left` a while to be empty; what it still says then is a fault."""
        with trio.move_on_after(SETTLE_LIMIT_S):
            while left():  # noqa: ASYNC110 (counts send no events)
                await trio.sleep(0.02)
        self.faults += [f"{what}: {one}" for one in left()]


async def main(options: argparse.Namespace) -> int:
    """Run the chaos; its exit code."""
    run = Run(options)
    random = Random(f"{options.seed}")
    settings = settings_of(random, options.processes, verbose=options.verbose)
    run.policy = settings.policy
    shutdown, codes = GatewayShutdown(), list[int]()
    with tempfile.TemporaryDirectory(prefix="smg-trio-chaos-") as directory:
        async with trio.open_nursery() as nursery:
            gateway: RunningGateway = await nursery.start(_run_gateway, settings, shutdown, codes)
            await _one_worker_that_comes_and_goes(gateway, f"{directory}/s/first")
            before = belongings()
            await _break_everything(run, gateway, Path(directory) / "s", random)
            await run.settled("belongings", partial(_gained, before))
            shutdown.ask()
        if codes != [0]:
            run.faults.append(f"the gateway ended with {codes}")
    run.faults += run.tally.faults
    report(run)
    return 1 if run.faults else 0


async def _run_gateway(
    settings: Settings, shutdown: GatewayShutdown, codes: list[int], *, task_status: trio.TaskStatus[RunningGateway]
) -> None:
    codes.append(await run_processes(settings, shutdown=shutdown, task_status=task_status))


async def _one_worker_that_comes_and_goes(gateway: RunningGateway, path: str) -> None:
    """So that what libraries keep for good is there before anything is counted."""
    registry = gateway.gateway.registry
    await registry.add(WorkerSpec(worker_id="first", url=f"ipc://{path}", model_id=MODEL, protocol=EngineProtocol.VLLM))
    async with httpx.AsyncClient(verify=False) as http:
        await http.get(f"http://127.0.0.1:{gateway.server.port}/health")
    registry.remove("first")


def _gained(before: Belongings) -> list[str]:
    now = belongings()
    gained = {"descriptors": now.descriptors - before.descriptors, "tasks": now.tasks - before.tasks}
    return [f"{count} {what} more than before" for what, count in gained.items() if count > 0]


async def _break_everything(run: Run, running: RunningGateway, directory: Path, random: Random) -> None:
    options, base_url = run.options, f"http://127.0.0.1:{running.server.port}"
    async with (
        _client(base_url, options.clients) as http,
        # A kept-alive connection may be that of a front that was killed meanwhile, which would tear what is told by it.
        _client(base_url, options.clients, kept_alive=0) as admin,
        trio.open_nursery() as engines,
    ):
        with _engine_context() as context:
            fleet = Fleet(str(directory), random, admin, engines, context)
            for number in range(options.workers):
                await fleet.add("process" if number % 2 else "local")
            await fleet.wait_ready()
            await _disorder(run, running, fleet, http)
            run.done, run.faults = fleet.done, run.faults + fleet.faults
            await run.settled("books", partial(open_accounts, running.gateway))
            await run.settled("engines", partial(engine_leftovers, fleet))
            # The last kill may not have been noticed when all seem ready, so once more after everything was served.
            run.faults += (
                await fleet.never_ready(SETTLE_LIMIT_S)
                or await _all_serve(http)
                or await fleet.never_ready(SETTLE_LIMIT_S)
            )
            await fleet.remove_all()
            await run.settled("files", partial(files_left, directory))
            run.faults += doubled(fleet.received)
            engines.cancel_scope.cancel()


@asynccontextmanager
async def _client(base_url: str, clients: int, kept_alive: int | None = None) -> AsyncIterator[httpx.AsyncClient]:
    most = clients + 20
    limits = httpx.Limits(max_connections=most, max_keepalive_connections=most if kept_alive is None else kept_alive)
    async with httpx.AsyncClient(base_url=base_url, timeout=30, limits=limits, verify=False) as http:
        yield http


@contextmanager
def _engine_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


async def _disorder(run: Run, running: RunningGateway, fleet: Fleet, http: httpx.AsyncClient) -> None:
    """Clients and disturbers side by side; both have ended when this returns."""
    options, ends = run.options, trio.current_time() + run.options.seconds
    async with trio.open_nursery() as probing:
        probing.start_soon(probe_health, http, run.tally)
        if isinstance(running.gateway.sharing, Keeper):
            run.tally.may_be_torn = True
            probing.start_soon(_disturb_fronts, running.gateway.sharing, fleet, Random(f"{options.seed} fronts"))
        async with trio.open_nursery() as nursery:
            for number in range(options.clients):
                random = Random(f"{options.seed} client {number}")
                client = Client(f"c{number}", random, running.server.port, http, run.tally)
                nursery.start_soon(client.run_until, ends)
            for _ in range(DISTURBERS):
                nursery.start_soon(fleet.disturb_until, ends)
        probing.cancel_scope.cancel()


async def _disturb_fronts(keeper: Keeper, fleet: Fleet, random: Random) -> None:
    """Kill a front, or stop it for a moment, now and then, until cancelled."""
    while True:
        await trio.sleep(random.uniform(2.0, 5.0))
        fronts = keeper.ready_fronts()
        if not fronts:
            continue
        pid = random.choice(fronts).pid
        if random.random() < 0.5:
            fleet.done["kill a front"] += 1
            os.kill(pid, signal.SIGKILL)
            continue
        fleet.done["stop a front"] += 1
        os.kill(pid, signal.SIGSTOP)
        try:
            await trio.sleep(random.uniform(0.1, 1.0))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def _all_serve(http: httpx.AsyncClient) -> list[str]:
    """Nothing is broken any more: after the breakers' last trials every request is answered."""
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}
    good, asked, refusal = 0, 0, ""
    with trio.move_on_after(SETTLE_LIMIT_S):
        while good < 20:
            answer = await http.post("/v1/completions", json=body)
            asked, good = asked + 1, good + 1
            if answer.status_code != 200:
                good, refusal = 0, answer.text
        return []
    workers = (await http.get("/workers")).text
    return [f"of {asked} requests at the end the last {good} were answered; the last refusal: {refusal}; {workers}"]


def report(run: Run) -> None:
    """Print what happened."""
    options, tally = run.options, run.tally
    print(
        f"seed {options.seed}, {options.seconds:g} s, policy {run.policy}: {sum(tally.ends.values())} requests of "
        f"{options.clients} clients, {sum(run.done.values())} disturbances, {len(run.faults)} faults"
    )
    print("  ends: " + ", ".join(f"{kind} {count}" for kind, count in sorted(tally.ends.items())))
    print("  done: " + ", ".join(f"{name} {count}" for name, count in sorted(run.done.items())))
    longest = f"{tally.longest_probe_s * 1000:.0f} ms (gateway, engines and clients share this process)"
    print(f"  /health: {tally.probes} times, longest {longest}")
    for fault in run.faults[:30]:
        print(f"  FAULT {fault}")


if __name__ == "__main__":
    chosen = arguments()
    logging.basicConfig(level=logging.INFO if chosen.verbose else logging.CRITICAL)
    sys.exit(trio.run(main, chosen))
