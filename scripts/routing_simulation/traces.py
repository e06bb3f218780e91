"""Traces: sessions that share prefixes, made from a seed, written and read as lines of JSON.

A prompt is a path of segments: shared ones (a system prompt, a document) and, last, the session's own, which grows by
what the user says and what the engine answers. A segment is always used from its first block on, so what an engine
has of it is a number of blocks, and eviction, which takes the tail of a sequence first, lowers that number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

BLOCK = 16
"""Tokens per block."""


class Turn(NamedTuple):
    """One request of a session. ``pause``: seconds after the previous answer; ``added``, ``answer``: tokens."""

    pause: float
    added: int
    answer: int


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that follow each other.

    Attributes:
        at: second of its first request.
        prefix: (segment, blocks) that it shares with others, from the first token on.
        turns: its requests; each prompt is all that was said before and `Turn.added` more tokens.
    """

    at: float
    prefix: Sequence[tuple[str, int]]
    turns: Sequence[Turn]


def write(sessions: Iterable[Session], file: Path) -> None:
    """One line of JSON per session."""
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in sessions))


def read(file: Path) -> list[Session]:
    """What `write` has written. Raises ValueError, TypeError or KeyError for a line of another shape."""
    return [_session(json.loads(line)) for line in file.read_text().splitlines() if line]


def _session(raw: Mapping[str, object]) -> Session:
    prefix, turns = raw["prefix"], raw["turns"]
    if not isinstance(prefix, list) or not isinstance(turns, list) or not isinstance(raw["at"], (int, float)):
        raise TypeError(f"not a session: {raw}")
    return Session(float(raw["at"]), [(name, blocks) for name, blocks in prefix], [Turn(*turn) for turn in turns])


def _tokens(random: Random, mean: float, spread: float) -> int:
    """A number of tokens around `mean`, with a long tail upwards: at least 8, at most 12 times the mean."""
    return int(min(max(8.0, random.lognormvariate(0.0, spread) * mean / 2.718281828 ** (spread**2 / 2)), 12 * mean))


def _arrivals(random: Random, rate: float, seconds: float) -> Iterator[float]:
    at = random.expovariate(rate)
    while at < seconds:
        yield round(at, 4)
        at += random.expovariate(rate)


def chat(random: Random, rate: float, seconds: float) -> list[Session]:
    """Chats over 12 system prompts, half of them over one; a quarter ask once, the others two to six times."""
    sizes = [96] + [random.randrange(40, 150) for _ in range(11)]
    sessions = []
    for at in _arrivals(random, rate, seconds):
        which = 0 if random.random() < 0.5 else random.randrange(1, 12)
        turns = 1 if random.random() < 0.25 else random.randint(2, 6)
        sessions.append(
            Session(
                at,
                [(f"system{which}", sizes[which])],
                [
                    Turn(round(random.expovariate(1 / 8), 3), _tokens(random, 850, 0.7), _tokens(random, 320, 0.6))
                    for _ in range(turns)
                ],
            )
        )
    return sessions


def documents(random: Random, rate: float, seconds: float) -> list[Session]:
    """Questions about long documents: each is asked about by several users for a while, some over and over."""
    sessions = []
    for number, start in enumerate(_arrivals(random, rate / 4, seconds)):
        blocks = _tokens(random, 10_000, 0.6) // BLOCK
        at = start
        for _ in range(1 + int(random.expovariate(1 / 3))):
            turns = [
                Turn(round(random.expovariate(1 / 25), 3), _tokens(random, 120, 0.8), _tokens(random, 150, 0.6))
                for _ in range(random.randint(1, 3))
            ]
            sessions.append(Session(round(at, 4), [("instructions", 40), (f"document{number}", blocks)], turns))
            at += random.expovariate(1 / 30)
    return sorted((one for one in sessions if one.at < seconds), key=lambda one: one.at)


def agents(random: Random, rate: float, seconds: float) -> list[Session]:
    """Tasks of agents: each starts up to 12 sub-tasks together, which share what the task has read; short pauses."""
    sessions = []
    for number, start in enumerate(_arrivals(random, rate / 6, seconds)):
        kind = random.randrange(4)
        shared = [(f"tools{kind}", 250 + 50 * kind), (f"task{number}", _tokens(random, 2_500, 0.7) // BLOCK)]
        for _ in range(random.randint(1, 12)):
            turns = [
                Turn(round(random.expovariate(1 / 2), 3), _tokens(random, 350, 1.0), _tokens(random, 120, 0.7))
                for _ in range(random.randint(1, 10))
            ]
            sessions.append(Session(round(start + random.random() * 0.2, 4), shared, turns))
    return sorted(sessions, key=lambda one: one.at)


KINDS: Mapping[str, Callable[[Random, float, float], list[Session]]] = {
    "chat": chat,
    "documents": documents,
    "agents": agents,
}
"""Makers by name: (random, sessions per second, seconds) → sessions in order of their start."""


@dataclass(slots=True)
class Totals:
    """Sums over a trace: requests, prompt tokens, and those that one cache without end would have had."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0


def totals(sessions: Iterable[Session]) -> Totals:
    """What of a trace can be cached at all, in the order of the sessions' starts."""
    sums, known = Totals(), dict[str, int]()
    for session in sessions:
        shared = sum(blocks for _, blocks in session.prefix)
        hit = 0
        for name, blocks in session.prefix:
            hit += min(known.get(name, 0), blocks)
            known[name] = max(known.get(name, 0), blocks)
        context = shared * BLOCK
        for turn in session.turns:
            context += turn.added
            sums.requests += 1
            sums.prompt += context
            sums.cached += min(hit, (context - 1) // BLOCK) * BLOCK
            context += turn.answer
            hit = context // BLOCK
    return sums
