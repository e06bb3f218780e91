"""What a fake engine says. Pure.

A `Script` proposes ticks of token ids for a request; `play` applies to them the rules by which a real engine
ends a sequence, in the real order (vLLM 0.32 ``check_stop``): nothing before `min_tokens`, then EOS, then stop
ids, then `max_tokens` or the context window, then repetition. So a script may be endless, and may propose more
than will be heard.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.testing.commands import EngineRequest

REPETITION_STOP_REASON = "repetition_detected"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a script ends when no rule of the engine ended it before; ``reason`` None hangs permanently.

    ``error``: what is said of an ERROR ending (vLLM engines since 0.33).
    """

    reason: FinishReason | None = FinishReason.STOP
    stop_reason: int | str | None = None
    error: EngineError | None = None


HANG = Ending(None)


class Script(Protocol):
    """Proposes the answer to one request."""

    @property
    def ending(self) -> Ending:
        """How it ends if no rule of the engine ended it before."""
        ...

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Yield the ids of each step; an empty tick is a step without output. May be endless."""
        ...


ScriptChooser = Callable[[EngineRequest], Script]


@dataclass(slots=True)
class Tick:
    """What one sequence says in one step; ``finish`` is set on its last one, ``hung`` when it waits forever."""

    token_ids: Sequence[int]
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    hung: bool = False
    error: EngineError | None = None


@dataclass(frozen=True, slots=True)
class FixedScript:
    """Says ``token_ticks``, then ends as told; the ending comes with the last tick."""

    token_ticks: Sequence[Sequence[int]]
    ending: Ending = Ending()

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Yield the given ticks."""
        return iter(self.token_ticks)


@dataclass(frozen=True, slots=True)
class EchoScript:
    """Says the last ``tail`` prompt tokens (0: all), without ids that would end it, then EOS.

    A request without EOS hears the tail again and again until `max_tokens`.
    """

    tail: int = 0
    tokens_per_tick: int = 1
    ending: Ending = Ending()

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Yield the prompt's tail, ``tokens_per_tick`` at a time."""
        ending = request.ending_ids | request.masked_token_ids
        said = [token for token in request.prompt_token_ids[-self.tail :] if token not in ending]
        size = self.tokens_per_tick
        while said or request.eos_token_id is not None:
            yield from (said[start : start + size] for start in range(0, len(said), size))
            if request.eos_token_id is not None:
                yield [request.eos_token_id]


@dataclass(frozen=True, slots=True)
class LengthScript:
    """Says pseudo-random ids up to `max_tokens`: the same for the same prompt, media and seed.

    Ids lie in ``first_id``..``last_id``, or in the request's allowed ids, and never end the sequence.
    """

    first_id: int = 0
    last_id: int = 999
    tokens_per_tick: int = 1
    ending: Ending = Ending(FinishReason.LENGTH)

    def ticks(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Yield ids forever, from a linear congruential generator."""
        avoided = request.ending_ids | request.masked_token_ids
        choice = request.allowed_token_ids or range(self.first_id, self.last_id + 1)
        ids = [token for token in choice if token not in avoided] or list(choice)
        state = zlib.crc32(array("q", request.prompt_token_ids).tobytes(), request.seed or 0) ^ request.sight.number
        size, count = self.tokens_per_tick, len(ids)
        while size == 1:  # the load generator's case
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            yield (ids[(state >> 8) % count],)
        while True:
            tick = []
            for _ in range(size):
                state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
                tick.append(ids[(state >> 8) % count])
            yield tick


def text_script(token_ids: Sequence[int], *, tokens_per_tick: int = 1, eos_token_id: int | None = None) -> FixedScript:
    """A script that says ``token_ids`` and then EOS, if there is one."""
    said = [*token_ids] if eos_token_id is None else [*token_ids, eos_token_id]
    return FixedScript([said[i : i + tokens_per_tick] for i in range(0, len(said), tokens_per_tick)])


def play(script: Script, request: EngineRequest, max_model_len: int) -> Iterator[Tick]:
    """Yield what the engine really says: the script cut by the engine's own ending rules.

    The last tick carries the finish. A script that runs out hangs (endless empty ticks) if its ending says so.
    The yielded `Tick` is reused: read it before the next one.
    """
    limit = min(request.max_tokens or max_model_len, max_model_len - len(request.prompt_token_ids))
    rules = _Rules(request, limit)
    tick = Tick(())
    source = iter(script.ticks(request))
    proposed = next(source, None)
    while proposed is not None:
        following = next(source, None)
        rules.hear(proposed, tick)
        if tick.finish is None and following is None and script.ending.reason is not None:
            tick.finish, tick.stop_reason = script.ending.reason, script.ending.stop_reason
            tick.error = script.ending.error
        yield tick
        if tick.finish is not None:
            return
        proposed = following
    if script.ending.reason is not None:
        yield Tick((), script.ending.reason, script.ending.stop_reason, error=script.ending.error)
        return
    tick.token_ids, tick.hung = (), True
    while True:
        yield tick


class _Rules:
    """The ending rules of one sequence and how far it has come."""

    __slots__ = ("_ending", "_eos", "_history", "_limit", "_masked", "_min", "_repetition", "_said")

    def __init__(self, request: EngineRequest, limit: int) -> None:
        self._ending = request.ending_ids
        self._eos = request.eos_token_id
        self._masked = request.masked_token_ids | self._ending
        self._min = request.min_tokens
        self._limit = limit
        self._repetition = request.repetition
        self._history: list[int] = []
        self._said = 0

    def hear(self, proposed: Sequence[int], tick: Tick) -> None:
        """Put what is heard of ``proposed`` and the finish, if any, into ``tick``."""
        size = len(proposed)
        said = self._said
        usual = said >= self._min and said + size < self._limit and self._repetition is None
        if usual and self._ending.isdisjoint(proposed):
            self._said = said + size
            tick.token_ids = proposed
            return
        self._hear_each(proposed, tick)

    def _hear_each(self, proposed: Sequence[int], tick: Tick) -> None:
        heard: list[int] = []
        for token in proposed:
            if self._said < self._min:
                token = self._unmasked(token)
            heard.append(token)
            self._said += 1
            if self._ends(token, tick):
                break
        tick.token_ids = heard

    def _unmasked(self, token: int) -> int:
        while token in self._masked:
            token = token - 1 if token > 0 else max(self._masked) + 1
        return token

    def _ends(self, token: int, tick: Tick) -> bool:
        self._remember(token)
        if self._said >= self._min:
            if token == self._eos:
                tick.finish = FinishReason.STOP
                return True
            if token in self._ending:
                tick.finish, tick.stop_reason = FinishReason.STOP, token
                return True
        if self._said >= self._limit:
            tick.finish = FinishReason.LENGTH
            return True
        if self._repeats():
            tick.finish, tick.stop_reason = FinishReason.REPETITION, REPETITION_STOP_REASON
            return True
        return False

    def _remember(self, token: int) -> None:
        if self._repetition is not None:
            self._history.append(token)

    def _repeats(self) -> bool:
        if self._repetition is None or self._said < self._min:
            return False
        count = self._repetition.get("min_count", 0)
        least = max(1, self._repetition.get("min_pattern_size", 0))
        sizes = range(least, self._repetition.get("max_pattern_size", 0) + 1)
        return any(_ends_in_repetition(self._history, size, count) for size in sizes)


def _ends_in_repetition(history: Sequence[int], size: int, count: int) -> bool:
    if count < 2 or len(history) < size * count:
        return False
    pattern = history[-size:]
    return all(history[-size * (i + 1) : len(history) - size * i] == pattern for i in range(1, count))
