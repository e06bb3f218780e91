"""The wave clock of a lockstep group (vLLM mixture-of-experts data parallel), pure but for `epoch_us`.

Such engines pause together and step together. A paused rank that gets a request alone blocks in a collective,
so every request is followed by a START_DP_WAVE to every rank. An engine takes a wave number >= its own, drops
a lower one and counts on by one per wave (``DPEngineCoreProc`` in vLLM 0.32.0, ``vllm/v1/engine/core.py``).

Numbers are microseconds since the epoch: above what any engine counts to by itself, and above what an earlier gateway
of the same engines sent. vLLM packs them as 64-bit integers.
"""

from __future__ import annotations

import time


class WaveClock:
    """Numbers of wake-ups; `current` never decreases. Times are microseconds since the epoch."""

    def __init__(self) -> None:
        self.current = 0

    def wake(self, now_us: int) -> int:
        """The wave number to wake every rank with: above all before, whatever the system's clock does."""
        self.current = max(self.current + 1, now_us)
        return self.current

    def completed(self, wave: int) -> None:
        """A rank says that `wave` is over; engines now stand at the next one."""
        self.current = max(self.current, wave + 1)

    def asked_to_start(self, wave: int, now_us: int) -> int:
        """A rank asks for `wave` (it got a request of an older one): the wave number to wake every rank with."""
        self.current = max(self.current, wave)
        return self.wake(now_us)


def epoch_us() -> int:
    """Microseconds since 1970: where wave numbers of one gateway go on from those of the last."""
    return time.time_ns() // 1000
