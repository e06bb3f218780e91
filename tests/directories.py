"""Markers for whole directories of tests that need more than the dev extras."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def mark_directory(
    items: list[pytest.Item],
    here: str,
    marker: str,
    *,
    timeout_s: float | None = None,
    switch: str = "",
    needs: str = "",
) -> None:
    """Mark the tests below a conftest.

    Args:
        items: as pytest collected them.
        here: the conftest's ``__file__``.
        marker: its name.
        timeout_s: of each test.
        switch: the tests are skipped unless this variable is set.
        needs: what for, for the reason.
    """
    directory = Path(here).parent
    for item in items:
        if directory not in item.path.parents:
            continue
        item.add_marker(getattr(pytest.mark, marker))
        if timeout_s is not None:
            item.add_marker(pytest.mark.timeout(timeout_s))
        if switch and not os.environ.get(switch):
            item.add_marker(pytest.mark.skip(reason=needs))
