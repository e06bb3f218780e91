"""The silence clock, pure: how long has an engine that owes us output said nothing?

The clock runs only while something is in flight. It starts at the later of the last output and the submit that
ended idleness, so a request sent after a long quiet spell has the whole limit before it, and an idle connection
never dies (the reference counts from the last output and can kill a fresh request early).
"""

from __future__ import annotations

SILENCE_LIMIT_S = 300.0
"""The reference's limit, in seconds."""


class SilenceClock:
    """All times are seconds of one monotonic clock, handed in."""

    def __init__(self, limit_s: float = SILENCE_LIMIT_S) -> None:
        self.limit_s = limit_s
        self._since: float | None = None

    @property
    def running(self) -> bool:
        """Whether something is owed."""
        return self._since is not None

    def submitted(self, now: float) -> bool:
        """A request was sent. True if this ended idleness (and started the clock)."""
        if self._since is not None:
            return False
        self._since = now
        return True

    def heard(self, now: float) -> None:
        """An output message came (tokens, statistics, anything)."""
        if self._since is not None:
            self._since = now

    def silent_s(self, now: float) -> float:
        """For how many seconds nothing has been heard while something was owed."""
        return 0.0 if self._since is None else now - self._since

    def nothing_owed(self) -> None:
        """The last request in flight has ended."""
        self._since = None

    def deadline(self) -> float | None:
        """When silence becomes death; None while nothing is owed."""
        return None if self._since is None else self._since + self.limit_s
