"""The circuit breaker of one worker, pure.

========== ============================== ==========================================================================
state      who gets the worker            what comes next
========== ============================== ==========================================================================
closed     all                            open, after `failure_threshold` failures in a row within `window_s`
open       none                           half open, after `timeout_s`
half open  `success_threshold` at a time  closed, after so many successes; open again at the first failure
========== ============================== ==========================================================================

A request tells how it ended with the ticket it was given, so what began before the breaker opened says nothing about
the trial, and what an engine did nothing about its successor. Which errors are failures is decided by `is_failure`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from smg_trio.core.errors import EngineFault, EngineUnavailable, SmgError
from smg_trio.routing.retries import TRANSIENT_STATUSES


class BreakerState(StrEnum):
    """See the module."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """See the module; the reference's defaults. Times in seconds."""

    failure_threshold: int = 10
    success_threshold: int = 3
    timeout_s: float = 60.0
    window_s: float = 120.0


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    """State, failures in a row (closed), successes in a row (half open), and how often it has opened.

    Attributes:
        transitions: (from, to) → how often.
        judged: ``ok`` → how many requests have spoken for (True) or against (False) the worker.
    """

    state: BreakerState
    failures: int
    successes: int
    opened: int
    transitions: Mapping[tuple[BreakerState, BreakerState], int]
    judged: Mapping[bool, int]


def is_failure(error: SmgError) -> bool:
    """Whether an error speaks against the worker: its engines' faults do, the client's and our own do not.

    429 is a busy engine, not a broken one, and one that is unavailable says so itself.
    """
    if isinstance(error, EngineUnavailable):
        return False
    return isinstance(error, EngineFault) and error.status in TRANSIENT_STATUSES and error.status != 429


class Breaker:
    """All times are seconds of one monotonic clock, handed in."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self.limits = limits or BreakerLimits()
        self._state = BreakerState.CLOSED
        self._failures: deque[float] = deque(maxlen=self.limits.failure_threshold)
        self._successes = 0
        self._transitions: dict[tuple[BreakerState, BreakerState], int] = {}
        self._judged = {True: 0, False: 0}
        self._opened_at = 0.0
        self._trials = 0
        self._period = 0

    def admits(self, now: float) -> bool:
        """Whether a request may go to the worker."""
        if self._state is BreakerState.CLOSED:
            return True
        if self._state is BreakerState.OPEN:
            return now - self._opened_at >= self.limits.timeout_s
        return self._trials < self.limits.success_threshold

    def begins(self, now: float) -> int:
        """A request goes to the worker; returns the ticket it ends with."""
        if self._state is BreakerState.OPEN and self.admits(now):
            self._enter(BreakerState.HALF_OPEN)
            self._period += 1
            self._successes = self._trials = 0
        if self._state is BreakerState.HALF_OPEN:
            self._trials += 1
        return self._period

    def ends(self, ticket: int, ok: bool | None, now: float) -> None:
        """The request of that ticket is over; `ok` is None if that says nothing of the worker (the client left)."""
        on_trial = ticket == self._period and self._state is BreakerState.HALF_OPEN
        if on_trial:
            self._trials -= 1
        if ok is None:
            return
        self._judged[ok] += 1
        if on_trial:
            self._trial_ended(ok, now)
        elif ticket == self._period and self._state is BreakerState.CLOSED:
            self._closed_ended(ok, now)

    def _trial_ended(self, ok: bool, now: float) -> None:
        if not ok:
            self._open(now)
            return
        self._successes += 1
        if self._successes >= self.limits.success_threshold:
            self.reset()

    def _closed_ended(self, ok: bool, now: float) -> None:
        if ok:
            self._failures.clear()
            return
        self._failures.append(now)
        enough = len(self._failures) == self.limits.failure_threshold
        if enough and now - self._failures[0] <= self.limits.window_s:
            self._open(now)

    def _open(self, now: float) -> None:
        self._enter(BreakerState.OPEN)
        self._opened_at = now

    def _enter(self, state: BreakerState) -> None:
        if state is not self._state:
            step = (self._state, state)
            self._transitions[step] = self._transitions.get(step, 0) + 1
            self._state = state

    def renew(self) -> None:
        """The worker has new engines: closed, and what the old ones still owe says nothing of these."""
        self._period += 1
        self._trials = 0
        self.reset()

    def reset(self) -> None:
        """Closed, with nothing on record: the trial has gone well."""
        self._enter(BreakerState.CLOSED)
        self._failures.clear()
        self._successes = 0

    def statistics(self) -> BreakerStatistics:
        """As it is now; an open breaker whose time is over still says open until it is tried."""
        return BreakerStatistics(
            state=self._state,
            failures=len(self._failures),
            successes=self._successes,
            opened=sum(count for (_, to), count in self._transitions.items() if to is BreakerState.OPEN),
            transitions=dict(self._transitions),
            judged=dict(self._judged),
        )
