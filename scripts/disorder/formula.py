"""What the soak's engines say: tokens that follow from a request's seed, so that a lost or foreign one is seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smg_trio.core.outputs import FinishReason
from smg_trio.testing.script import Ending

if TYPE_CHECKING:
    from smg_trio.testing.commands import EngineRequest
    from smg_trio.text.tokenizer import Tokenizer

LENGTH = Ending(FinishReason.LENGTH)
WORDS = 1400
"""Ids below are ordinary tokens of the demo model, bytes that are no whole characters among them."""


def token_of(seed: int, position: int) -> int:
    """The token at a position of the stream with that seed."""
    return (seed * 389 + position * 7 + position * position % 11) % WORDS


@dataclass(frozen=True, slots=True)
class FormulaScript:
    """Says `token_of` its request's seed, without end."""

    ending: Ending = LENGTH

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """One token per tick."""
        seed, position = request.seed or 0, 0
        while True:
            yield (token_of(seed, position),)
            position += 1


def compare(expected: list[int], found: list[int], text: str, tokenizer: Tokenizer, finish: Any, usage: Any) -> str:
    """What is wrong with a whole response, or nothing."""
    if found != expected:
        place = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
        return f"{len(found)} tokens of {len(expected)}, first difference at {place}"
    if text != tokenizer.decode(expected):
        return "the text is not the tokens' text"
    if finish != "length":
        return f"ended with {finish}"
    if usage is None or usage["completion_tokens"] != len(expected):
        return f"usage {usage}"
    return ""
