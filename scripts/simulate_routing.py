"""Simulates routing by KV caches: what share of the prompts' tokens each rule finds cached, and how long users wait.

    python scripts/simulate_routing.py                                  # the table of docs/routing-simulation.md
    python scripts/simulate_routing.py --kind documents --sessions 2 3 --seeds 11 12 13
    python scripts/simulate_routing.py --write-trace FILE | --trace FILE  # one line of JSON per session
    python scripts/simulate_routing.py --svg FILE                       # needs matplotlib

The last rule is the gateway's own: it calls `smg_trio.routing.policies.kv_score.best`. Figures with ± are mean and
standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from routing_simulation.rules import RULES, Rule
from routing_simulation.run import Fleet, Outcome, Run
from routing_simulation.traces import KINDS, Session, read, totals, write

WARM_UP = 60.0
"""Seconds that are not counted, while caches are empty."""


def figures(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """By name, a value for each outcome."""
    return {
        "hit": [one.hit for one in outcomes],
        "p50": [one.quantile(0.5) for one in outcomes],
        "p95": [one.quantile(0.95) for one in outcomes],
        "mean": [one.mean for one in outcomes],
        "imbalance": [one.imbalance for one in outcomes],
    }


def simulate(
    traces: Sequence[Sequence[Session]], seeds: Sequence[int], fleet: Fleet, rule: Callable[[], Rule]
) -> dict[str, list[float]]:
    """A rule on each trace, see `figures`."""
    return figures([Run(fleet, rule, seed).run(trace, WARM_UP) for trace, seed in zip(traces, seeds, strict=True)])


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def print_table(title: str, by_rule: dict[str, dict[str, list[float]]]) -> None:
    """As a table of Markdown."""
    print(f"\n{title}\n")
    print("| rule | hit rate | first token p50 ms | p95 ms | imbalance |")
    print("|---|---|---|---|---|")
    for name, one in by_rule.items():
        cells = [spread(one["hit"], 3), spread(one["p50"], 0), spread(one["p95"], 0), spread(one["imbalance"], 2)]
        print(f"| {name} | {' | '.join(cells)} |")


def describe(kind: str, rate: str, traces: Sequence[Sequence[Session]]) -> str:
    """What the traces ask for, in a line."""
    sums = [totals(trace) for trace in traces]
    infinite = fmean(one.cached / one.prompt for one in sums)
    prompt = fmean(one.prompt / one.requests for one in sums)
    requests = fmean(one.requests / trace[-1].at for one, trace in zip(sums, traces, strict=True))
    what = f"{requests:.1f} requests/s, prompts of {prompt:,.0f} tokens"
    return f"{kind}, {rate}: {what}, one cache without end would hit {infinite:.3f}"


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kind", choices=KINDS, default="chat")
    options.add_argument("--sessions", type=float, nargs="+", default=[3.0, 5.0], metavar="PER_SECOND")
    options.add_argument("--seconds", type=float, default=600.0, help="length of each trace")
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options.add_argument("--engines", type=int, default=8)
    options.add_argument("--blocks", type=int, default=6000, help="of each engine's KV cache, of 16 tokens")
    options.add_argument("--lost", type=float, default=0.0, help="share of the events that never arrive")
    options.add_argument("--gateways", type=int, default=1, help="that do not know of each other's requests")
    options.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="NAME")
    options.add_argument("--trace", type=Path, metavar="FILE", help="run this trace, not made ones")
    options.add_argument("--write-trace", type=Path, metavar="FILE", help="write the first trace and end")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options.add_argument("--svg", type=Path, metavar="FILE", help="draw hit rates and waits; needs matplotlib")
    return options


def main() -> None:
    """Make or read traces, run the rules, print."""
    options = parser().parse_args()
    fleet = Fleet(engines=options.engines, blocks=options.blocks, lost=options.lost, gateways=options.gateways)
    make = KINDS[options.kind]
    seeds = options.seeds
    if options.write_trace:
        write(make(Random(seeds[0]), options.sessions[0], options.seconds), options.write_trace)
        return
    results = {}
    if options.trace:
        trace = read(options.trace)
        columns = {"trace": [trace for _ in seeds]}
    else:
        columns = {
            f"{rate:g} sessions/s": [make(Random(seed), rate, options.seconds) for seed in seeds]
            for rate in options.sessions
        }
    for column, traces in columns.items():
        if any(not trace or trace[-1].at <= WARM_UP for trace in traces):
            raise SystemExit(f"the trace ends within the {WARM_UP:g} s that are not counted: give a longer one")
        title = describe("file" if options.trace else options.kind, column, traces)
        results[column] = {name: simulate(traces, seeds, fleet, RULES[name]) for name in options.rules}
        print_table(title, results[column])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.svg:
        from routing_simulation.plot import plot

        plot(results, options.svg)


if __name__ == "__main__":
    main()
