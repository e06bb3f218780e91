"""A few connections to a PostgreSQL database, used in threads; every call has a deadline, and broken ones are replaced.

psycopg's own pool has worker threads of its own and does not interrupt a call. Here a call holds a slot, runs in a
thread and is cut off at its deadline by shutting down its socket, which also ends waiting for a server that hangs.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict

Result = TypeVar("Result")
Connection = psycopg.Connection[tuple[Any, ...]]
Work = Callable[[Connection], Result]

_LEAST_CONNECT_S: Final = 2
"""What libpq makes of less."""
_DEFAULTS: Final = {"application_name": "smg-trio", "keepalives_idle": 30, "keepalives_interval": 10}
_SESSION: Final = """
SELECT set_config('statement_timeout', %(timeout_ms)s, false),
       CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""A commit is on disk before it is acknowledged, whatever the database's default is."""


class DeadlinePassed(psycopg.OperationalError):
    """The call has taken too long."""


class Pool:
    """For the event loop's thread.

    Attributes:
        where: host, port and name of the database, without secrets.
    """

    def __init__(self, url: str, size: int, timeout_s: float, prepare: Work[None]) -> None:
        """Opens nothing yet.

        Args:
            url: as libpq reads it.
            size: most connections at once.
            timeout_s: for each call, waiting for a connection and connecting included.
            prepare: called in a thread with each new connection.

        Raises psycopg.ProgrammingError if the URL cannot be read.
        """
        given = conninfo_to_dict(url)
        self.where = _where(given)
        self._timeout_s = timeout_s
        self._prepare = prepare
        self._options: dict[str, Any] = {
            **_DEFAULTS,
            "tcp_user_timeout": int(timeout_s * 1000),
            **given,
            "connect_timeout": max(_LEAST_CONNECT_S, round(timeout_s)),
        }
        self._slots = trio.Semaphore(size)
        # More than slots: a thread that connects may be left behind at its deadline.
        self._threads = trio.CapacityLimiter(2 * size)
        self._idle: list[_Pooled] = []

    async def run(self, work: Work[Result]) -> Result:
        """Call `work` in a thread with a connection that commits each statement; returns its result.

        Where an idle connection turns out to be broken, `work` is called again with a new one, so that a restart of the
        database costs no call; doing it twice must be the same as doing it once.

        Raises psycopg.Error, DeadlinePassed among them, and what `work` raises. Cancelled, `work` goes on to its end or
        deadline.
        """
        deadline = trio.current_time() + self._timeout_s
        with trio.move_on_at(deadline) as waiting:
            await self._slots.acquire()
        if waiting.cancelled_caught:
            raise DeadlinePassed(f"all connections were in use for {self._timeout_s:g} s")
        try:
            if self._idle:
                with suppress(psycopg.Error):
                    return await self._use(self._idle.pop(), work, deadline)
                self.close()
            return await self._use(await self._connect(deadline), work, deadline)
        finally:
            self._slots.release()

    async def _use(self, pooled: _Pooled, work: Work[Result], deadline: float) -> Result:
        """Call `work` in a thread, not abandoned on cancellation; a connection without an error is idle afterwards."""
        call = _Call(pooled, work)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.cut_at, deadline)
            try:
                await trio.to_thread.run_sync(call.run, limiter=self._threads)
            finally:
                call.ended.set()
        if call.was_cut:
            pooled.close()
            raise DeadlinePassed(f"no answer within {self._timeout_s:g} s")
        if call.error is not None:
            pooled.close()
            raise call.error
        self._idle.append(pooled)
        return call.result

    async def _connect(self, deadline: float) -> _Pooled:
        attempt = _Attempt(self._open)
        with trio.CancelScope(deadline=deadline):
            try:
                return await trio.to_thread.run_sync(attempt.run, limiter=self._threads, abandon_on_cancel=True)
            except trio.Cancelled:
                attempt.abandon()
                raise
        raise DeadlinePassed(f"no connection within {self._timeout_s:g} s")

    def _open(self) -> _Pooled:
        """Connect, in a thread."""
        connection = psycopg.connect(autocommit=True, prepare_threshold=None, **self._options)
        try:
            connection.execute(_SESSION, {"timeout_ms": str(int(self._timeout_s * 1000))})
            self._prepare(connection)
            return _Pooled(connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()


class _Pooled:
    """A connection, and its socket once more under a descriptor that stays valid when libpq closes its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def cut(self) -> None:
        """End what a thread is waiting for."""
        with suppress(OSError):  # the server has hung up
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; no thread may be using it."""
        self.connection.close()
        self._socket.close()


class _Call(Generic[Result]):
    """One use of a connection in a thread."""

    def __init__(self, pooled: _Pooled, work: Work[Result]) -> None:
        self._pooled = pooled
        self._work = work
        self.result: Result
        self.error: Exception | None = None
        self.ended = trio.Event()
        self.was_cut = False

    def run(self) -> None:
        """Do the work, in the thread."""
        try:
            self.result = self._work(self._pooled.connection)
        except Exception as error:  # noqa: BLE001 - raised again where no nursery wraps it
            self.error = error

    async def cut_at(self, deadline: float) -> None:
        """End waiting for the server at the deadline, unless the call has ended; on cancellation too."""
        with trio.CancelScope(shield=True, deadline=deadline):
            await self.ended.wait()
            return
        self.was_cut = True
        self._pooled.cut()


class _Attempt:
    """One attempt to connect in a thread, whose connection is closed if nothing waits for it any more."""

    def __init__(self, connect: Callable[[], _Pooled]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._abandoned = False
        self._pooled: _Pooled | None = None

    def run(self) -> _Pooled:
        """Connect, in the thread. Raises psycopg.Error."""
        pooled = self._connect()
        with self._lock:
            self._pooled = pooled
            if self._abandoned:
                pooled.close()
        return pooled

    def abandon(self) -> None:
        """Close the connection, now or when there is one."""
        with self._lock:
            self._abandoned = True
            if self._pooled is not None:
                self._pooled.close()


def _where(given: Mapping[str, object]) -> str:
    host, port = (str(given.get(key) or "") for key in ("host", "port"))
    return f"PostgreSQL at {host or 'the default host'}{f':{port}' if port else ''}/{given.get('dbname') or ''}"
