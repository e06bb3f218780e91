"""Figures of one measured load, medians over rounds, and the tables. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.answers import Answer

Figures = dict[str, float]


class Column(NamedTuple):
    """A column of the table: heading, key of the figure, number format."""

    heading: str
    key: str
    form: str


COLUMNS = (
    Column("CPU µs/token", "cpu_us_per_token", ".1f"),
    Column("CPU µs/request", "cpu_us_per_request", ".0f"),
    Column("tokens/s", "tokens_per_s", ".0f"),
    Column("requests/s", "requests_per_s", ".0f"),
    Column("TTFT ms p50", "ttft_ms_p50", ".1f"),
    Column("p99", "ttft_ms_p99", ".1f"),
    Column("gap ms p50", "gap_ms_p50", ".1f"),
    Column("p99", "gap_ms_p99", ".1f"),
    Column("delivery latency ms p50", "way_ms_p50", ".2f"),
    Column("p99", "way_ms_p99", ".2f"),
    Column("RSS MB", "rss_mb", ".0f"),
    Column("gateway busy", "gateway_busy", ".0%"),
    Column("runnable, not running", "gateway_waited", ".0%"),
    Column("client", "client_busy", ".0%"),
    Column("engine", "engine_busy", ".0%"),
    Column("lost", "lost", ".0f"),
    Column("extra", "extra", ".0f"),
    Column("faults", "faults", ".0f"),
)
# Where less is better, the ratio is ours over the peer's.
RATIOS = ("cpu_us_per_token", "cpu_us_per_request", "ttft_ms_p50", "gap_ms_p99", "way_ms_p50", "rss_mb")


def quantile(values: Sequence[float], share: float) -> float:
    """The value at `share` (0..1) of sorted `values`; 0 if there are none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def client_figures(answers: Sequence[Answer], sent: Mapping[int, Sequence[int]]) -> Figures:
    """Times and faults as the client saw them.

    Args:
        answers: of one load.
        sent: by seed, when the engine sent each token (CLOCK_MONOTONIC ns). ``way`` is from there to the client.
    """
    first = [(answer.token_times[0] - answer.sent_at) / 1e6 for answer in answers if answer.token_times]
    gaps = [(b - a) / 1e6 for answer in answers for a, b in pairwise(answer.token_times)]
    way = [
        (came - left) / 1e6
        for answer in answers
        if not answer.lost and not answer.extra
        for came, left in zip(answer.token_times, sent.get(answer.seed, ()), strict=False)
    ]
    figures: Figures = {}
    for name, values in (("ttft_ms", first), ("gap_ms", gaps), ("way_ms", way)):
        values.sort()
        figures[f"{name}_p50"], figures[f"{name}_p99"] = quantile(values, 0.5), quantile(values, 0.99)
    figures["tokens"] = sum(len(answer.token_times) for answer in answers)
    figures["lost"] = sum(answer.lost for answer in answers)
    figures["extra"] = sum(answer.extra for answer in answers)
    figures["faults"] = sum(bool(answer.fault) or answer.disordered for answer in answers)
    return figures


def median_figures(rounds: Sequence[Figures]) -> Figures:
    """Medians over the rounds; of losses and faults the sum."""
    summed = {"lost", "extra", "faults"}
    return {
        key: sum(one[key] for one in rounds) if key in summed else statistics.median(one[key] for one in rounds)
        for key in rounds[0]
    }


def ratios(results: Mapping[str, Figures], own: str = "smg-trio") -> dict[str, Figures]:
    """Our figures over each peer's: below 1 is better than the peer."""
    mine = results.get(own)
    if mine is None:
        return {}
    return {
        peer: {key: mine[key] / theirs[key] for key in RATIOS if theirs[key]}
        for peer, theirs in results.items()
        if peer != own
    }


def table(results: Mapping[str, Figures]) -> str:
    """One scenario's figures as a Markdown table with the ratios below."""
    rows = [["", *(column.heading for column in COLUMNS)]]
    rows += [[peer, *(f"{one[column.key]:{column.form}}" for column in COLUMNS)] for peer, one in results.items()]
    for peer, ratio in ratios(results).items():
        cells = [f"{ratio[column.key]:.2f}" if column.key in ratio else "" for column in COLUMNS]
        rows.append([f"ours ÷ {peer}", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *lines[1:]])
