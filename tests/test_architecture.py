"""The architecture's promises, as far as a machine can hold them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "smg_trio"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 500
LONGEST_FUNCTION = 60


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_files_and_functions_are_short() -> None:
    too_long = []
    for path in MODULES:
        source = path.read_text()
        lines = source.count("\n")
        if lines > LONGEST_FILE:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for function in _functions(ast.parse(source)):
            length = (function.end_lineno or 0) - function.lineno + 1
            if length > LONGEST_FUNCTION:
                too_long.append(f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {length} lines")
    assert too_long == []


def test_every_module_says_what_it_is_for() -> None:
    assert [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_every_public_thing_has_a_docstring() -> None:
    silent = []
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            if named and not node.name.startswith("_") and not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert silent == []


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "manager"])
def test_no_room_is_a_drawer(name: str) -> None:
    assert [path for path in MODULES if path.stem == name] == []


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed here")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout
