"""Which tests use sockets and processes, and where the reference material lies, if it lies anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything that is no unit test as `e2e`."""
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        if room not in _UNIT or item.path.name in _NOT_UNIT:
            item.add_marker(pytest.mark.e2e)


def shared_path(*parts: str) -> Path:
    """Path below the reference material; skips the test where it is absent."""
    path = REFERENCE.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"reference material {'/'.join(parts)!r} is not in {REFERENCE.name}/ (SMG_TRIO_REFERENCE)")
    return path
