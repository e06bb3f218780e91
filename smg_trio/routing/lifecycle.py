"""Where a worker stands, pure: pending → ready → not ready → failed → draining.

============ ================================= =====================================================================
from         event                             to
============ ================================= =====================================================================
any but      engines connected                 ready, immediately (the reference waits for two good probes)
draining
ready        engines lost                      not ready, immediately (the reference waits for three bad probes)
any          sockets cannot be bound           failed; connecting still makes it ready
pending      10 x `failure_threshold` bad      failed
             probes in all
ready        `failure_threshold` bad probes    not ready
             in a row
not ready    `success_threshold` good probes   ready
             in a row
not ready    3 x `failure_threshold` bad       failed
             probes in a row
any          drain                             draining, for good; not probed
============ ================================= =====================================================================

A probe looks whether the worker has an engine that serves; it costs the engine nothing. Socket monitors and the
handshake tell of changes immediately, so probes only decide when waiting has become failure. A failed worker keeps its
sockets: it is called failed so that operators see it, and may be removed if they want that.
"""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.core.workers import HealthOverrides, WorkerState

_PENDING_FACTOR = 10
_NOT_READY_FACTOR = 3


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """See the module; the reference's defaults. ``interval_s``: seconds between probes."""

    failure_threshold: int = 3
    success_threshold: int = 2
    interval_s: float = 60.0

    def with_overrides(self, overrides: HealthOverrides) -> HealthThresholds:
        """These, where a worker has no word of its own."""
        failure, success, interval = (
            overrides.failure_threshold,
            overrides.success_threshold,
            overrides.check_interval_secs,
        )
        return HealthThresholds(
            failure_threshold=self.failure_threshold if failure is None else failure,
            success_threshold=self.success_threshold if success is None else success,
            interval_s=self.interval_s if interval is None else interval,
        )


class Lifecycle:
    """One worker's state."""

    def __init__(self, thresholds: HealthThresholds | None = None) -> None:
        self.thresholds = thresholds or HealthThresholds()
        self.state = WorkerState.PENDING
        self._link = WorkerState.PENDING
        self._good = 0
        self._bad = 0

    def observe(self, link: WorkerState) -> bool:
        """What the worker itself says of its connection now. True if that changed the state."""
        before, self._link = self._link, link
        if link is before or self.state is WorkerState.DRAINING:
            return False
        if link is WorkerState.DRAINING or link is WorkerState.FAILED or link is WorkerState.READY:
            return self._enter(link)
        if before is WorkerState.FAILED:
            return self._enter(link)
        return before is WorkerState.READY and self._enter(WorkerState.NOT_READY)

    def probed(self, alive: bool) -> bool:
        """A probe has ended. True if that changed the state."""
        self._good = self._good + 1 if alive else 0
        self._bad = 0 if alive and self.state is not WorkerState.PENDING else self._bad + (not alive)
        limits = self.thresholds
        if self.state is WorkerState.DRAINING:
            return False
        if alive:
            ready = self.state is not WorkerState.READY and self._good >= limits.success_threshold
            return ready and self._enter(WorkerState.READY)
        bad_limit, after = {
            WorkerState.PENDING: (_PENDING_FACTOR * limits.failure_threshold, WorkerState.FAILED),
            WorkerState.READY: (limits.failure_threshold, WorkerState.NOT_READY),
            WorkerState.NOT_READY: (_NOT_READY_FACTOR * limits.failure_threshold, WorkerState.FAILED),
        }.get(self.state, (0, WorkerState.FAILED))
        return self._bad >= bad_limit and self._enter(after)

    def drain(self) -> bool:
        """No new requests from now on, for good."""
        return self._enter(WorkerState.DRAINING)

    def _enter(self, state: WorkerState) -> bool:
        if state is self.state:
            return False
        self.state = state
        self._good = self._bad = 0
        return True
