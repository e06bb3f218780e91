"""What the documentation says is true: links lead somewhere, commands parse, the demo answers the printed line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio

from smg_trio.cli import make_parser
from smg_trio.config import flags_of, options
from smg_trio.launcher.serve_options import parse_serve

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
_BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        target
        for target in _LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def _commands(page: Path) -> list[list[str]]:
    """Every `python -m smg_trio …` of the page's bash blocks, as words after the module's name."""
    found = []
    for block in _BLOCK.findall(page.read_text()):
        text = block.replace("\\\n", " ").replace("&\n", "\n")
        for line in text.splitlines():
            line = re.sub(r'"?\$\([^)]*\)"?', "22670", line.split(" #")[0])
            if "python -m smg_trio" in line:
                words = shlex.split(line.replace("$MODEL", "/model"))
                found.append(words[words.index("smg_trio") + 1 :])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_understood(page: Path) -> None:
    for words in _commands(page):
        if words[0] == "serve":
            parse_serve(words[1:], {})
        elif "--help" not in words:
            make_parser().parse_args(words)


def test_flags_that_pages_name_exist() -> None:
    help_text = "".join(
        subprocess.run(
            [sys.executable, "-m", "smg_trio", *words, "--help"], capture_output=True, text=True, check=False
        ).stdout
        for words in ([], ["launch"], ["demo"], ["fake-engine"], ["serve"], ["chat"], ["top"], ["config", "show"])
    )
    bench = [sys.executable, str(ROOT / "scripts" / "bench_gateway.py"), "--help"]
    help_text += subprocess.run(bench, capture_output=True, text=True, check=True).stdout
    known = {flag for option in options() for flag in flags_of(option)} | set(_FLAG.findall(help_text))
    for page in PAGES:
        ours = [line for line in page.read_text().splitlines() if "smg_trio" in line or "`--" in line]
        named = set(_FLAG.findall("\n".join(line for line in ours if "vllm serve" not in line)))
        assert named - known - _FLAGS_OF_OTHERS == set(), page


_FLAGS_OF_OTHERS = {
    "--headless",
    "--router-",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--enforce-eager",
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
