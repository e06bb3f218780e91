"""How long a request body may take. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.http.settings import ServerLimits


class BodyPace:
    """Tells when the next bytes of one body must have come.

    A client may be late by ``body_timeout_s``; every byte makes up for what it takes at ``min_body_rate``. So a body
    that comes byte by byte ends too, however it is cut into chunks and trailers, and however fast it began.

    Attributes:
        due: when more must have come, on the clock of `now`.
    """

    __slots__ = ("_limits", "due")

    def __init__(self, limits: ServerLimits, now: float) -> None:
        self._limits = limits
        self.due = now + limits.body_timeout_s

    def came(self, size: int, now: float) -> None:
        """Bytes of the body have come."""
        latest = now + self._limits.body_timeout_s
        rate = self._limits.min_body_rate
        self.due = min(latest, self.due + size / rate) if rate else latest
