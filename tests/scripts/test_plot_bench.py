"""The page's figures are those of the file beside it, and the plot shows them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_tables_of_the_page_hold_the_figures_of_the_file() -> None:
    medians = json.loads((DOCS / "performance.json").read_text())["medians"]
    page = (DOCS / "performance.md").read_text()
    rows = re.findall(
        r"^\| ([a-z0-9-]+) \| (smg-trio|smg|vllm) \| ([0-9.]*) \| (\d+) \| \d* \| (\d+) \|", page, re.MULTILINE
    )
    shown = {(load, gateway): rest for load, gateway, *rest in rows if load != "streams-1024"}
    assert shown.keys() == {(load, gateway) for load, by in medians.items() for gateway in by}
    for (load, gateway), (per_token, per_request, per_second) in shown.items():
        figures = medians[load][gateway]
        assert per_request == f"{figures['cpu_us_per_request']:.0f}"
        assert per_second == f"{figures['requests_per_s']:.0f}"
        assert per_token in ("", f"{figures['cpu_us_per_token']:.1f}")


def test_ratios_are_those_of_the_figures() -> None:
    medians = json.loads((DOCS / "performance.json").read_text())["medians"]
    rows = re.findall(
        r"^\| ([a-z0-9-]+) \| ([0-9.]+) \| ([0-9.]*) ?\|$", (DOCS / "performance.md").read_text(), re.MULTILINE
    )
    assert {load for load, *_ in rows} == medians.keys()
    for load, *ratios in rows:
        for peer, ratio in zip(("smg", "vllm"), ratios, strict=True):
            if ratio:
                ours, theirs = (medians[load][gateway]["cpu_us_per_request"] for gateway in ("smg-trio", peer))
                assert ratio == f"{ours / theirs:.2f}", load


def test_a_plot_is_drawn_of_several_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg, merged = tmp_path / "plot.svg", tmp_path / "all.json"
    source = DOCS / "performance.json"
    command = [sys.executable, str(ROOT / "scripts" / "plot_bench.py"), str(source), str(source)]
    subprocess.run([*command, "--svg", str(svg), "--json", str(merged)], check=True, timeout=120)
    assert json.loads(merged.read_text()) == json.loads(source.read_text())
    drawn = svg.read_text()
    for load in json.loads(source.read_text())["medians"]:
        assert f">{load}<" in drawn
