"""What has gone wrong in the calls of one plug-in. Pure but for its lines in the log.

Whoever calls a plug-in holds its faults here: they are counted for the metrics, and one of them per minute is logged
with its traceback.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("smg_trio.plugins")

STALL_S: Final = 0.1
"""A call that holds the event loop for longer is counted and logged."""
_LOG_EVERY_S: Final = 60.0


class PluginMistake(Exception):
    """A plug-in returned what its contract does not allow."""


class PluginCalls:
    """Counts of one loaded plug-in.

    Attributes:
        kind: what it is, in words: "tool parser", "policy", …
        name: as its flag has it.
        origin: distribution and version, or the file that it came from.
        clock: seconds that do not go back.
        faults: calls that raised, were late, or returned what the contract does not allow.
        stalls: calls that held the event loop for more than `STALL_S`.
        longest_s: the longest of those.
        off: why it is not called any more; empty while it is.
    """

    __slots__ = (
        "_logged_fault",
        "_logged_stall",
        "clock",
        "faults",
        "kind",
        "longest_s",
        "name",
        "off",
        "origin",
        "stalls",
    )

    def __init__(self, kind: str, name: str, origin: str = "", clock: Callable[[], float] = time.perf_counter) -> None:
        self.kind = kind
        self.name = name
        self.origin = origin
        self.clock = clock
        self.faults = self.stalls = 0
        self.longest_s = 0.0
        self.off = ""
        self._logged_fault = self._logged_stall = float("-inf")

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.origin})" if self.origin else f"{self.kind} {self.name}"

    def fault(self, error: BaseException, what_now: str) -> None:
        """Count a failed call; `what_now` says for the log how the gateway goes on."""
        self.faults += 1
        now = self.clock()
        if now - self._logged_fault >= _LOG_EVERY_S:
            self._logged_fault = now
            trace = None if isinstance(error, (PluginMistake, TimeoutError)) else error
            logger.error(
                "plug-in %s failed: %s; %s", self, str(error) or type(error).__name__, what_now, exc_info=trace
            )

    def took(self, seconds: float) -> None:
        """A call returned after that long, during which nothing else could run."""
        if seconds <= STALL_S:
            return
        self.stalls += 1
        self.longest_s = max(self.longest_s, seconds)
        now = self.clock()
        if now - self._logged_stall >= _LOG_EVERY_S:
            self._logged_stall = now
            logger.warning("plug-in %s held the event loop for %.3f s", self, seconds)

    def turn_off(self, reason: str) -> None:
        """It is not to be called any more."""
        self.off = reason
        logger.error("plug-in %s is off: %s", self, reason)
