"""What the log says of messages that are refused: the first few of each while, then their number. Pure.

Everything that can open a connection to a worker's sockets can send whatever it likes, as fast as it likes. The log is
read by operators, so it names some of what came and counts the rest.
"""

from __future__ import annotations

from typing import Final

SHOWN: Final = 10
"""Refusals of one while that are told one by one."""
WHILE_S: Final = 10.0
MAX_REASON_CHARS: Final = 200
"""A reason may quote the message."""


class LogThrottle:
    """Decides which refusals are told, and counts them all.

    Attributes:
        total: refusals so far.
    """

    __slots__ = ("_began", "_seen", "total")

    def __init__(self) -> None:
        self.total = 0
        self._began = float("-inf")
        self._seen = 0

    def note(self, reason: str, now: float) -> list[str]:
        """The lines to log for a refusal at `now`, a time in seconds that does not go back."""
        lines = []
        if now - self._began >= WHILE_S:
            if self._seen > SHOWN:
                lines.append(f"{self._seen - SHOWN} more messages were refused")
            self._began, self._seen = now, 0
        self._seen += 1
        self.total += 1
        if self._seen <= SHOWN:
            lines.append(reason if len(reason) <= MAX_REASON_CHARS else f"{reason[:MAX_REASON_CHARS]}…")
        return lines


class Refusals:
    """The refused messages of one worker, by the socket they came to."""

    __slots__ = ("handshake", "input", "output")

    def __init__(self) -> None:
        self.handshake, self.input, self.output = LogThrottle(), LogThrottle(), LogThrottle()

    def totals(self) -> dict[str, int]:
        """Socket → number of messages refused so far."""
        return {"handshake": self.handshake.total, "input": self.input.total, "output": self.output.total}
