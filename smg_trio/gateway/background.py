"""Answers that nobody waits for: each a task of the gateway's own nursery, to be cancelled by name."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

logger = logging.getLogger("smg_trio.gateway")


class BackgroundTasks:
    """Run it in the app nursery; it ends, and all tasks with it, when it is cancelled."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[str, trio.CancelScope] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the nursery open."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task under a name that no running one has."""
        assert self._nursery is not None, "tasks are started while the gateway runs"
        self._nursery.start_soon(self._run_one, name, work)

    async def _run_one(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope() as scope:
            self._scopes[name] = scope
            try:
                await work()
            except Exception:
                # A border like the one around endpoints: what fails here has nobody to tell but the log.
                logger.exception("background answer %s failed", name)
            finally:
                del self._scopes[name]

    def cancel(self, name: str) -> bool:
        """Cancel a task; False if none of that name runs."""
        scope = self._scopes.get(name)
        if scope is None:
            return False
        scope.cancel()
        return True
