"""Shell completion: a script that knows every command, flag and choice of this version. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from smg_trio.parsers.registry import reasoning_parser_names, tool_parser_names
from smg_trio.settings.choices import BACKENDS, POLICIES

SHELLS = ("bash", "zsh", "fish")
_KINDS = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "PATH": shtab.FILE, "MODEL": shtab.DIRECTORY}
"""What the words behind an option are, by its metavar."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that completes `parser`'s command line in `shell`, one of `SHELLS`.

    The parser is changed: give it one that nothing is going to be parsed with.
    """
    for action in _actions(parser):
        _say_what_fits(action)
    return str(shtab.complete(parser, shell)).rstrip() + "\n"


def _say_what_fits(action: argparse.Action) -> None:
    """Choices that parsing leaves to later checks, whose words are better, and names of files."""
    known = {
        "backend": BACKENDS,
        "policy": POLICIES,
        "tool_call_parser": tool_parser_names(),
        "reasoning_parser": reasoning_parser_names(),
    }
    if not action.choices and action.dest in known:
        action.choices = known[action.dest]
    if isinstance(action.metavar, str) and action.metavar in _KINDS:
        action.complete = _KINDS[action.metavar]  # type: ignore[attr-defined]  # shtab's own attribute


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    # argparse has no public list of its actions; without it the script lacks hints and knows every flag all the same.
    for action in getattr(parser, "_actions", ()):
        children = [*action.choices.values()] if isinstance(action.choices, dict) else []
        if any(isinstance(child, argparse.ArgumentParser) for child in children):
            for child in children:
                yield from _actions(child)
        else:
            yield action
