"""Measures the gateway beside its peers: one fake engine, one load client, one run for all.

    python scripts/bench_gateway.py [--short] [--smg EXECUTABLE] [--vllm-python PYTHON] [--vllm-rs EXECUTABLE]
        [--model-path DIR] [--processes N] [--free-cores] [--json FILE]

Peers: this project's ``launch``, SMG (the Rust gateway) where its executable is named or on PATH, vLLM's own API
server where an interpreter is named that has vLLM, and vLLM's Rust front end where its executable is named. All are
started once and loaded in turn, round by round, so that a busy neighbour meets all of them; the gateways share one
core, engines and client the other, or all of them every core (--free-cores). Medians over the rounds are printed as
Markdown tables. docs/performance.md says what each figure is and how it is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import peers as gateways
from bench import processes
from bench.client import Client
from bench.engine import MAX_MODEL_LEN
from bench.figures import Figures, client_figures, median_figures, ratios, table
from bench.peers import Command, Peer, Setting
from bench.scenarios import Scenario, scenarios
from bench.words import Words

ROOT = Path(__file__).resolve().parents[1]
DEMO_MODEL = ROOT / "smg_trio" / "testing" / "demo_model"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="CPU, throughput and latency of the gateway beside its peers")
    add = parser.add_argument
    cores = sorted(os.sched_getaffinity(0))
    add("--short", action="store_true", help="three loads, one round: about a minute")
    add("--repeat", type=int, help="rounds to take medians over (default: 3, short: 1)")
    add("--tokens", type=int, help="tokens per stream (default: 200, short: 100)")
    add("--requests", type=int, help="one-token requests per round (default: 3000, short: 1500)")
    add("--scenarios", nargs="+", metavar="NAME", help="only these; streams-256 and -1024 only if named")
    add("--smg", default=shutil.which("smg"), metavar="EXECUTABLE", help="SMG (default: from PATH, if there)")
    add("--vllm-python", metavar="PYTHON", help="interpreter with vLLM (see interop_env.py)")
    add("--vllm-rs", metavar="EXECUTABLE", help="the file vllm/vllm-rs of the vllm wheel")
    add("--without-ours", action="store_true", help="measure the peers only")
    add("--model-path", type=Path, default=DEMO_MODEL, help="tokenizer, template, config (default: the demo's)")
    add("--gateway-core", type=int, default=cores[0])
    add("--load-core", type=int, default=cores[-1], help="core of engines and client")
    add("--processes", type=int, default=1, help="of this project's gateway (default: %(default)s)")
    add("--free-cores", action="store_true", help="gateways, engines and client may use every core")
    add("--json", type=Path, metavar="FILE", help="write all figures here too")
    options = parser.parse_args()
    options.repeat = options.repeat or (1 if options.short else 3)
    options.tokens = options.tokens or (100 if options.short else 200)
    options.requests = options.requests or (1500 if options.short else 3000)
    return options


@contextmanager
def staged(options: argparse.Namespace) -> Iterator[Setting]:
    """A scratch directory with the model in it, its context window widened so that long prompts are taken by all."""
    with tempfile.TemporaryDirectory(prefix="smg-trio-bench-") as directory:
        scratch = Path(directory)
        model = scratch / "model"
        model.mkdir()
        for file in options.model_path.iterdir():
            (model / file.name).symlink_to(file.resolve())
        for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
            widened = {**json.loads((model / name).read_text()), key: MAX_MODEL_LEN}
            (model / name).unlink()
            (model / name).write_text(json.dumps(widened))
        one_each = {options.gateway_core}, {options.load_core}
        cores = (os.sched_getaffinity(0),) * 2 if options.free_cores else one_each
        yield Setting(model, scratch, *cores, options.processes)


def commands(options: argparse.Namespace) -> dict[str, Command]:
    """The peers that are there."""
    found: dict[str, Command] = {} if options.without_ours else {"smg-trio": gateways.ours}
    if options.smg:
        found["smg"] = gateways.smg(options.smg)
    if options.vllm_python:
        found["vllm"] = gateways.vllm(options.vllm_python)
    if options.vllm_rs:
        found["vllm-rs"] = gateways.vllm_rs(options.vllm_rs)
    return found


class Bench:
    """Loads peers one at a time; every request of a run has a seed of its own."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._words = Words(setting.model)
        self._seed = 1

    def measure(self, peer: Peer, scenario: Scenario) -> Figures:
        """One load on one peer."""
        setting = self._setting
        peer.command_engine(step_ms=scenario.step_ms)
        client = Client(scenario, peer.port, peer.model, self._words, self._seed, setting.load_cores)
        self._seed += scenario.requests
        before = _clocks(peer)
        client.run()
        gateway, engine, waited = (now - then for now, then in zip(_clocks(peer), before, strict=True))
        memory = processes.rss_mb(peer.gateway.pid)
        result = client.result()
        seen = client_figures(result.answers, self._sent(peer))
        for answer in result.answers:
            if answer.fault:
                print(f"{peer.name}, {scenario.name}: {answer.fault}", file=sys.stderr)
                break
        return {
            "cpu_us_per_token": gateway / max(1, seen["tokens"]) * 1e6,
            "cpu_us_per_request": gateway / scenario.requests * 1e6,
            "tokens_per_s": seen["tokens"] / result.wall_s,
            "requests_per_s": scenario.requests / result.wall_s,
            **seen,
            "rss_mb": memory,
            "wall_s": result.wall_s,
            "gateway_busy": gateway / result.wall_s,
            "gateway_waited": max(0.0, waited / result.wall_s),
            "client_busy": result.client_cpu_s / result.wall_s,
            "engine_busy": engine / result.wall_s,
        }

    def _sent(self, peer: Peer) -> dict[int, list[int]]:
        file = self._setting.scratch / "sent.json"
        peer.command_engine(dump=str(file))
        return {int(seed): times for seed, times in json.loads(file.read_text()).items()}


def _clocks(peer: Peer) -> tuple[float, float, float]:
    """CPU seconds of gateway and engine, and what the gateway has waited for its core."""
    gateway, engine = peer.gateway.pid, peer.engine.pid
    return processes.cpu_s(gateway), processes.cpu_s(engine), processes.waited_s(gateway)


def run(options: argparse.Namespace, setting: Setting) -> dict[str, Any]:
    """All loads on all peers; returns what ``--json`` writes."""
    loads = scenarios(options.tokens, options.requests, short=options.short)
    if options.scenarios:
        loads = [one for one in loads if one.name in options.scenarios]
    else:
        loads = [one for one in loads if one.name not in ("streams-256", "streams-1024")]
    rounds: dict[str, dict[str, list[Figures]]] = {one.name: {} for one in loads}
    os.sched_setaffinity(0, setting.gateway_cores)
    calibration = processes.calibration_us()
    os.sched_setaffinity(0, setting.load_cores)
    load_before = os.getloadavg()[0]
    bench = Bench(setting)
    warm = [one for one in scenarios(50, 500, short=True) if one.name != "streams-128"]
    with gateways.running(setting, commands(options)) as peers:
        for peer in peers:
            for load in warm:
                bench.measure(peer, load)
        try:
            for number in range(options.repeat):
                for load in loads:
                    for peer in peers:
                        rounds[load.name].setdefault(peer.name, []).append(bench.measure(peer, load))
                print(f"round {number + 1} of {options.repeat} done", file=sys.stderr)
        except KeyboardInterrupt:
            print("interrupted: figures are of the loads measured so far", file=sys.stderr)
    medians = {name: {peer: median_figures(one) for peer, one in by.items()} for name, by in rounds.items() if by}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "loop_us": calibration}
    return {
        "machine": {**machine, "load_average": [load_before, os.getloadavg()[0]]},
        "options": {"repeat": options.repeat, "tokens": options.tokens, "requests": options.requests},
        "medians": medians,
        "ratios": {name: ratios(results) for name, results in medians.items()},
        "rounds": rounds,
    }


def main() -> int:
    """Measure, print, and write the JSON; 1 if any token was lost or any answer wrong."""
    options = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with staged(options) as setting:
        report = run(options, setting)
    print(f"machine: {report['machine']}; {report['options']}; medians")
    for name, results in report["medians"].items():
        counts = [len(one) for one in report["rounds"][name].values()]
        print(f"\n{name}, rounds: {min(counts)}\n\n{table(results)}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    own = [results["smg-trio"] for results in report["medians"].values() if "smg-trio" in results]
    return int(any(one["lost"] or one["extra"] or one["faults"] for one in own))


if __name__ == "__main__":
    sys.exit(main())
