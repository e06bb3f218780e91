"""Responses that no client waits for: each a task of one nursery, to be cancelled by name.

The nursery is the gateway's own, so nothing that a task raises may leave it: an exception is logged and ends that task
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from smg_trio.core.errors import Conflict

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

    def start(self, name: str, work: Callable[[], Awaitable[None]], *, owner: str = "") -> None:
        """Start a task, which `cancel` knows by `name` from now on. Raises Conflict while another one has the name.

        ``owner``: whose it is, in case that this process ends and another one has to say so.
        """
        assert self._nursery is not None, "tasks are started while the gateway runs"
        if name in self._scopes:
            raise Conflict(f"A background task named '{name}' is running.")
        scope = self._scopes[name] = trio.CancelScope()
        self._nursery.start_soon(self._run_one, name, work, scope)

    async def _run_one(self, name: str, work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        try:
            with scope:
                await work()
        except Exception:
            # A border like the one around endpoints: what fails here has no one to tell but the log.
            logger.exception("background response %s failed", name)
        finally:
            self._scopes.pop(name, None)

    async def end(self, name: str) -> bool:
        """Cancel a task, in whichever process of the gateway it runs; False if none of that name does."""
        return self.cancel(name)

    def cancel(self, name: str) -> bool:
        """Cancel a task of this process; False if none of that name runs."""
        scope = self._scopes.get(name)
        if scope is None:
            return False
        scope.cancel()
        return True
