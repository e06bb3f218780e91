"""Clients on Node, each in a script of its own that ends well only if everything was as it must be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import Served, run_command

SCRIPTS = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the scripts and what they import."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    directory = tmp_path_factory.mktemp("node")
    shutil.copytree(SCRIPTS, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    run_command([npm, "install", "--no-audit", "--no-fund", "--no-package-lock"], directory)
    return directory


@pytest.mark.parametrize("script", ["openai", "websocket", "anthropic", "ai_sdk"])
def test_a_node_client_works(served: Served, packages: Path, script: str) -> None:
    assert run_command(["node", f"{script}.mjs", served.url, served.model], packages).endswith("ok\n")
