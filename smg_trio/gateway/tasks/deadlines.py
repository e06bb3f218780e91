"""Ends answers that take longer than the request timeout: one task and one sleep for all of them.

All answers have the same timeout, so deadlines come in the order of arrival; a cancel scope around every wait of every
answer would cost more per token than everything else this room does.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

import trio

logger = logging.getLogger("smg_trio.gateway")


class Deadline:
    """One answer's deadline; `cancel` it when the answer has ended, or it keeps the answer in memory until then."""

    __slots__ = ("_queue", "at", "expire")

    def __init__(self, at: float, expire: Callable[[], None], queue: OrderedDict[Deadline, None]) -> None:
        self.at = at
        self.expire = expire
        self._queue = queue

    def cancel(self) -> None:
        """The answer has ended; idempotent. Lets go of `expire`, which holds the answer that holds this."""
        self._queue.pop(self, None)
        self.expire = _nothing


def _nothing() -> None:
    """What a cancelled deadline does."""


class DeadlineQueue:
    """Deadlines `timeout_s` from their start. Run it beside whatever starts them."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._queue: OrderedDict[Deadline, None] = OrderedDict()
        self._filled = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def start(self, expire: Callable[[], None]) -> Deadline:
        """A deadline from now; `expire` is called once if it passes, and must not wait. What it raises is logged."""
        deadline = Deadline(trio.current_time() + self._timeout_s, expire, self._queue)
        if not self._queue:
            self._filled.set()
        self._queue[deadline] = None
        return deadline

    async def run(self) -> None:
        """Watch until cancelled."""
        queue = self._queue
        while True:
            if not queue:
                self._filled = trio.Event()
                await self._filled.wait()
                continue
            first = next(iter(queue))
            if trio.current_time() < first.at:
                await trio.sleep_until(first.at)
            elif queue.pop(first, self) is None:
                _expire(first)


def _expire(deadline: Deadline) -> None:
    # The other answers' deadlines are watched by the same task.
    try:
        deadline.expire()
    except Exception:
        logger.exception("a deadline's action failed")
