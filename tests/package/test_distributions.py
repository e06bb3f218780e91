"""What the wheel and the sdist hold, and that the one can be built from the other."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

from smg_trio import __version__

from .conftest import ROOT


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"smg_trio-{__version__}.dist-info"
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "smg_trio").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(info)} == ours
    assert {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")} == {
        name for name in names if name.startswith(info)
    }
    assert {"smg_trio/py.typed", "smg_trio/testing/demo_model/tokenizer.json"} <= names
    assert wheel.name == f"smg_trio-{__version__}-py3-none-any.whl"


def test_the_metadata_is_true(wheel: Path) -> None:
    told = metadata(wheel)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("smg-trio", __version__, "Apache-2.0")
    assert told["Requires-Python"] == project["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in (told.get_all("Classifier") or [])
    required = [line for line in told.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert len(required) == len(project["dependencies"])
    assert not [line for line in required if line.startswith(("pytest", "ruff", "mypy", "hypothesis", "nox"))]


def test_the_sdist_builds_the_same_wheel(wheel: Path, source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True)
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert one.namelist() == other.namelist()
        assert [name for name in one.namelist() if one.read(name) != other.read(name)] == []


def test_every_test_is_in_the_sdist_and_can_be_collected_there(source: Path) -> None:
    def collected(tree: Path) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout[-4000:]
        # Without their parameters: some are made of reference material, which lies beside one of the trees only.
        return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}

    there = collected(source)
    assert there == collected(ROOT)
    assert len(there) > 1000


def test_the_docs_that_come_with_the_sdist_are_whole(source: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_docs.py", "-k", "not demo"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
