"""The five kinds of plug-in: their groups, the flags that name them, and the names that are built in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from smg_trio.parsers.registry import reasoning_parser_names, tool_parser_names
from smg_trio.routing import policies

JWT: Final = "jwt"
"""The built-in ``--auth``."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind.

    Attributes:
        table: what a plug-in file calls its table of them; the group's name behind ``smg_trio.``.
        word: one of them, in words.
        flag: names one.
        built_in: names that are no plug-ins.
    """

    table: str
    word: str
    flag: str
    built_in: Callable[[], Collection[str]]

    @property
    def group(self) -> str:
        """The entry-point group."""
        return f"smg_trio.{self.table}"


TOOL_PARSER: Final = Kind("tool_parsers", "tool parser", "--tool-call-parser", tool_parser_names)
REASONING_PARSER: Final = Kind("reasoning_parsers", "reasoning parser", "--reasoning-parser", reasoning_parser_names)
POLICY: Final = Kind("policies", "policy", "--policy", lambda: list(policies.by_name))
AUTH: Final = Kind("auth", "auth", "--auth", lambda: [JWT])
HOOK: Final = Kind("hooks", "hook", "--hook", list)
KINDS: Final = (TOOL_PARSER, REASONING_PARSER, POLICY, AUTH, HOOK)
