"""What was built, where `nox -s package` has put it: `SMG_TRIO_DIST` names the directory. Skipped without it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.directories import mark_directory

SWITCH = "SMG_TRIO_DIST"
ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs distributions, and time."""
    needs = f"needs built distributions: nox -s package, or {SWITCH}=DIR"
    mark_directory(items, __file__, "package", timeout_s=300, switch=SWITCH, needs=needs)


def only(pattern: str) -> Path:
    """The one file of that pattern among what was built."""
    (path,) = Path(os.environ[SWITCH]).glob(pattern)
    return path


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel."""
    return only("*.whl")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist's tree."""
    directory = tmp_path_factory.mktemp("sdist")
    with tarfile.open(only("*.tar.gz")) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    return tree


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and what it asks for, nothing else."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip = [directory / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", wheel], check=True, cwd=directory)
    subprocess.run([*pip, "check"], check=True, cwd=directory)
    return directory / "bin"
