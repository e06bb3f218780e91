"""What the documentation says is true: links lead somewhere, flags exist, the demo answers the printed line."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from smg_trio.cli.main import make_parser
from smg_trio.core.engines import EngineProtocol
from smg_trio.launcher.serve_options import make_parser as make_serve_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMPARISON = ROOT / "docs" / "comparison.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        target
        for target in _LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every flag of a parser and of those below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _flags(child)


def test_flags_that_pages_name_exist() -> None:
    known = set(_flags(make_parser(serve=make_serve_parser(EngineProtocol.VLLM))))
    for script in ("bench_gateway.py", "simulate_routing.py"):
        command = [sys.executable, str(ROOT / "scripts" / script), "--help"]
        known |= set(_FLAG.findall(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for page in PAGES:
        ours = [line for line in page.read_text().splitlines() if "smg_trio" in line or "`--" in line]
        named = set(_FLAG.findall("\n".join(line for line in ours if "vllm serve" not in line)))
        others = _FLAGS_OF_OTHERS | (_flags_of_engines() if "howto" in page.parts else set())
        assert named - known - others == set(), page


def test_flags_that_errors_logs_and_help_name_exist() -> None:
    """Of the whole source, so comments and docstrings too."""
    known = set(_flags(make_parser(serve=make_serve_parser(EngineProtocol.VLLM)))) | _flags_of_engines()
    named = {
        (flag, str(module.relative_to(ROOT)))
        for module in (ROOT / "smg_trio").rglob("*.py")
        for flag in _FLAG.findall(module.read_text())
        if not flag.endswith("-") and flag != "--name"  # a prefix, a placeholder
    }
    assert len(named) > 100, "the texts are found"
    assert {(flag, module) for flag, module in named if flag not in known} == set()


def _flags_of_engines() -> set[str]:
    """Guides speak of the engines' flags too."""
    return {flag for file in (ROOT / "tests/launcher").glob("flags-*.txt") for flag in file.read_text().split()}


_FLAGS_OF_OTHERS = {
    "--mm-device-do-normalize",
    "--no-mm-device-do-normalize",
    "--headless",
    "--router-",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--enforce-eager",
    "--limit-mm-per-prompt",
    "--spec",
    "--tokenizer",
}


def test_the_readme_s_handshake_port_is_the_reference_s() -> None:
    command = [sys.executable, "-m", "smg_trio", "handshake-port", "ipc:///tmp/smg-zmq/engine-0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "22670"


@pytest.mark.parametrize("script", ["setup.sh", "test.sh", "demo.sh"])
def test_shell_scripts_are_sound(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / "scripts" / script], check=True, timeout=10)
    assert script == "setup.sh" or f"scripts/{script}" in (ROOT / "README.md").read_text()


async def test_the_demo_answers_the_line_it_prints() -> None:
    command = [sys.executable, "-m", "smg_trio", "demo", "--port", "0", "--step-ms", "1"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        printed = b""
        with trio.fail_after(30):
            while b"Stop with Ctrl-C" not in printed:
                printed += await process.stdout.receive_some()
        words = shlex.split(printed.decode().partition("\n\n")[2].partition("\n\n")[0].replace("\\\n", " "))
        assert words[:2] == ["curl", "-N"]
        url, body = words[2], words[words.index("-d") + 1]
        async with httpx.AsyncClient(timeout=20, verify=False) as client:
            answer = await client.post(url, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        text = "".join(
            choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]
        )
        assert text.endswith("You said: Hi!")
        process.terminate()
        with trio.fail_after(20):
            assert await process.wait() == 0
    finally:
        process.kill()
        await process.wait()


RATIOS = {
    "one stream": "streams-1",
    "32 streams": "streams-32",
    "128 streams": "streams-128",
    "512 streams": "streams-512",
    "128 streams with stop strings": "stops-128",
    "128 streams with tools": "tools-128",
    "128 streams with log probabilities": "logprobs-128",
    "short answers": "one-token",
    "prompts of 1,000 words": "prompt-1k",
    "prompts of 32,000 words": "prompt-32k",
}
"""Rows of the page of comparison, and the loads that they tell of."""


def test_the_comparison_has_the_figures_that_were_measured() -> None:
    medians = json.loads((ROOT / "docs" / "performance.json").read_text())["medians"]
    told = re.findall(
        r"^\| ([^|]+), per (token|request) \| ([\d.]+) \| ([^|]+) \|$", COMPARISON.read_text(), re.MULTILINE
    )
    assert {row[0] for row in told} == set(RATIOS)
    for row, unit, smg, vllm in told:
        costs = {name: one[f"cpu_us_per_{unit}"] for name, one in medians[RATIOS[row]].items()}
        assert float(smg) == pytest.approx(costs["smg-trio"] / costs["smg"], abs=0.006), row
        if vllm != "not measured":
            assert float(vllm) == pytest.approx(costs["smg-trio"] / costs["vllm"], abs=0.006), row


def test_pictures_are_small_and_load_nothing() -> None:
    pictures = sorted((ROOT / "docs" / "tour").iterdir())
    assert sum(path.stat().st_size for path in pictures) < 300_000
    shown = set(re.findall(r"!\[[^\]]+\]\((tour/[^)]+)\)", (ROOT / "docs" / "tour.md").read_text()))
    assert shown == {f"tour/{path.name}" for path in pictures}
    for path in pictures:
        if path.suffix == ".svg":
            assert not re.search(r"url\(\s*['\"]?http|href=|<script", path.read_text()), path
