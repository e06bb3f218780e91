"""How the command line's help looks, the same under every version of Python, and the exit codes it tells of. Pure."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import Any

EXIT_CODES = {
    0: "success; the gateway drained",
    1: "failed, or a gateway was cut before its answers had ended",
    2: "wrong usage or setting; nothing was started",
    3: "`top --once`: the gateway answers, but is not ready",
    130: "interrupted (Ctrl-C) before there was something to drain",
}
"""What a command ends with; `serve` ended by signal N ends with 128 + N."""
_SIGNALLED = "128+N  serve was ended by signal N (143: SIGTERM), after its drain"
_HELP_COLUMN = 32
_INDENT = "  "


class HelpFormatter(argparse.HelpFormatter):
    """Flags of one option share a metavar, a switch and its opposite are one word, and no line passes the width.

    A text is several paragraphs where empty lines part them; lines that begin with spaces stay as they are. Three of
    argparse's methods are replaced, none of its private attributes is used.
    """

    def __init__(self, prog: str) -> None:
        self._columns = shutil.get_terminal_size().columns - 2
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=self._columns)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        flags = _flags(action)
        flags[-1] += _values(action)
        joined = ", ".join(flags)
        # One flag per line where they do not fit beside each other: no flag is ever broken at a hyphen.
        return joined if len(_INDENT + joined) <= self._columns else f",\n{_INDENT}".join(flags)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose help, and that of the commands below it, is a `HelpFormatter`'s."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**({"formatter_class": HelpFormatter} | keywords))


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    value = action.metavar or ("{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper())
    return f" {value} [{value} ...]" if action.nargs == "+" else f" {value}"


def _flags(action: argparse.Action) -> list[str]:
    flags = list(action.option_strings)
    if isinstance(action, argparse.BooleanOptionalAction):
        opposites = {"--no-" + flag.removeprefix("--") for flag in flags}
        flags = ["--[no-]" + flag.removeprefix("--") for flag in flags if flag not in opposites]
    return flags


def _filled(paragraph: str, width: int, indent: str) -> str:
    if any(line.startswith(" ") for line in paragraph.splitlines()):
        return paragraph
    words = " ".join(paragraph.split())
    return textwrap.fill(
        words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def exit_codes() -> str:
    """The exit codes as a paragraph of a help text."""
    lines = [f"  {code:<5}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["exit codes:", *lines, f"  {_SIGNALLED}"])
