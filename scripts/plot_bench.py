"""Draws what `bench_gateway.py` measured: CPU per streamed token, and requests per second, of every gateway.

    python scripts/plot_bench.py RESULT.json [RESULT.json ...] --svg FILE [--json FILE]

Needs matplotlib. A load that is in several results is taken from the last; ``--json`` writes the medians of all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Medians = dict[str, dict[str, dict[str, float]]]
"""Load → gateway → figure → value."""
NAMES = {"smg-trio": "smg-trio", "smg": "SMG (Rust)", "vllm": "vLLM's API server", "vllm-rs": "vLLM's Rust front end"}
COLORS = {"smg-trio": "#0072b2", "smg": "#e69f00", "vllm": "#999999", "vllm-rs": "#d55e00"}
WIDTH = 0.8


def read(files: Sequence[Path]) -> dict[str, Any]:
    """Medians of all files, and the machine and options of the last."""
    merged: dict[str, Any] = {"medians": {}}
    for file in files:
        result = json.loads(file.read_text())
        merged["machine"], merged["options"] = result["machine"], result["options"]
        merged["medians"] |= result["medians"]
    return merged


def draw(axes: Axes, medians: Medians, loads: Sequence[str], figure: str, form: str) -> None:
    """Grouped bars, one group per load, on a logarithmic scale: ratios are lengths."""
    gateways = [name for name in NAMES if any(name in medians[load] for load in loads)]
    width = WIDTH / len(gateways)
    for place, gateway in enumerate(gateways):
        shown = [
            (index, medians[load][gateway][figure]) for index, load in enumerate(loads) if gateway in medians[load]
        ]
        at = [index + (place - (len(gateways) - 1) / 2) * width for index, _ in shown]
        bars = axes.bar(at, [value for _, value in shown], width, label=NAMES[gateway], color=COLORS[gateway])
        axes.bar_label(bars, fmt=form, fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.set_xticks(range(len(loads)), loads, fontsize=8)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def plot(medians: Medians, file: Path) -> None:
    """Both drawings as one SVG."""
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "smg-trio"
    figure, (above, below) = pyplot.subplots(2, figsize=(9, 7), layout="constrained")
    paced = [load for load, by in medians.items() if _paced(by)]
    draw(above, medians, paced, "cpu_us_per_token", "%.0f")
    above.set_ylabel("CPU µs per token (less is better)", fontsize=8)
    draw(below, medians, [load for load in medians if load not in paced], "requests_per_s", "%.0f")
    below.set_ylabel("requests per second (more is better)", fontsize=8)
    above.legend(fontsize=8, frameon=False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def _paced(by: Mapping[str, Mapping[str, float]]) -> bool:
    return all(one["gap_ms_p99"] > 0 for one in by.values())


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description="Draw the figures of bench_gateway.py")
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--svg", type=Path, required=True, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    merged = read(options.results)
    plot(merged["medians"], options.svg)
    if options.json:
        options.json.write_text(json.dumps(merged, indent=1) + "\n")


if __name__ == "__main__":
    main()
