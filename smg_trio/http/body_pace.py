"""How long a request body may take. Pure."""

from __future__ import annotations

from smg_trio.http.settings import ServerLimits


class BodyPace:
    """Tells when the next bytes of one body must have come.

    A client may be silent for ``body_timeout_s``, and it may be late by as much behind ``min_body_rate``: so a body
    that comes byte by byte ends too, however it is cut into chunks and trailers.
    """

    __slots__ = ("_began", "_bytes", "_limits")

    def __init__(self, limits: ServerLimits, now: float) -> None:
        self._limits = limits
        self._began = now
        self._bytes = 0

    def came(self, size: int) -> None:
        """Bytes of the body have come."""
        self._bytes += size

    def deadline(self, now: float) -> float:
        """When more must have come."""
        limits = self._limits
        silence = now + limits.body_timeout_s
        if not limits.min_body_rate:
            return silence
        return min(silence, self._began + limits.body_timeout_s + self._bytes / limits.min_body_rate)
