"""The pages that are made from the code are the ones that are committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from smg_trio.api.openapi import document_path
from smg_trio.core import errors
from smg_trio.gateway.routes import ROUTES
from smg_trio.settings.flags import flags_of
from smg_trio.settings.settings import options

ROOT = Path(__file__).resolve().parents[2]


def make_docs(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "make_docs.py"), *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_the_committed_pages_are_up_to_date() -> None:
    done = make_docs("--check")
    assert done.returncode == 0, done.stderr


def test_every_setting_every_command_and_no_path_of_this_machine_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for option in options():
        for flag in flags_of(option):
            assert f"`{flag}`" in page
    for command in (
        "launch",
        "serve",
        "config check",
        "config show",
        "doctor",
        "demo",
        "fake-engine",
        "handshake-port",
        "chat",
    ):
        assert f"\n### {command}\n" in page
    assert sys.executable not in page
    assert "%(" not in page


def test_every_route_and_every_error_is_on_the_page_of_the_http_api() -> None:
    page = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    for route in ROUTES:
        assert f"| `{route.method} {document_path(route.path)}` |" in page
    for fault in (errors.EngineDead, errors.ContextLengthExceeded, errors.ModelNotFound, errors.ShuttingDown):
        assert f"| {fault.status} | `{fault.code}` |" in page
