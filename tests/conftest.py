"""Which tests use sockets and processes, and where the reference material lies, if it lies anywhere."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .postgres import PostgresServer, find_programs, running_server

TESTS = Path(__file__).resolve().parent
REFERENCE = Path(os.environ.get("SMG_TRIO_REFERENCE") or TESTS.parents[1] / "shared")
"""Tokenizers and chat templates of other makers, which cannot be shipped."""

DEMO_MODEL = TESTS.parent / "smg_trio" / "testing" / "demo_model"
"""The bundled model's files."""

_UNIT = frozenset(
    {"api", "core", "golden", "history", "parsers", "pipeline", "routing", "settings", "text", "wire", "worker"}
)
"""Rooms whose tests need no server, process or client library: `nox -s unit`."""
_NOT_UNIT = frozenset({"test_real_sockets.py", "test_zmq_links.py", "test_socket_directory.py"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only unit tests are asked for, do not even import the others: that takes longer than many tests."""
    room = collection_path.relative_to(TESTS).parts[:1] if collection_path.is_relative_to(TESTS) else ()
    return True if config.option.markexpr == "not e2e" and room and room[0] not in _UNIT else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything that is no unit test as `e2e`."""
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        if room not in _UNIT or item.path.name in _NOT_UNIT:
            item.add_marker(pytest.mark.e2e)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what was imported and collected.

    Walking it again and again would take a test of many objects ten times as long as the same code outside.
    """
    gc.collect()
    gc.freeze()


_NO_POSTGRES = "PostgreSQL's server is not installed (Debian: postgresql)"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests, each of which takes a URL of its own (`PostgresServer.new_url`)."""
    if find_programs() is None:
        pytest.skip(_NO_POSTGRES)
    with running_server("-c", "fsync=off") as server:
        yield server


@pytest.fixture(scope="session")
def _mortal_server() -> Iterator[PostgresServer]:
    if find_programs() is None:
        pytest.skip(_NO_POSTGRES)
    with running_server() as server:
        yield server


@pytest.fixture
def killable_server(_mortal_server: PostgresServer) -> PostgresServer:
    """A PostgreSQL server as it is by default, which a test may stop and kill."""
    if not _mortal_server.running:
        _mortal_server.start()
    return _mortal_server


def shared_path(*parts: str) -> Path:
    """Path below the reference material; skips the test where it is absent."""
    path = REFERENCE.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"reference material {'/'.join(parts)!r} is not in {REFERENCE.name}/ (SMG_TRIO_REFERENCE)")
    return path
