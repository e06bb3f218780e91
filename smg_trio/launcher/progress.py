"""What an engine's life says about itself: stages of its start, and whether to start it again. Pure.

A stage is seen in the engine's own lines (vLLM 0.32 and TokenSpeed 0.1 word them so) or at its worker: HELLO, and
READY of all ranks. vLLM says HELLO before it loads, TokenSpeed after, so stages have no fixed order.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smg_trio.core.workers import RankPhase, WorkerSnapshot

START_ATTEMPTS: Final = 2
"""An engine that has never been ready gets so many tries: one failure may be a predecessor's memory not yet freed."""
USAGE_EXIT_CODE: Final = 2
"""Python programs end with it on wrong options, which no second try can mend."""
SETTLED_AFTER_S: Final = 60.0
"""An engine that has been ready for so long has proven itself: its next restart is quick again."""
RESTART_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Stage(StrEnum):
    """How far the start of an engine has come."""

    CONNECTED = "said HELLO"
    LOADING = "loading the model"
    PROFILING = "profiling memory and warming up"
    READY = "ready"


_LINES: Final = (
    (
        Stage.LOADING,
        re.compile(
            r"Starting to load model|Loading (?:\S+ )?checkpoint shards|Loading weights took|Model loading took"
        ),
    ),
    (
        Stage.PROFILING,
        re.compile(
            r"Available KV cache memory|KV cache size:|KV Cache is allocated|init engine \(profile"
            r"|Warming up model|Memory profiling"
            r"|Captur(?:e|ing) (?:\S+ )?(?:CUDA|cuda) graph|Graph capturing"
        ),
    ),
)


class StartProgress:
    """Stages of one start, each told once."""

    def __init__(self) -> None:
        self._seen: set[Stage] = set()

    def line(self, line: str) -> Stage | None:
        """The stage that this line of the engine's log begins, if it is news."""
        for stage, pattern in _LINES:
            if stage not in self._seen and pattern.search(line):
                return self._note(stage)
        return None

    def worker(self, snapshot: WorkerSnapshot) -> Stage | None:
        """The stage that the worker's ranks have reached, if it is news."""
        if all_ranks_ready(snapshot):
            return self._note(Stage.READY)
        if any(rank.phase is RankPhase.LOADING for rank in snapshot.ranks):
            return self._note(Stage.CONNECTED)
        return None

    def _note(self, stage: Stage) -> Stage | None:
        if stage in self._seen or Stage.READY in self._seen:
            return None
        self._seen.add(stage)
        return stage


def all_ranks_ready(snapshot: WorkerSnapshot) -> bool:
    """Whether every rank of the worker has an engine that is ready."""
    return all(rank.phase is RankPhase.READY for rank in snapshot.ranks)


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life of an engine.

    Attributes:
        reason: in words, to follow the engine's name.
        ready_for_s: how long it had been ready; None if it never was.
        exit_code: of its process; negative: the signal that ended it; None: it was ended by us.
    """

    reason: str
    ready_for_s: float | None
    exit_code: int | None = None


class Lives:
    """The lives of one engine, and what each death means for the next."""

    def __init__(self) -> None:
        self._ever_ready = False
        self._failures = 0

    def pause_after(self, death: Death) -> float | None:
        """Seconds until the next start; None: there is no use in one.

        An engine that was ready once is started again forever: its command line is right, and other workers may be
        serving meanwhile.
        """
        if death.ready_for_s is not None:
            self._ever_ready = True
            if death.ready_for_s >= SETTLED_AFTER_S:
                self._failures = 0
        self._failures += 1
        if not self._ever_ready and (self._failures >= START_ATTEMPTS or death.exit_code == USAGE_EXIT_CODE):
            return None
        return RESTART_PAUSES_S[min(self._failures, len(RESTART_PAUSES_S)) - 1]


def exit_words(code: int) -> str:
    """An exit code in words: ``exited with code 1``, ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def quoted(lines: Sequence[str]) -> str:
    """Log lines below a message."""
    return "".join(f"\n    {line}" for line in lines) if lines else "\n    (it said nothing)"
