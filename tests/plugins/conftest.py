"""Distributions that are not there: their metadata and modules in a folder on ``sys.path``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class FakeDistributions:
    """Installs distributions into a folder. Modules that they bring are forgotten at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: set[str] = set()

    def install(
        self, distribution: str, entry_points: dict[str, dict[str, str]], *, version: str = "1.0", **modules: str
    ) -> None:
        """A distribution with these entry points, by group, and these modules, by name, with their source."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = []
        for group, names in entry_points.items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(source)
            self.modules.add(name)


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDistributions]:
    """A folder of installed distributions, on the path while the test runs."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    fake = FakeDistributions(folder)
    yield fake
    for name in fake.modules:
        sys.modules.pop(name, None)
