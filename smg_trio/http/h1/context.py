"""What all HTTP/1.1 connections of one server share."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import TYPE_CHECKING

from smg_trio.http.h1.write_batcher import WriteBatcher

if TYPE_CHECKING:
    from smg_trio.http.asgi import App
    from smg_trio.http.disconnect_watch import DisconnectWatch
    from smg_trio.http.faults import FaultAnswers
    from smg_trio.http.settings import ServerLimits


class Http1Context:
    """The app, the limits, the counters, and whether the server is draining."""

    __slots__ = (
        "_date_line", "_date_second", "app", "batcher", "disconnects", "draining", "faults", "limits", "requests",
    )  # fmt: skip

    def __init__(
        self,
        app: App,
        limits: ServerLimits,
        disconnects: DisconnectWatch,
        faults: FaultAnswers,
    ) -> None:
        self.app = app
        self.limits = limits
        self.disconnects = disconnects
        self.batcher = WriteBatcher()
        self.draining = False
        self.requests = 0
        self.faults = faults
        self._date_second = -1
        self._date_line = b""

    def date_line(self) -> bytes:
        """The ``Date`` header line of this second."""
        second = int(time.time())
        if second != self._date_second:
            self._date_second = second
            self._date_line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._date_line
