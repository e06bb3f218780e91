"""Which tests of the deployment files need programs of their own: `nox -s deploy` sets `SMG_TRIO_DEPLOY`."""

from __future__ import annotations

import os
import shutil

import pytest

SWITCH = "SMG_TRIO_DEPLOY"


def program(name: str, *, slow: bool = False) -> str:
    """Path of a program; skips the test where it is not installed, or where it takes long and nobody asked for it."""
    if slow and not os.environ.get(SWITCH):
        pytest.skip(f"takes its time: nox -s deploy, or {SWITCH}=1")
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed here")
    return path
