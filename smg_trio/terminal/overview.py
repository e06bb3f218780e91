"""A snapshot as lines and tables of text, which `top` prints or draws. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from smg_trio.terminal.figures import NONE, long, plain, rate, share, short, size

Snapshot = dict[str, Any]
"""See `docs/dashboard.md`."""
NARROWEST = 8
Tone = Literal["ok", "warn", "bad", "muted", ""]
_TONES: dict[str, Tone] = {
    "ready": "ok",
    "generating": "ok",
    "draining": "warn",
    "loading": "warn",
    "queued": "warn",
    "not_ready": "bad",
    "failed": "bad",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One word or figure of a table."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; the ones that are `wide` give way where there is little room."""

    title: str
    right: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def status(snapshot: Snapshot) -> Cell:
    """The gateway in a word or two."""
    gateway = snapshot["gateway"]
    if gateway["draining"]:
        return Cell("draining", "warn")
    if not gateway["ready"]:
        return Cell(f"not ready: {plain(gateway['reason'])}", "bad")
    ready, workers = gateway["ready_workers"], gateway["workers"]
    return Cell(f"{ready} of {workers} ready", "ok" if ready == workers else "warn")


def headlines(snapshot: Snapshot) -> list[str]:
    """The gateway in a few lines, below its name and status."""
    gateway, admission = snapshot["gateway"], snapshot["admission"]
    rates, latency = snapshot["rates"] or {}, snapshot["latency"]
    tokens_out, tokens_in = rate(rates.get("output_tokens_per_s")), rate(rates.get("input_tokens_per_s"))
    limit = "no limit" if admission["limit"] is None else f"limit {admission['limit']:,}"
    return [
        f"version {plain(gateway['version'])} · up {long(gateway['uptime_s'])} · {plain(gateway['policy'])} · "
        f"cpu {share(gateway['cpu_share'])} · memory {size(gateway['memory_bytes'])} · "
        f"loop lag {short(gateway['loop_lag_s'])}",
        f"in flight {snapshot['requests']['total']:,} · queued {admission['waiting']:,} ({limit}) · "
        f"output {tokens_out} tok/s · input {tokens_in} tok/s · finished {rate(rates.get('answers_per_s'))}/s",
        f"last minute: {latency['answers']:,} good, {latency['failed']:,} failed",
    ]


def tables(snapshot: Snapshot) -> list[Table]:
    """Latencies, workers, requests, errors; without those that have no rows."""
    found = [latencies(snapshot), workers(snapshot), requests(snapshot), errors(snapshot)]
    return [table for table in found if table.rows]


def latencies(snapshot: Snapshot) -> Table:
    """Percentiles of the last minute."""
    names = {"ttft_s": "time to first token", "inter_token_s": "between tokens", "end_to_end_s": "whole answer"}
    quantiles = ("p50", "p90", "p99")
    rows = [
        [Cell(name), *(Cell(short(found[one])) for one in quantiles)]
        for key, name in names.items()
        if (found := snapshot["latency"][key]) is not None
    ]
    return Table("Latency", [Column("last minute"), *(Column(one, right=True) for one in quantiles)], rows)


def workers(snapshot: Snapshot) -> Table:
    """Workers, and the ranks of those with several."""
    figures = ("in flight", "running", "waiting", "kv cache", "tok/s in", "tok/s out")
    columns = [Column("worker", wide=True), Column("state"), *(Column(name, right=True) for name in figures)]
    rows = [row for worker in snapshot["workers"] for row in _worker_rows(worker)]
    return Table("Workers", [*columns, Column("reason", wide=True)], rows)


def _worker_rows(worker: dict[str, Any]) -> Iterator[list[Cell]]:
    ranks = worker.get("ranks", [])
    per_s = worker.get("tokens_per_s") or {}
    figures = _load(ranks) if ranks else [NONE] * 3
    cells = [str(worker.get("in_flight", 0)), *figures, rate(per_s.get("input")), rate(per_s.get("output"))]
    notes = [worker.get("status_reason", ""), "overloaded" if worker.get("overloaded") else ""]
    if worker.get("circuit_breaker") in ("open", "half_open"):
        notes.append("circuit breaker " + worker["circuit_breaker"].replace("_", " "))
    yield [
        Cell(f"{plain(worker['url'])} ({plain(worker['model_id'])})"),
        _state(worker["status"]),
        *map(Cell, cells),
        Cell(plain("; ".join(filter(None, notes))), "muted"),
    ]
    for rank in ranks if len(ranks) > 1 else ():
        per_s = rank.get("tokens_per_s") or {}
        cells = [str(rank["in_flight"]), *_load([rank]), rate(per_s.get("input")), rate(per_s.get("output"))]
        reason = Cell(plain(rank.get("reason", "")), "muted")
        yield [Cell(f"  rank {rank['rank']}", "muted"), _state(rank["status"]), *map(Cell, cells), reason]


def _load(ranks: Sequence[dict[str, Any]]) -> list[str]:
    running, waiting = (sum(rank[name] for rank in ranks) for name in ("num_running_reqs", "num_waiting_reqs"))
    return [str(running), str(waiting), share(max(rank["token_usage"] for rank in ranks))]


def _state(word: str) -> Cell:
    return Cell(plain(word).replace("_", " "), _TONES.get(word, "muted"))


def requests(snapshot: Snapshot) -> Table:
    """Answers in flight, the oldest first."""
    total, shown = snapshot["requests"]["total"], snapshot["requests"]["shown"]
    title = "Requests" if total == len(shown) else f"Requests (the oldest {len(shown)} of {total})"
    columns = [Column("request", wide=True), Column("model"), Column("endpoint"), Column("phase")]
    columns += [Column("age", right=True), Column("in", right=True), Column("out", right=True), Column("worker")]
    rows = [
        [
            Cell(plain(one["id"])),
            Cell(plain(one["model"])),
            Cell(plain(one["endpoint"])),
            _state(one["phase"]),
            Cell(short(one["age_s"])),
            Cell(f"{one['prompt_tokens']:,}"),
            Cell(f"{one['completion_tokens']:,}"),
            Cell(plain(", ".join(map(_short_url, one["workers"])))),
        ]
        for one in shown
    ]
    return Table(title, columns, rows)


def errors(snapshot: Snapshot) -> Table:
    """Recent errors, the newest first."""
    columns = [Column("time"), Column("status", right=True), Column("code"), Column("message", wide=True)]
    rows = [
        [
            Cell(time.strftime("%H:%M:%S", time.localtime(one["time"])), "muted"),
            Cell(str(one["status"]), "bad" if one["status"] >= 500 else "warn"),
            Cell(plain(one["code"])),
            Cell(plain(one["message"])),
            Cell(plain(one["endpoint"])),
            Cell(plain(", ".join(map(_short_url, one["workers"])))),
        ]
        for one in snapshot["errors"]
    ]
    return Table("Recent errors", [*columns, Column("endpoint"), Column("worker")], rows)


def _short_url(url: str) -> str:
    return url.rpartition("/")[2] or url


def fitted_widths(table: Table, room: int, gap: int) -> list[int]:
    """How wide each column may be for the table to fit into `room` characters with `gap` after each column.

    The widest of the `wide` columns gives way first, down to `NARROWEST`; the others never do.
    """
    grid = [[column.title for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(row[at]) for row in grid) for at in range(len(table.columns))]
    yielding = [at for at, column in enumerate(table.columns) if column.wide]
    while yielding and sum(widths) + gap * len(widths) > room:
        widest = max(yielding, key=widths.__getitem__)
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return widths


def text(snapshot: Snapshot, url: str) -> str:
    """All of it as plain text, as wide as it gets."""
    lines = [f"smg-trio {plain(url)} · {status(snapshot).text}", *headlines(snapshot)]
    for table in tables(snapshot):
        lines += ["", table.title, *_text_rows(table)]
    return "\n".join(lines) + "\n"


def _text_rows(table: Table) -> Iterator[str]:
    columns = table.columns
    grid = [[column.title for column in columns], *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(row[at]) for row in grid) for at in range(len(columns))]
    for row in grid:
        cells = zip(row, columns, widths, strict=True)
        words = [word.rjust(width) if column.right else word.ljust(width) for word, column, width in cells]
        yield "  ".join(words).rstrip()
