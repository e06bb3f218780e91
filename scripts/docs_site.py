"""Hooks of the documentation site (`mkdocs.yml`): the version in its name, and what only tests read left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_FOR_TESTS = re.compile(r"^<!-- (?:run|not run).*-->\n", re.MULTILINE)
"""What says whether a test runs the commands of the block below (`tests/test_docs_commands.py`)."""


def on_config(config: Any) -> Any:
    """Each version's site says which one it is. Sites of several versions are directories beside each other."""
    text = (Path(config.config_file_path).parent / "smg_trio" / "__init__.py").read_text(encoding="utf-8")
    found = _VERSION.search(text)
    assert found is not None, "smg_trio/__init__.py has a version"
    config.site_name = f"smg-trio {found[1]}"
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page without marks for tests."""
    return _FOR_TESTS.sub("", markdown)
