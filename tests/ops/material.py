"""The ops material, and what its queries name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "docs" / "ops"
DASHBOARD: dict[str, Any] = json.loads((OPS / "dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((OPS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
_SELECTOR = re.compile(r"\b((?:smg|process|python)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
SCRAPED_LABELS = frozenset({"job", "instance"})
"""What Prometheus adds."""


def panels() -> Iterator[dict[str, Any]]:
    """Every panel that shows something."""
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def panel_queries() -> list[tuple[str, str]]:
    """(panel and query, PromQL) of the dashboard, variables as they are."""
    return [
        (f"{panel['title']} {target['refId']}", target["expr"]) for panel in panels() for target in panel["targets"]
    ]


def selectors(query: str) -> list[tuple[str, set[str]]]:
    """Metrics of a query, each with the labels that it is selected by."""
    return [(metric, set(_MATCHER.findall(matchers))) for metric, matchers in _SELECTOR.findall(query)]
