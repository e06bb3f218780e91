"""What a check found, and how findings are shown. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from smg_trio import __version__


class Check(StrEnum):
    """What is looked at, in the order of the report."""

    SETTINGS = "settings"
    VERSIONS = "versions"
    LIMITS = "limits"
    SECURITY = "security"
    FILES = "files"
    MODEL = "model"
    SOCKETS = "sockets"
    PORTS = "ports"
    ENGINES = "engines"
    DISCOVERY = "discovery"
    GATEWAY = "gateway"


class Status(StrEnum):
    """How a check ended. Only problems make the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: which check it belongs to.
        status: how it is.
        subject: what was looked at: a path, a port, a worker's URL.
        text: what was found.
        remedy: what to do about it; empty if nothing has to be done.
    """

    check: Check
    status: Status
    subject: str
    text: str
    remedy: str = ""


def problems(findings: Sequence[Finding]) -> int:
    """How many findings would keep a launch, or requests to a running gateway, from succeeding."""
    return sum(finding.status is Status.PROBLEM for finding in findings)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The report for programs."""
    return {
        "version": __version__,
        "ok": problems(findings) == 0,
        "problems": problems(findings),
        "warnings": sum(finding.status is Status.WARNING for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def as_text(findings: Sequence[Finding]) -> str:
    """The report for people: a paragraph per check, problems with what to do about them, and a summary."""
    lines = [f"smg-trio doctor {__version__}"]
    for check in Check:
        found = [finding for finding in findings if finding.check is check]
        if found:
            lines += ["", check.value, *(line for finding in found for line in _lines(finding))]
    return "\n".join([*lines, "", _summary(findings)]) + "\n"


def _lines(finding: Finding) -> Iterator[str]:
    yield f"  {finding.status.value:<8} {_printable(f'{finding.subject}: {finding.text}')}"
    if finding.remedy:
        yield f"           -> {_printable(finding.remedy)}"


def _printable(text: str) -> str:
    """On one line, whatever names of files and processes hold."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _summary(findings: Sequence[Finding]) -> str:
    warnings = sum(finding.status is Status.WARNING for finding in findings)
    counts = f"{_count(problems(findings), 'problem')}, {_count(warnings, 'warning')}."
    return f"{counts} See the lines with -> for what to do." if problems(findings) or warnings else counts


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
