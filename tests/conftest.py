"""Shared fixtures: where the reference material lies, if it lies anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_ROOT = Path(__file__).resolve().parents[1].parent / "shared"


def shared_path(*parts: str) -> Path:
    """Path below the reference material beside the project; skips the test where it is absent."""
    path = SHARED_ROOT.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"reference material {'/'.join(parts)!r} is not beside this checkout")
    return path
