"""The page that is made from the code is the one that is committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from smg_trio.config import flags_of, options

ROOT = Path(__file__).resolve().parents[2]


def make_docs(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "make_docs.py"), *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_the_committed_page_is_up_to_date() -> None:
    done = make_docs("--check")
    assert done.returncode == 0, done.stderr


def test_every_setting_every_command_and_no_path_of_this_machine_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for option in options():
        for flag in flags_of(option):
            assert f"`{flag}`" in page
    for command in ("launch", "serve", "config check", "config show", "demo", "fake-engine", "handshake-port", "chat"):
        assert f"\n### {command}\n" in page
    assert sys.executable not in page
    assert "%(" not in page
