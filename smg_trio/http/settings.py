"""The HTTP server's limits: every size, count and time the server enforces, in one frozen record. Pure.

A limit that is passed ends one connection, never the process. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from smg_trio.core.errors import ConfigError

MIB = 1024 * 1024
_MAY_BE_ZERO = frozenset({"answer_half_closed", "min_body_rate"})


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one HTTP server accepts, and how long it waits.

    Attributes:
        max_body_bytes: largest request body (413 beyond). Images in base64 and million-token prompts
            are large, so the default is 64 MiB.
        max_header_bytes: largest request head, request line included (431 beyond).
        max_headers: most header lines of one request (431 beyond).
        head_timeout_s: from the first byte of a request head (or the accept) to its end (408 beyond).
        body_timeout_s: between two reads of a request body (408 beyond).
        min_body_rate: bytes per second that a request body must come at; it may be late by
            ``body_timeout_s`` (408 beyond). 0: as slowly as the client likes.
        keep_alive_timeout_s: an idle connection is closed after this. Longer than the pools of common
            clients keep theirs, so that the client closes first.
        write_timeout_s: a client that takes not one byte for so long is cut.
        linger_timeout_s: how long a connection stays after the answer to an upload that was not read,
            so that the client can read the answer instead of a reset. Little of the upload is read.
        max_connections: connections open at once (503 beyond).
        max_websocket_bytes: largest WebSocket message.
        answer_half_closed: ``False``: a client that closes its sending side is gone, and its request is
            cancelled. ``True``: a request that said ``Connection: close`` (or HTTP/1.0) is still
            answered after a half-close; the price is that such a client's full close is noticed only
            when something is written to it.
    """

    max_body_bytes: int = 64 * MIB
    max_header_bytes: int = 64 * 1024
    max_headers: int = 200
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    min_body_rate: float = 10_000.0
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 30.0
    linger_timeout_s: float = 5.0
    max_connections: int = 8192
    max_websocket_bytes: int = 16 * MIB
    answer_half_closed: bool = False

    def __post_init__(self) -> None:
        """Refuses limits that would refuse everything."""
        for field in fields(self):
            if field.name not in _MAY_BE_ZERO and getattr(self, field.name) <= 0:
                raise ConfigError(f"--{field.name.replace('_', '-')}", "must be greater than 0.")

    @property
    def tick_s(self) -> float:
        """How often deadlines are looked at: an eighth of the shortest wait, at most a second."""
        shortest = min(self.head_timeout_s, self.body_timeout_s, self.keep_alive_timeout_s, self.write_timeout_s)
        return min(1.0, shortest / 8)
