"""Draws the results: the hit rate against the wait that the slowest twentieth of the requests has, per rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""Column → rule → figure → a value per seed."""
COLORS = ("#999999", "#bbbbbb", "#56b4e9", "#e69f00", "#f0c050", "#d55e00", "#009e73", "#0072b2")


def draw(axes: Axes, by_rule: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """One point per rule and seed, and a large one for the rule's mean."""
    for color, (name, one) in zip(COLORS, by_rule.items(), strict=False):
        axes.scatter(one["p95"], one["hit"], s=8, color=color, alpha=0.5, linewidths=0)
        axes.scatter([fmean(one["p95"])], [fmean(one["hit"])], s=60, color=color, label=name, edgecolors="white")
    axes.set_xscale("log")
    axes.set_xlabel("time to first token, p95, ms (less is better)", fontsize=8)
    axes.set_ylabel("hit rate (more is better)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def plot(results: Results, file: Path) -> None:
    """One drawing per column, side by side, as SVG."""
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "smg-trio"
    figure, drawings = pyplot.subplots(1, len(results), figsize=(9, 4), layout="constrained", squeeze=False)
    for axes, (column, by_rule) in zip(drawings[0], results.items(), strict=True):
        draw(axes, by_rule)
        axes.set_title(column, fontsize=9)
    drawings[0][-1].legend(fontsize=7, frameon=False, loc="best")
    figure.savefig(file, format="svg", metadata={"Date": None})
