"""A short notation for scripts: ``E["a"|"b","c"] fin=stop(eos)``. Pure.

``|`` parts ticks, ``,`` parts the tokens of a tick, a token is named by its text. ``fin=`` is ``stop(eos)``,
``stop(tok N)``, ``length``, ``abort``, ``error``, ``repetition`` or ``hang``; without it: ``stop(eos)``. What a vLLM
engine since 0.33 says of an error is ``error(code: message)``, or ``error(code, retryable: message)``.
A trailing ``…`` (or ``...``) in place of a tick repeats the last tick forever.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.testing.script import HANG, REPETITION_STOP_REASON, Ending, FixedScript, Script

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest

_SCRIPT = re.compile(r"\s*E\[(?P<ticks>.*)\]\s*(?:fin=(?P<fin>.+?))?\s*", re.DOTALL)
_PART = re.compile(r'\s*(?:"(?P<token>(?:[^"\\]|\\.)*)"|(?P<mark>[|,])|(?P<more>…|\.\.\.))\s*', re.DOTALL)
_STOP_TOKEN = re.compile(r"stop\(tok\s+(\d+)\)")
_ERROR = re.compile(r"error\((?P<code>\w+)(?P<retryable>,\s*retryable)?:\s*(?P<message>.*)\)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class EndlessScript:
    """Says ``token_ticks`` and then the last of them again and again."""

    token_ticks: Sequence[Sequence[int]]
    ending: Ending = HANG

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Yield the ticks, then the last one without end."""
        return itertools.chain(self.token_ticks, itertools.repeat(self.token_ticks[-1]))


def parse_script(notation: str, token_id: Callable[[str], int]) -> Script:
    """Read the notation; ``token_id`` maps a token's text to its id. Raises ValueError with the place."""
    match = _SCRIPT.fullmatch(notation)
    if match is None:
        raise ValueError(f"not a script: {notation!r}; it looks like E[...] fin=...")
    texts, endless = _parse_ticks(match["ticks"])
    ticks = [[token_id(text) for text in tick] for tick in texts]
    if not endless:
        return FixedScript(ticks, parse_ending(match["fin"] or "stop(eos)"))
    if not ticks:
        raise ValueError("an endless script needs a tick to repeat")
    return EndlessScript(ticks)


def parse_ending(notation: str) -> Ending:
    """Read what follows ``fin=``. Raises ValueError."""
    word = notation.strip()
    if word == "hang":
        return HANG
    if word in ("stop(eos)", "stop"):
        return Ending(FinishReason.STOP)
    if word == "repetition":
        return Ending(FinishReason.REPETITION, REPETITION_STOP_REASON)
    stop_token = _STOP_TOKEN.fullmatch(word)
    if stop_token is not None:
        return Ending(FinishReason.STOP, int(stop_token[1]))
    if (error := _ERROR.fullmatch(word)) is not None:
        said = EngineError(error["message"], error["code"], error["retryable"] is not None)
        return Ending(FinishReason.ERROR, error=said)
    if word in ("length", "abort", "error"):
        return Ending(FinishReason(word))
    raise ValueError(f"unknown ending {word!r}")


def _parse_ticks(text: str) -> tuple[list[list[str]], bool]:
    ticks: list[list[str]] = [[]]
    position, endless = 0, False
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or endless:
            raise ValueError(f"unexpected {text[position : position + 20]!r} at {position} of the ticks")
        if part["token"] is not None:
            ticks[-1].append(_ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), part["token"]))
        elif part["mark"] == "|":
            ticks.append([])
        endless = part["more"] is not None
        position = part.end()
    if (endless or len(ticks) == 1) and not ticks[-1]:
        ticks.pop()
    return ticks, endless
