"""CPU time of small pieces of work, and how a script shows it."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

from bench.processes import calibration_us

_ROUNDS = 5


def cpu_us(work: Callable[[], object], calls: int = 1, budget_s: float = 0.2) -> float:
    """CPU µs per unit of `work`, which does `calls` units at once: the best of five rounds within the budget."""
    work()
    began = time.process_time()
    work()
    once = max(time.process_time() - began, 1e-7)
    loops = max(1, int(budget_s / _ROUNDS / once))
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(loops):
            work()
        best = min(best, time.process_time() - began)
    return best / loops / calls * 1e6


class Rows:
    """What was measured, in order."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, float, str]] = []

    def add(self, what: str, us: float, per: str) -> None:
        """A figure: µs per ``per``."""
        self._rows.append((what, us, per))

    def show(self, json_file: Path | None) -> None:
        """Print a Markdown table; write JSON too if a file is named."""
        loop_us = calibration_us()
        print(f"Python {platform.python_version()}, calibration loop {loop_us:.0f} µs\n")
        print("| what | CPU µs | per |\n|---|--:|---|")
        for what, us, per in self._rows:
            print(f"| {what} | {us:.2f} | {per} |")
        if json_file is not None:
            rows = [{"what": what, "us": round(us, 3), "per": per} for what, us, per in self._rows]
            json_file.write_text(json.dumps({"loop_us": loop_us, "rows": rows}, indent=1) + "\n")


def parser(text: str) -> argparse.ArgumentParser:
    """A command line with ``--json``."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    return made
