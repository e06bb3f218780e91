"""The troubleshooting page quotes what the program really says: each line is found among the texts in the code."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "howto" / "keys-and-tls.md"]
_LOG_LINE = re.compile(r"(?:DEBUG|INFO|WARN|ERROR) smg_trio[\w.]*: (.*)")
_COMPLAINT = re.compile(r"smg-trio: error: (--[\w-]+)(?: \(from [^)]+\))?: (.*)")
_HOLE = re.compile(r"%(?:\.\d)?[sdgr]")
_VALUE = re.compile(r"\w+://\S+|/[\w./-]+|`[^`]*`|smg\.toml(: \w+)?|--[\w-]+")
_NAMES = {
    "vllm", "tokenspeed", "ConnectionRefusedError", "Errno", "HELLO", "READY", "SIGTERM", "error", "ready", "not", "gw",
    "example", "chatcmpl", "image", "uint",
}  # fmt: skip
"""Values that stand in quotations."""
LEAST_OWN = 8
"""Characters of a text in the code that must be its own, not its values, for a quotation to count as found."""


def _quoted() -> Iterator[str]:
    for page in PAGES:
        for kind, block in re.findall(r"```(text|json)\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if kind == "json":
                    yield json.loads(line)["error"]["message"]
                elif found := _LOG_LINE.fullmatch(line):
                    yield found[1]
                else:
                    complaint = _COMPLAINT.fullmatch(line)
                    assert complaint is not None, f"neither a log line nor a complaint: {line}"
                    yield complaint[2]


def _texts(tree: ast.AST) -> Iterator[list[str | None]]:
    """Every text of a module, as pieces; None stands for a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield [
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else None
                for part in node.values
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            pieces: list[str | None] = []
            for piece in _HOLE.split(node.value):
                pieces += [piece, None]
            yield pieces[:-1]


@cache
def _known_texts() -> list[list[str | None]]:
    """Each text of the code, and what the system says of failed calls."""
    texts: list[list[str | None]] = [[os.strerror(number)] for number in errno.errorcode]
    for path in sorted((ROOT / "smg_trio").rglob("*.py")):
        pieces_of = _texts(ast.parse(path.read_text()))
        texts.extend(pieces for pieces in pieces_of if sum(len(piece) for piece in pieces if piece) >= LEAST_OWN)
    return texts


def _spans(pieces: list[str | None], text: str) -> Iterator[tuple[int, int]]:
    """Where the pieces of one text stand in a quotation, if they stand there in order and end at ends of words."""
    if not all(piece in text for piece in pieces if piece):
        return
    ends = ("" if pieces[0] is None else r"(?<!\w)", "" if pieces[-1] is None else r"(?!\w)")
    middle = "".join(".*?" if piece is None else f"({re.escape(piece)})" for piece in pieces)
    if found := re.search(ends[0] + middle + ends[1], text):
        yield from (found.span(group) for group in range(1, len(found.groups()) + 1))


def unknown_words(text: str) -> list[str]:
    """The words of a quotation that no text of the code accounts for; values (addresses, names, numbers) are none."""
    known: set[int] = set()
    for pieces in _known_texts():
        for span in _spans(pieces, text):
            known.update(range(*span))
    values = [found.span() for found in _VALUE.finditer(text)]
    return [
        word[0]
        for word in re.finditer(r"[A-Za-z]{2,}", text)
        if not known.issuperset(range(*word.span()))
        and word[0] not in _NAMES
        and not any(start <= word.start() < end for start, end in values)
    ]


@pytest.mark.parametrize("text", sorted(set(_quoted())))
def test_what_is_quoted_is_what_the_program_says(text: str) -> None:
    assert unknown_words(text) == []


def test_what_the_program_does_not_say_is_noticed() -> None:
    assert unknown_words("rank 0 of ipc:///x is lost: the engine closed its connection") == []
    assert unknown_words("rank 0 of ipc:///x is gone: the engine closed its connection") == ["is", "gone"]
    assert len(unknown_words("the engine has gone for a walk")) > 3


def test_codes_and_reasons_of_the_headings_exist() -> None:
    reference = (ROOT / "docs" / "http-api.md").read_text()
    headings = re.findall(r"^### (\d{3}) `(\w+)`", PAGES[0].read_text(), re.MULTILINE)
    assert len(headings) > 8
    for status, code in headings:
        assert f"| {status} | `{code}` |" in reference
