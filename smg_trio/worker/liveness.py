"""The silence clock, pure: how long has an engine that owes us output said nothing?

The clock runs only while something is in flight. It starts at the later of the last output and the submit that
ended idleness, so a request sent after a long quiet spell has the whole limit before it, and an idle connection
never dies (the reference counts from the last output and can kill a fresh request early).
"""

from __future__ import annotations

from enum import Enum
from secrets import token_hex

from smg_trio.core.errors import EngineConnectionLost, EngineDead
from smg_trio.core.requests import GenerationRequest, SamplingParams

SILENCE_LIMIT_S = 300.0
"""The reference's limit, in seconds."""


SIGN_PREFIX = "sign-of-life-"


class GivenUp(Enum):
    """How an engine that is still connected was given up, and so what takes it back."""

    SILENT = "any output"
    DEAF = "an answer"


def sign_request() -> GenerationRequest:
    """The smallest thing to ask of an engine that has no methods: one token after the first of the vocabulary."""
    sampling = SamplingParams(max_tokens=1)
    return GenerationRequest(request_id=SIGN_PREFIX + token_hex(8), prompt_token_ids=[0], sampling=sampling)


def connection_error(reason: str, *, remote: bool) -> EngineDead:
    """What has become of a request whose engine's connection has ended."""
    if remote:
        return EngineConnectionLost(f"the connection to the engine was lost: {reason}")
    return EngineDead(reason)


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
