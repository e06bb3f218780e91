"""Counts of one server, for metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """A snapshot; counters since the server started, except where "now" is said.

    Attributes:
        connections_open: connections open now.
        connections_idle: of those, the ones between requests.
        connections_accepted: all that were taken, refused ones not included.
        connections_refused: closed immediately because of the connection cap.
        connections_handed_over: those hypercorn's protocols speak or spoke (WebSocket, h2).
        requests: HTTP/1.1 requests that were given to the app.
        faults: requests the server itself refused or gave up on.
    """

    connections_open: int
    connections_idle: int
    connections_accepted: int
    connections_refused: int
    connections_handed_over: int
    requests: int
    faults: int
