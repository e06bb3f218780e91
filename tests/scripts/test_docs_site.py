"""The documentation site is complete: every page of docs/ has its place in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for one in nav.values() if isinstance(nav, dict) else nav:
        yield from pages(one)


def test_every_page_is_in_the_navigation() -> None:
    assert sorted(pages(SITE["nav"])) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")
    )


def test_nothing_of_the_site_is_loaded_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["plugins"] == ["search"]
    assert "extra_javascript" not in SITE
    for style in SITE["extra_css"]:
        assert "url(" not in (ROOT / "docs" / style).read_text()
