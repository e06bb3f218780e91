"""How the command line's help looks, the same under every version of Python, and the exit codes it tells of. Pure."""

from __future__ import annotations

import argparse
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
_NARROWEST_COLUMN = 20


class HelpFormatter(argparse.HelpFormatter):
    """Flags of one option share a metavar, a switch and its opposite are one word, and no line passes the width.

    A text is several paragraphs where empty lines part them; lines that begin with spaces stay as they are.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN)
        self._action_max_length = _NARROWEST_COLUMN - 2

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        return ", ".join(_flags(action)) + self._values(action)

    def _values(self, action: argparse.Action) -> str:
        if action.nargs == 0:
            return ""
        return " " + self._format_args(action, self._get_default_metavar_for_optional(action))

    def _format_action(self, action: argparse.Action) -> str:
        shown = super()._format_action(action)
        first, newline, rest = shown.partition("\n")
        if len(first) <= self._width or not action.option_strings:
            return shown
        # One flag per line where they do not fit beside each other: no flag is ever broken at a hyphen.
        indent = " " * self._current_indent
        flags = _flags(action)
        lines = [indent + flag + "," for flag in flags[:-1]] + [indent + flags[-1] + self._values(action)]
        return "\n".join(lines) + newline + rest

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose help, and that of the commands below it, is a `HelpFormatter`'s."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**({"formatter_class": HelpFormatter} | keywords))

    def format_help(self) -> str:
        """The help; laid out by argparse's own formatter where `HelpFormatter` does not fit this Python's argparse."""
        try:
            return super().format_help()
        except (AttributeError, TypeError):
            self.formatter_class = argparse.RawDescriptionHelpFormatter
            return super().format_help()


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
