"""Shell text taken apart, as far as documentation goes: single commands, and their words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

_SUBSTITUTED = re.compile(r"\$\(([^()]*)\)")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_][\w#%/*.-]*\}?|\$(?=\w)")
_BETWEEN = re.compile(r"&&|\|\||;|\||&(?=\s|$)|\n")
_ASSIGNED = re.compile(r"^\s*(?:[A-Z_]+=(?:\"[^\"]*\"|\S*)\s+)+(?=\S)")
_REDIRECTED = re.compile(r"\d?>>?\s*(?:&\d|\S+)")
_KEYWORD = re.compile(r"^\s*(?:until|while|do|then|exec|eval|!)\s+")


def parts_of(text: str) -> Iterator[str]:
    """Every command of a shell text, also those within `$(…)`, without their redirections."""
    text = text.replace("\\\n", " ")
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    # Quoted texts, such as JSON bodies, may hold anything that would otherwise part commands.
    quoted = re.findall(r"'[^']*'", text)
    for number, one in enumerate(quoted):
        text = text.replace(one, f"QUOTED{number}Q", 1)
    while found := _SUBSTITUTED.search(text):
        yield from parts_of(_restored(found[1], quoted))
        text = text[: found.start()] + "22670" + text[found.end() :]
    for part in _BETWEEN.split(text):
        command = _restored(_REDIRECTED.sub("", part.split(" #")[0]), quoted).strip()
        while shorter := _KEYWORD.sub("", _ASSIGNED.sub("", command)):
            if shorter == command:
                yield command
                break
            command = shorter


def _restored(text: str, quoted: list[str]) -> str:
    for number, one in enumerate(quoted):
        text = text.replace(f"QUOTED{number}Q", one)
    return text


def words_of(command: str) -> list[str]:
    """The words of one command; variables stand for some word."""
    return shlex.split(_VARIABLE.sub("value", command))
