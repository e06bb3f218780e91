"""Tokens per second, from counts that are looked at now and then. Pure.

An answer's counts only grow, so what it has made between two looks is a difference: of one in flight the counts now,
of one that has ended in between its last counts, less those of the look before.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from smg_trio.core.events import Usage


Engine = tuple[str, int]
"""The worker's URL and the rank."""


class TokenCount(NamedTuple):
    """One answer's counts so far.

    Attributes:
        answer: the same object at every look.
        engines: worker's URL and rank of each; they share alike in what it makes.
        heard: the engine has said something, so the prompt counts as read.
    """

    answer: Hashable
    engines: Collection[Engine]
    usage: Usage
    heard: bool


@dataclass(slots=True)
class TokenRate:
    """Tokens per second: prompts read, answers made."""

    input: float = 0.0
    output: float = 0.0

    def add(self, tokens_in: float, tokens_out: float) -> None:
        """Count some more."""
        self.input += tokens_in
        self.output += tokens_out


@dataclass(frozen=True, slots=True)
class Rates:
    """Of all answers, and of the engines that made anything. `finished`: answers that ended, per second."""

    total: TokenRate
    by_engine: dict[Engine, TokenRate] = field(default_factory=dict)
    finished: float = 0.0

    def of_worker(self, url: str) -> TokenRate:
        """What its engines make together."""
        rate = TokenRate()
        for (worker, _), one in self.by_engine.items():
            if worker == url:
                rate.add(one.input, one.output)
        return rate

    def of_engine(self, url: str, rank: int) -> TokenRate:
        """What one engine makes."""
        return self.by_engine.get((url, rank), TokenRate())


class RateMeter:
    """Remembers the look before."""

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[int, int]] | None = None
        self._looked_at = 0.0

    def look(self, now: float, in_flight: Iterable[TokenCount], ended: Collection[TokenCount]) -> Rates | None:
        """The rates since the look before, of which there are none at the first one.

        Args:
            now: seconds of a monotonic clock.
            in_flight: all answers in flight.
            ended: those that have ended since the look before.
        """
        before, seconds = self._before, now - self._looked_at
        if before is not None and seconds <= 0:
            return None
        rates = Rates(TokenRate(), {}, 0.0 if before is None else len(ended) / seconds)
        seen: dict[Hashable, tuple[int, int]] = {}
        for count in in_flight:
            seen[count.answer] = _note(rates, count, before, seconds)
        for count in ended:
            _note(rates, count, before, seconds)
        self._before, self._looked_at = seen, now
        return None if before is None else rates


def _note(
    rates: Rates, count: TokenCount, before: dict[Hashable, tuple[int, int]] | None, seconds: float
) -> tuple[int, int]:
    usage = count.usage
    now = (usage.prompt_tokens if count.heard else 0, usage.completion_tokens)
    if before is None:
        return now
    was = before.get(count.answer, (0, 0))
    new_in, new_out = (now[0] - was[0]) / seconds, (now[1] - was[1]) / seconds
    if new_in or new_out:
        rates.total.add(new_in, new_out)
        share = len(count.engines)
        for engine in count.engines:
            rates.by_engine.setdefault(engine, TokenRate()).add(new_in / share, new_out / share)
    return now
