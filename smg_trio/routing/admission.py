"""Admission: how many answers the gateway works on at once, how many it begins per second, and who waits.

Overload is answered, not stored: a bounded number of answers, a bounded queue before them, a bounded wait in it. A
permit is held for the whole answer, streaming included. Places go to those who wait in the order they came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import TracebackType

import trio

from smg_trio.core.errors import Overloaded
from smg_trio.routing.token_bucket import TokenBucket

DERIVED_LIMIT_PER_CPU = 1024
LEAST_DERIVED_LIMIT = 4096


class AdmissionQueueFull(Overloaded):
    """All slots are taken, and the queue is full."""

    code = "admission_queue_full"
    status = 429


class AdmissionQueueTimeout(Overloaded):
    """The wait for a slot was too long."""

    code = "admission_queue_timeout"
    status = 503


def admission_limit(max_concurrent_requests: int, cpu_count: int) -> int | None:
    """What `--max-concurrent-requests` means: a number itself, 0 no limit (None), -1 a limit fit for the host.

    As the reference since 1.13; before, its -1 meant no limit. A gateway without any limit stores overload as memory.
    """
    if max_concurrent_requests < 0:
        return max(LEAST_DERIVED_LIMIT, DERIVED_LIMIT_PER_CPU * cpu_count)
    return max_concurrent_requests or None


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Counts: `in_flight` and `waiting` now, `limit` and `queue_size` as configured, the others since the start."""

    limit: int | None
    in_flight: int
    waiting: int
    admitted: int
    refused_full: int
    refused_timeout: int
    queue_size: int = 0


class Permit:
    """A slot. Close it on every path, once or more; closing never blocks."""

    __slots__ = ("_queue",)

    def __init__(self, queue: AdmissionQueue) -> None:
        self._queue: AdmissionQueue | None = queue

    def close(self) -> None:
        """Give the slot to the request that has waited longest; idempotent."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.release()

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AdmissionQueue:
    """Slots for requests.

    Args:
        limit: slots; None for no limit.
        queue_size: how many may wait; 0 refuses immediately where no slot is free.
        timeout_s: how long one may wait.
        rate_per_s: answers begun per second, up to `limit` (or a second's worth, without) at once; None for no limit.
    """

    def __init__(
        self,
        limit: int | None,
        queue_size: int = 100,
        timeout_s: float = 60.0,
        *,
        rate_per_s: float | None = None,
    ) -> None:
        self._limit = limit
        self._pace = None if rate_per_s is None else _Pace(rate_per_s, limit, queue_size, timeout_s)
        self._queue_size = queue_size
        self._timeout_s = timeout_s
        self._waiters: deque[trio.Event] = deque()
        self._in_flight = 0
        self._admitted = 0
        self._refused_full = 0
        self._refused_timeout = 0

    async def admit(self) -> Permit:
        """A permit, waited for if need be.

        No checkpoint if a slot is free. Raises AdmissionQueueFull immediately, AdmissionQueueTimeout after `timeout_s`.
        Cancelled, the wait leaves nothing behind.
        """
        if self._pace is not None:
            await self._wait_turn(self._pace)
        if self._limit is None or (self._in_flight < self._limit and not self._waiters):
            self._in_flight += 1
        elif len(self._waiters) >= self._queue_size:
            self._refused_full += 1
            raise AdmissionQueueFull("admission queue is at capacity")
        else:
            await self._wait()
        self._admitted += 1
        return Permit(self)

    async def _wait_turn(self, pace: _Pace) -> None:
        try:
            await pace.wait()
        except AdmissionQueueFull:
            self._refused_full += 1
            raise
        except AdmissionQueueTimeout:
            self._refused_timeout += 1
            raise

    async def _wait(self) -> None:
        granted = trio.Event()
        self._waiters.append(granted)
        try:
            with trio.move_on_after(self._timeout_s):
                await granted.wait()
        except BaseException:
            self._give_up(granted)
            raise
        if not granted.is_set():
            self._waiters.remove(granted)
            self._refused_timeout += 1
            raise AdmissionQueueTimeout("timed out waiting for an admission slot")

    def _give_up(self, granted: trio.Event) -> None:
        # Cancelled after the slot was given but before the task ran again: the slot goes to the next one.
        if granted.is_set():
            self.release()
        else:
            self._waiters.remove(granted)

    def release(self) -> None:
        """Called by a permit: its slot is handed to the first in the queue, or free."""
        if self._waiters:
            self._waiters.popleft().set()
        else:
            self._in_flight -= 1

    def statistics(self) -> AdmissionStatistics:
        """The counts as they are now."""
        return AdmissionStatistics(
            limit=self._limit,
            queue_size=self._queue_size,
            in_flight=self._in_flight,
            waiting=len(self._waiters) + (0 if self._pace is None else self._pace.waiting),
            admitted=self._admitted,
            refused_full=self._refused_full,
            refused_timeout=self._refused_timeout,
        )


class _Pace:
    """Turns at a rate. Each is reserved when it is asked for, so no request waits that could not be served in time."""

    def __init__(self, rate_per_s: float, burst: int | None, queue_size: int, timeout_s: float) -> None:
        self._bucket = TokenBucket(rate_per_s, burst or max(1.0, rate_per_s), trio.current_time())
        self._queue_size = queue_size
        self._timeout_s = timeout_s
        self.waiting = 0

    async def wait(self) -> None:
        """Wait for a turn. No checkpoint if it is there.

        Raises AdmissionQueueFull, AdmissionQueueTimeout immediately. Cancelled, the turn is given back.
        """
        wait_s = self._bucket.wait_s(1, trio.current_time())
        if not wait_s:
            self._bucket.take(1, trio.current_time())
            return
        if self.waiting >= self._queue_size:
            retry_after_s = self._bucket.wait_s(1 - self.waiting, trio.current_time())
            raise AdmissionQueueFull("admission queue is at capacity", retry_after_s=retry_after_s)
        if wait_s > self._timeout_s:
            raise AdmissionQueueTimeout(
                "timed out waiting for an admission slot", retry_after_s=wait_s - self._timeout_s
            )
        await self._sleep(wait_s)

    async def _sleep(self, wait_s: float) -> None:
        self._bucket.take(1, trio.current_time())
        self.waiting += 1
        try:
            await trio.sleep(wait_s)
        except BaseException:
            self._bucket.take(-1, trio.current_time())
            raise
        finally:
            self.waiting -= 1
