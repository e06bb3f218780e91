"""Whether a history outside of this process can be written, and what the log says while it cannot."""

from __future__ import annotations

import logging
import math
from typing import Final

import trio

from smg_trio.history.base import HistoryUnavailable

logger = logging.getLogger("smg_trio.history")

_AVOID_S: Final = 5.0
"""After a write has failed, how long work is refused that is of no use without one."""
_LOG_EVERY_S: Final = 60.0


class Availability:
    """Of one store. For the event loop's thread."""

    def __init__(self, where: str) -> None:
        """`where`: the store's name in the log, without secrets."""
        self._where = where
        self._failed_at = -math.inf
        self._logged_at = -math.inf
        self._unlogged = 0

    def check_writable(self) -> None:
        """See `HistoryStore.ensure_writable`."""
        if trio.current_time() < self._failed_at + _AVOID_S:
            raise HistoryUnavailable

    def forget_failure(self) -> None:
        """A write has succeeded, or the next one is to be tried."""
        self._failed_at = -math.inf

    def failed(self, problem: object, *, writing: bool) -> None:
        """A call has failed: at most one line a minute in the log says why."""
        now = trio.current_time()
        if writing:
            self._failed_at = now
        self._unlogged += 1
        if now < self._logged_at + _LOG_EVERY_S:
            return
        logger.error("history in %s is unavailable: %s (failed calls: %d)", self._where, problem, self._unlogged)
        self._logged_at, self._unlogged = now, 0
