"""Names that a version promised to keep are all there: see docs/stability.md.

A list is what `scripts/list_names.py` printed when the version was made. A name that goes in a later minor version is
taken out of the list, in the same commit that tells of it in docs/upgrading.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted(Path(__file__).parent.glob("*.txt"))
FRAGMENTS = [path for path in sorted((ROOT / "changes").iterdir()) if path.name != "README.md"]
LONGEST_LINE = 128


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The names of this version."""
    command = [sys.executable, str(ROOT / "scripts" / "list_names.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}
    )
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("kept", LISTS, ids=lambda path: path.stem)
def test_no_name_of_an_earlier_version_is_gone(kept: Path, names: set[str]) -> None:
    promised = set(kept.read_text().splitlines())
    assert len(promised) > 500
    assert {name.split()[0] for name in promised} == {"command", "flag", "route", "error", "metric"}
    assert promised - names == set()


def test_entries_of_the_changelog_can_become_one() -> None:
    kinds = {
        one["directory"] for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    }
    page = (ROOT / "docs" / "contributing" / "changelog.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == kinds
    for file in FRAGMENTS:
        assert re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(kinds)})\.md", file.name), f"{file.name}: +NAME.KIND.md"
        lines = file.read_text(encoding="utf-8").splitlines()
        assert lines, f"{file.name} is empty"
        assert all(line and len(line) <= LONGEST_LINE for line in lines), f"{file.name}: one paragraph, short lines"
        assert not lines[0].startswith(("#", "- ", "* ")), f"{file.name}: neither a heading nor a bullet"


def test_entries_have_a_line_to_go_below() -> None:
    marker = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["start_string"]
    assert (ROOT / "CHANGELOG.md").read_text().count(marker) == 1
