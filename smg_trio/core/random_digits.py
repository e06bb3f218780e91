"""Random hexadecimal digits for ids, from the system's source, at one system call per hundred ids."""

from __future__ import annotations

import os

_POOL_BYTES = 2048


class RandomDigits:
    """Gives out every digit once, so ids are as hard to guess as `secrets` makes them. For one thread."""

    def __init__(self) -> None:
        self._pool = ""
        self._next = 0

    def take(self, count: int) -> str:
        """`count` digits, at most a pool full."""
        start = self._next
        if start + count > len(self._pool):
            self._pool, start = os.urandom(_POOL_BYTES).hex(), 0
        self._next = start + count
        return self._pool[start : self._next]


random_digits = RandomDigits().take
"""`RandomDigits.take` of the process's only pool."""
