"""The names of this program's classes, which no client should ever read."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "smg_trio"
_TELLING = re.compile(r"_\w+|[A-Z][a-z0-9]+[A-Z]\w*")
"""Names that are no words of their own: `Note` may stand in a text, `TextParts` and `_Given` may not."""


@lru_cache(maxsize=1)
def own_class_names() -> frozenset[str]:
    """Every class of the package whose name is no ordinary word; fakes have the names of what they stand for."""
    product = (path for path in PACKAGE.rglob("*.py") if PACKAGE / "testing" not in path.parents)
    trees = (ast.parse(path.read_text("utf-8")) for path in product)
    names = (node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return frozenset(name for name in names if _TELLING.fullmatch(name))


def own_class_in(text: str) -> str | None:
    """A class of the package that a text names."""
    return next((word for word in re.findall(r"\w+", text) if word in own_class_names()), None)
