"""No error that a client may read is worded after a class of the program: checked where errors are made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.own_classes import PACKAGE, own_class_in, own_class_names

CLIENT_FACING = sorted(
    path.relative_to(PACKAGE).as_posix()
    for room in ("api", "text", "parsers", "pipeline", "routing", "history", "gateway")
    for path in (PACKAGE / room).rglob("*.py")
)
_MAKERS = ("refuse", "_refuse")
_FOR_AUTHORS = ("PluginMistake",)
"""What authors of plug-ins read in the log, and clients never."""


def errors_made(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that make what is raised, and those of the functions that make refusals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            if not (isinstance(node.exc.func, ast.Name) and node.exc.func.id in _FOR_AUTHORS):
                yield node.exc
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MAKERS:
            yield node


@pytest.mark.parametrize("name", CLIENT_FACING)
def test_no_error_is_worded_after_a_class(name: str) -> None:
    for call in errors_made(ast.parse((PACKAGE / Path(name)).read_text("utf-8"))):
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            for node in ast.walk(argument):
                names_a_class = isinstance(node, ast.Attribute) and node.attr in (
                    "__name__",
                    "__class__",
                    "__qualname__",
                )
                assert not names_a_class, f"{name}:{node.lineno}"
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert own_class_in(node.value) is None, f"{name}:{node.lineno}"


def test_class_names_are_found_in_texts() -> None:
    assert {"TextParts", "_Given", "InvalidRequest"} <= own_class_names()
    assert own_class_in("'smg_trio.text.message_forms.TextParts object' has no element 0") == "TextParts"
    assert own_class_in("A note on the text parts of a request.") is None
