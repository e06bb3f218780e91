"""Whether another attempt can help, and how long to wait before it. Pure.

The reference repeats whatever ended with one of its statuses, engine errors included, so a request that an engine
cannot do is done five times. Here a status alone is not enough: the error must be one that another attempt can change
(`SmgError.retryable`: the engine died, or the worker was not ready after all).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError

TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that may be gone at the next attempt, as the reference has them."""


def can_help(error: SmgError) -> bool:
    """Whether the same request may succeed at another attempt."""
    return error.retryable and error.status in TRANSIENT_STATUSES


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """Back-off between attempts: `initial_s` times `multiplier` at each, at most `max_s`, give or take `jitter`.

    Attributes:
        max_attempts: including the first; 1 means no retries.
        jitter: share of the delay (0..1) that chance adds or takes.
    """

    max_attempts: int = 5
    initial_s: float = 0.05
    max_s: float = 30.0
    multiplier: float = 1.5
    jitter: float = 0.2

    def delay_s(self, retry: int, random: Random) -> float:
        """Seconds before the `retry`-th retry, counted from 1."""
        try:
            delay = min(self.initial_s * self.multiplier ** (retry - 1), self.max_s)
        except OverflowError:  # a power that no float holds
            delay = self.max_s if self.initial_s else 0.0
        return max(0.0, delay * (1.0 + self.jitter * random.uniform(-1.0, 1.0)))


NO_RETRIES = RetrySchedule(max_attempts=1)


class Attempts:
    """The attempts of one request: counts them and says when to stop.

    Attributes:
        avoid: workers that have failed the request, for `Registry.lease`.
    """

    __slots__ = ("_allowed", "_made", "_random", "avoid")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._made = 0
        self._allowed = 1
        self.avoid: set[str] = set()

    @property
    def made(self) -> int:
        """Failed attempts so far."""
        return self._made

    def failed(self, error: SmgError, worker_ids: Collection[str], schedule: RetrySchedule) -> float | None:
        """An attempt has failed at those workers: seconds to wait before the next one, or None to give up.

        `schedule`: theirs, see `Registry.retry_schedule`. All attempts so far count, wherever they were made.
        """
        self._made += 1
        self.avoid.update(worker_ids)
        self._allowed = schedule.max_attempts
        if not can_help(error) or self._made >= self._allowed:
            return None
        return schedule.delay_s(self._made, self._random)

    def exhausted(self, error: SmgError) -> bool:
        """Whether there were retries, and one more might have helped against this error."""
        return can_help(error) and 1 < self._made >= self._allowed
