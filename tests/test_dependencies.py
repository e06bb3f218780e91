"""What is imported is declared, and what is private in a dependency may go without taking the gateway along."""

from __future__ import annotations

import ast
import importlib.util
import logging
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest
import tokenizers

from smg_trio.cli.completion import SHELLS, completion_script
from smg_trio.core.errors import InvalidRequest
from smg_trio.gateway.observability import access_log
from smg_trio.settings.help_text import Parser
from smg_trio.text.bpe.pretokens import find_pretokenizer
from smg_trio.text.components import component_steps
from smg_trio.text.token_pieces import find_pieces

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OURS = {"smg_trio", "tests", "scripts", *(path.stem for path in (ROOT / "scripts").iterdir())}
OPTIONAL = {"top", "mistral", "tracing", "tracing-grpc", "zstd", "images", "postgres", "jwt", "mcp"}
"""Extras that the package looks for when it needs them."""
NOT_OF_THE_SUITE = {"interop", "clients", "browser"}
"""Folders whose sessions install more."""


def names_of(requirements: list[str]) -> set[str]:
    """The packages that requirements name, in the one spelling that indexes use."""
    return {re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", line)[0]).lower() for line in requirements}


def imported(directory: str) -> Iterator[tuple[str, Path]]:
    """Every module of another package that is imported below a directory, with a file that does."""
    for path in sorted((ROOT / directory).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            else:
                continue
            for module in modules:
                name = module.partition(".")[0]
                if name not in sys.stdlib_module_names | OURS | {"compression"}:  # of Python 3.14
                    yield name, path


def undeclared(directory: str, declared: set[str], without: set[str] = frozenset()) -> set[str]:
    """Imports below a directory of which no declared package is the origin."""
    origins = packages_distributions()
    missing = set()
    for name, path in imported(directory):
        if path.relative_to(ROOT / directory).parts[0] in without:
            continue
        if not names_of(origins.get(name, [name])) & declared:
            missing.add(f"{name} in {path.relative_to(ROOT)}")
    return missing


def test_what_the_package_imports_is_declared() -> None:
    declared = names_of(PROJECT["dependencies"]) | names_of([line for extra in OPTIONAL for line in EXTRAS[extra]])
    assert not undeclared("smg_trio", declared)


def test_what_the_tests_import_is_declared() -> None:
    assert not undeclared("tests", names_of(PROJECT["dependencies"]) | names_of(EXTRAS["dev"]), NOT_OF_THE_SUITE)


def test_what_is_optional_is_in_the_development_tools_too() -> None:
    assert names_of([line for extra in OPTIONAL for line in EXTRAS[extra]]) <= names_of(EXTRAS["dev"])


def loaded_anew(name: str) -> ModuleType:
    """A second copy of a module of ours, as a new process would load it; the first stays where it is."""
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_without_the_private_parser_patterns_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("re._parser")
    monkeypatch.setitem(sys.modules, "re._parser", None)
    regexes = loaded_anew("smg_trio.api.parameters.regexes")
    assert regexes._take_apart is re.compile
    assert regexes.check_regex(r"[a-z]+\p{L}", "regex") == r"[a-z]+\p{L}"
    for broken in ("(a", "a)", "[a", "*a", "a{3,2}"):
        with pytest.raises(InvalidRequest, match="does not compile"):
            regexes.check_regex(broken, "regex")


def test_msgpack_in_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fallback = importlib.import_module("msgpack.fallback")
    assert msgpack.Packer is not fallback.Packer
    monkeypatch.setattr(msgpack, "Packer", fallback.Packer)
    with pytest.raises(ImportError, match="C extension is missing"):
        loaded_anew("smg_trio.wire.packing")


class _Opaque:
    """A tokenizer's part of which nothing can be asked."""

    def __init__(self, state: object) -> None:
        self._state = state

    def __getstate__(self) -> object:
        if isinstance(self._state, Exception):
            raise self._state
        return self._state


class _Opaquely:
    """A tokenizer with such parts."""

    def __init__(self, backend: tokenizers.Tokenizer, state: object) -> None:
        self._backend = backend
        self._part = _Opaque(state)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name in {"normalizer", "pre_tokenizer", "post_processor", "decoder"} and found is not None:
            return self._part
        return found


@pytest.mark.parametrize("state", [AttributeError("gone"), b"\x80\x04N.", {"a": 1}, None, b"{}", b"[1]"])
def test_where_the_parts_of_a_tokenizer_are_opaque_its_file_is_read(state: object) -> None:
    for path in sorted((ROOT / "tests" / "golden" / "tokenizers").glob("**/tokenizer.json")):
        backend = tokenizers.Tokenizer.from_file(str(path))
        opaque: Any = _Opaquely(backend, state)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            assert component_steps(opaque, part) == component_steps(backend, part)
        assert (find_pieces(opaque, frozenset()) is None) == (find_pieces(backend, frozenset()) is None)
        assert (find_pretokenizer(opaque) is None) == (find_pretokenizer(backend) is None)


def test_an_access_record_has_every_field_of_this_pythons_records() -> None:
    class Nothing:
        def members(self) -> str:
            return ""

    fields: Any = Nothing()
    ours = access_log._record(logging.INFO, "said", fields).__dict__
    theirs = access_log.logger.makeRecord(
        access_log.logger.name, logging.INFO, access_log.__file__, 0, "said", (), None, "end", {"fields": fields}
    ).__dict__
    moment = {"created", "msecs", "relativeCreated", "process", "processName", "thread", "threadName", "taskName"}
    assert ours.keys() == theirs.keys()
    assert {key for key in ours if ours[key] != theirs[key]} <= moment


def sample_parser() -> Parser:
    """A command line with a command below it."""
    parser = Parser(prog="sample")
    parser.add_argument("--level", choices=("high", "low"), help="how much")
    below = parser.add_subparsers().add_parser("serve", help="serves")
    below.add_argument("--file", metavar="FILE")
    return parser


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_needs_no_private_part_of_argparse(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg_trio.cli.completion.getattr", lambda *_: (), raising=False)
    script = completion_script(sample_parser(), shell)
    assert all(word in script for word in ("level", "serve", "file", "high"))


def test_lower_bounds_are_all_named() -> None:
    """`nox -s lowest` installs them."""
    for line in PROJECT["dependencies"] + EXTRAS["dev"]:
        assert ">=" in line, line
