"""A token bucket that may be overdrawn. Pure: the time comes as an argument, in seconds of any clock that only rises.

What something costs is often known only when it is over. So a bucket is asked whether it holds enough to begin, and
what is taken later may bring it below zero: a debt that the refill pays back before anything else begins.
"""

from __future__ import annotations


class TokenBucket:
    """Fills at `rate_per_s` up to `capacity`, which it holds at the beginning; both are greater than 0."""

    __slots__ = ("_at", "_level", "capacity", "rate_per_s")

    def __init__(self, rate_per_s: float, capacity: float, now: float) -> None:
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def level(self, now: float) -> float:
        """What it holds: at most `capacity`, below 0 if it is overdrawn."""
        if now > self._at:
            self._level = min(self.capacity, self._level + (now - self._at) * self.rate_per_s)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take so much, whether it is there or not; a negative amount is given back."""
        self._level = min(self.capacity, self.level(now) - amount)

    def wait_s(self, level: float, now: float) -> float:
        """How long until it holds `level` (at most `capacity`), if nothing is taken; 0 if it does."""
        return max(0.0, (min(level, self.capacity) - self.level(now)) / self.rate_per_s)

    def change(self, rate_per_s: float, capacity: float, now: float) -> None:
        """Other limits from now on; what has been used stays used."""
        used = self.capacity - self.level(now)
        self.rate_per_s, self.capacity = rate_per_s, capacity
        self._level = capacity - used
