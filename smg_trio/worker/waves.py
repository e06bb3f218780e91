"""The wave clock of a lockstep group (vLLM mixture-of-experts data parallel), pure.

Such engines pause together and step together. A paused rank that gets a request alone blocks in a collective,
so every request is followed by a START_DP_WAVE to every rank. An engine takes a wave number >= its own and drops
a lower one, so one counter that only grows is always right (spec: wire-vllm 3.5; seen on real groups).
"""

from __future__ import annotations


class WaveClock:
    """Counts waves; `current` never decreases."""

    def __init__(self) -> None:
        self.current = 0

    def wake(self) -> int:
        """A request was sent: the wave number to wake every rank with."""
        self.current += 1
        return self.current

    def completed(self, wave: int) -> None:
        """A rank says that `wave` is over; engines now stand at the next one."""
        self.current = max(self.current, wave + 1)

    def asked_to_start(self, wave: int) -> int:
        """A rank asks for `wave` (it got a request of an older one): the wave number to wake every rank with."""
        self.current = max(self.current, wave)
        return self.wake()
