"""The pages that are made from the code are the ones that are committed."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from smg_trio.api.openapi import document_path
from smg_trio.cli.main import make_parser
from smg_trio.core import errors
from smg_trio.core.engines import EngineProtocol
from smg_trio.gateway.routes import ROUTES
from smg_trio.launcher.serve_options import make_parser as make_serve_parser
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


def test_every_setting_and_no_path_of_this_machine_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for option in options():
        for flag in flags_of(option):
            assert f"`{flag}`" in page
    assert sys.executable not in page
    assert "%(" not in page


def test_every_command_has_a_page_with_all_that_it_takes() -> None:
    """Of the committed files, found without the script that makes them."""
    for words, parser in leaves(make_parser(serve=make_serve_parser(EngineProtocol.VLLM))):
        name = f"commands/{'-'.join(words)}.md"
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert page.startswith(f"# smg-trio {' '.join(words)}\n")
        assert f"]({name})" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
        assert f"\nsmg-trio {' '.join(words)}" in page, "the synopsis"
        assert "| 2 |" in page or "| 1 |" in page, "its own exit codes"
        assert "\n## Examples\n" in page
        assert sys.executable not in page
        settings = {option.name for option in options()}
        for action in parser._actions:
            if action.dest not in {*settings, "help", "smg_flags", "smg_translated"}:
                assert all(f"`{flag}`" in page for flag in action.option_strings), (name, action.option_strings)


def leaves(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Every command that does something."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for name, child in action.choices.items():
            for words, leaf in leaves(child):
                yield [name, *words], leaf
    if not below or parser.get_default("run") is not None:
        yield [], parser


def test_every_route_and_every_error_is_on_the_page_of_the_http_api() -> None:
    page = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    for route in ROUTES:
        assert f"| `{route.method} {document_path(route.path)}` |" in page
    for fault in (errors.EngineDead, errors.ContextLengthExceeded, errors.ModelNotFound, errors.ShuttingDown):
        assert f"| {fault.status} | `{fault.code}` |" in page
